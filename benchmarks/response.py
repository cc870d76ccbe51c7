"""Each tenant's slowest answers against ideal fair queueing, and how far finish estimates are off.

The 33 tenants of the mixed node, all Poisson (T2 in bursts of four) and all of one tier, at 90% of
what the node does before its prefix cache is lost (under start-time fair queueing 4.0 requests/s,
for an hour; at 4.2 it is, demand rises with it, and every queue grows). P99 of the response under
our round robin, which predicts what a request will cost, over that under start-time fair queueing,
which knows; before the same gate. Fluid generalised processor sharing stands beside: an ideal
without steps, batches or seats.

`vft_skew` is (actual - estimated) / estimated, from the dispatch; over 0.30 a request is flagged.
Azure's conversation trace of 2023 ($TIDEGATE_TRACES/azure2023) on the same node.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from report import Aim, Figure, benchmark, figure
from rich.console import Console
from sensitivity import sensitivity
from simulated import Results, Run, RunSummary, execute, model_only, options

from tidegate.scheduling.contracts import (
    Arrival,
    ArrivalProcess,
    FairnessUnit,
    Scenario,
    TenantLoad,
    Trace,
    TraceFormat,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.fluid_gps import FluidJob, finish_times
from tidegate.simulator.simulation.fair_front import true_cost_seconds
from tidegate.simulator.simulation.node_policy import TP8, node_policy, one_engine
from tidegate.simulator.simulation.result import SimulationResult, percentile
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload import TraceError
from tidegate.workload import Workload as ScenarioWorkload
from tidegate.workload.clients.client import Workload
from tidegate.workload.clients.mixed_node import mixed_node_open
from tidegate.workload.clients.scenario import from_scenario

SEED = 1
REQUESTS_PER_SECOND = 3.6
MEASURED_SECONDS = 3_600.0
SENSITIVITY_SHARE = 0.25
"""Of that time, where each constant is varied."""
WARMUP_SECONDS = 200.0
AZURE_SECONDS = 1_800.0
FEWEST_REQUESTS = 100
"""Of a tenant for its P99 to be compared."""
SFQ, TOKENS, ENGINE_TIME = "true SFQ", "Tidegate, unit Tokens", "Tidegate, unit EngineTime"
AZURE = "Azure conversation"


def one_tier(seed: int) -> Workload:
    """All of the node's tenants, in T1."""
    mixed = mixed_node_open(REQUESTS_PER_SECOND, seed)
    clients = tuple(replace(client, tier="t1") for client in mixed.clients)  # type: ignore[type-var]
    return Workload("mixed node, one tier", ("t1",), clients)


def azure(seed: int) -> Workload:
    """Half an hour of conversations."""
    trace = Trace(TraceFormat.AZURE_CSV, "azure2023/AzureLLMInferenceTrace_conv.csv")
    load = TenantLoad("conversation", Arrival(ArrivalProcess.TRACE), tier="t0", trace=trace)
    scenario = Scenario(1, "azure", "llama-70b", AZURE_SECONDS, (load,))
    return from_scenario(ScenarioWorkload(scenario), {}, ("t0",))


def fair(unit: FairnessUnit, work: Workload) -> System:
    """Our scheduler and gate before one engine, between the tenants in that unit."""
    policy = node_policy(work)
    tiers = tuple(
        replace(tier, fairness=replace(tier.fairness, unit=unit), reserved_percent=0)
        for tier in policy.tiers
    )
    system = one_engine(Scheduling.SIDECAR, replace(policy, tiers=tiers, kv_pools=()))
    return System(f"Tidegate, {unit}", system.groups)


def ideal(work: Workload) -> System:
    """Start-time fair queueing that knows every cost."""
    return one_engine(Scheduling.TRUE_SFQ, node_policy(work))


def forecasting(work: Workload) -> System:
    """Ours with the plug-in."""
    return one_engine(Scheduling.TIDEGATE, node_policy(work))


def responses(result: SimulationResult) -> dict[str, float]:
    """P99 of the response of each tenant with enough requests, and of the fluid."""
    measured = [record for record in result.measured() if record.outcome is Outcome.COMPLETED]
    own: dict[str, list[float]] = defaultdict(list)
    for record in measured:
        own[record.tenant].append(record.response_seconds)
    said = {
        f"p99 {tenant}": percentile(values, 99)
        for tenant, values in own.items()
        if len(values) >= FEWEST_REQUESTS
    }
    jobs = [
        FluidJob(
            record.tenant,
            record.arrival,
            true_cost_seconds(
                TP8.step_time, record.prompt_tokens, record.cached_tokens, record.output_tokens
            ),
        )
        for record in measured
    ]
    if jobs:
        # Alone, a request's output takes a step each.
        alone = [
            job.cost / (record.output_tokens * TP8.step_time.seconds(1))
            for job, record in zip(jobs, measured, strict=True)
        ]
        ends = finish_times(jobs, 1.0, job_rate=median(alone))
        taken = [end - job.arrival for end, job in zip(ends, jobs, strict=True)]
        said["p99 fluid"] = percentile(taken, 99)
    said["p99 all"] = percentile([record.response_seconds for record in measured], 99)
    return said


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Three runs of the node, one of the trace."""
    share = 1 / 6 if arguments.quick else SENSITIVITY_SHARE if arguments.sensitivity else 1.0
    duration = WARMUP_SECONDS + share * MEASURED_SECONDS
    runs = [
        Run(SFQ, one_tier, ideal, SEED, duration, WARMUP_SECONDS, responses),
        Run(
            TOKENS, one_tier, partial(fair, FairnessUnit.TOKENS), SEED, duration, WARMUP_SECONDS,
            responses,
        ),
        Run(
            ENGINE_TIME, one_tier, partial(fair, FairnessUnit.ENGINE_TIME), SEED, duration,
            WARMUP_SECONDS, responses,
        ),
    ]  # fmt: skip
    why = ""
    try:
        azure(SEED).clients[0].arrivals().__next__()
        runs.append(Run(AZURE, azure, forecasting, SEED, share * AZURE_SECONDS, 60.0))
    except TraceError as error:
        why = str(error)
    if arguments.sensitivity:
        return model_only(
            sensitivity(runs, lambda done: _figures(_by_key(done), why), arguments.jobs, console)
        )
    done = execute(runs, arguments.jobs, console, "runs")
    return model_only(_figures(_by_key(done), why))


def _by_key(done: Results) -> dict[str, RunSummary]:
    return {key: one for (key, _), one in done.items()}


def _figures(done: dict[str, RunSummary], why: str) -> list[Figure]:
    figures = []
    reference = done[SFQ].extra
    tenants = [name for name in reference if name.startswith("p99 node/")]
    for key in (TOKENS, ENGINE_TIME):
        ours = done[key].extra
        excess = {
            name: 100 * (ours[name] / reference[name] - 1) for name in tenants if name in ours
        }
        worst = max(excess, key=lambda name: excess[name])
        said = f"{worst.removeprefix('p99 ')}; median {median(excess.values()):.2g}%"
        name = f"largest excess of a tenant's P99 response, {key}"
        figures.append(figure(name, excess[worst], "%", Aim("<=", 12), said))
    for key in (SFQ, TOKENS, ENGINE_TIME):
        figures.append(figure(f"P99 response, {key}", done[key].extra["p99 all"], "s"))
    figures.append(figure("P99 response, fluid GPS", reference["p99 fluid"], "s"))
    if AZURE not in done:
        return [*figures, figure("flagged for vft_skew, Azure", None, "%", Aim("<=", 10), why)]
    notes = done[AZURE].extra
    causes = {
        name.removeprefix("skew flagged, "): value
        for name, value in notes.items()
        if name.startswith("skew flagged")
    }
    flagged = 100 * sum(causes.values()) / notes["skew estimates"]
    said = ", ".join(f"{cause} {count:.0f}" for cause, count in causes.items())
    figures.append(figure("flagged for vft_skew, Azure", flagged, "%", Aim("<=", 10), said))
    for percent in (5, 50, 90, 95):
        figures.append(figure(f"vft_skew p{percent}, Azure", notes[f"skew p{percent}"], "ratio"))
    return figures


if __name__ == "__main__":
    sys.exit(benchmark("response", __doc__ or "", measure, options))
