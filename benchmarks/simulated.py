"""Runs of the simulator for the benchmarks: described, spread over processes, boiled down.

A run is named by plain values, so that it can be sent to another process; what comes back is a
summary, since the records of a simulated hour are too much to send. Percentiles are over all
requests that arrived in the measured part: refused ones and those that never started count as
slowest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import mean

from report import Figure
from rich.console import Console
from rich.progress import track

from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.simulation.result import RequestRecord, SimulationResult, percentile
from tidegate.simulator.simulation.system import EngineGroup, System, simulate
from tidegate.workload.clients.client import Workload

SLO_SECONDS = 0.8
"""Source 000: T0's promise."""
SEEDS = (1, 2, 3, 4, 5)
DRAFT_PASS, DRAFT_ACCEPTANCE = "draft_pass_seconds", "draft_acceptance_percent"
DRAFT_CONSTANTS = (DRAFT_PASS, DRAFT_ACCEPTANCE)
"""What can be varied of a draft, beside the constants of the engine model."""


@dataclass(frozen=True, slots=True)
class TierSummary:
    """What one tier got in one run; seconds."""

    requests: int
    ttft_p50: float
    ttft_p99: float
    within_slo: float
    """Share of requests with a first token within ``SLO_SECONDS``."""
    response_p99: float
    seconds_per_token: float
    """Mean over completed requests."""
    itl_p99: float
    """Of the requests' longest gaps between two tokens."""
    completed_per_second: float
    computed_share: float
    """Of all tokens that the engine computed in the measured part."""
    slowest_waited: float = 0.0
    """Of those that started, the slowest 2%: mean time to the first step of their own."""
    slowest_computed: float = 0.0
    """And from there to the first token."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run."""

    system: str
    workload: str
    seed: int
    tiers: dict[str, TierSummary]
    completed_per_second: float
    tokens_per_second: float
    """Generated."""
    in_flight: float
    """Mean number of requests that had arrived and not ended."""
    hit_ratio: float
    preemptions: int
    recomputed_tokens: int
    steps: int
    simulated_seconds: float
    processor_seconds: float
    """What the run took: its speed on a core to itself."""
    extra: dict[str, float] = field(default_factory=dict)


Results = dict[tuple[str, int], RunSummary]
"""By key of the run and seed."""
Extra = Callable[[SimulationResult], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run to make. ``system`` and ``workload`` are module-level functions, or partials."""

    key: str
    workload: Callable[[int], Workload]
    """By seed."""
    system: Callable[[Workload], System]
    seed: int
    duration_seconds: float
    warmup_seconds: float
    extra: Extra | None = None
    constant: str | None = None
    """Of the engine model, to be multiplied by ``factor``."""
    factor: float = 1.0

    def built(self, workload: Workload) -> System:
        """The system, with that constant varied in all of its engines."""
        system = self.system(workload)
        if self.constant is None:
            return system
        groups = tuple(_varied(group, self.constant, self.factor) for group in system.groups)
        return System(system.name, groups)


def _varied(group: EngineGroup, constant: str, factor: float) -> EngineGroup:
    if constant not in DRAFT_CONSTANTS:
        varied = group.calibration.scaled_constant(constant, factor)
        return replace(group, calibration=varied)
    draft = group.speculation
    if draft is None:
        return group
    if constant == DRAFT_PASS:
        return replace(group, speculation=replace(draft, pass_time=draft.pass_time.scaled(factor)))
    accepted = {kind: factor * percent for kind, percent in draft.acceptance_percent.items()}
    return replace(group, speculation=replace(draft, acceptance_percent=accepted))


def options(parser: argparse.ArgumentParser) -> None:
    """What all simulated benchmarks take."""
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument(
        "--quick", action="store_true", help="one seed and a sixth of the time, for development"
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="instead: shortened runs with each constant of the engine model at 0.8 and 1.2",
    )


def execute(runs: Sequence[Run], jobs: int, console: Console, what: str) -> Results:
    """All runs."""
    done: Results = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        # The slowest last would leave the others idle; the order given is kept otherwise.
        for run, summary in track(
            pool.imap_unordered(_execute, runs), what, total=len(runs), console=console
        ):
            done[run.key, run.seed] = summary
    return done


def model_only(figures: Sequence[Figure]) -> list[Figure]:
    """Marked: no such engine was compared with the model (`scripts/bench fidelity`)."""
    return [replace(one, why=f"model only; {one.why}".rstrip("; ")) for one in figures]


def _execute(run: Run) -> tuple[Run, RunSummary]:
    workload = run.workload(run.seed)
    start = time.process_time()
    result = simulate(
        run.built(workload),
        workload,
        seed=run.seed,
        duration_seconds=run.duration_seconds,
        warmup_seconds=run.warmup_seconds,
    )
    return run, summarize(result, time.process_time() - start, run.extra)


def summarize(
    result: SimulationResult, processor_seconds: float, extra: Extra | None = None
) -> RunSummary:
    """What the figures need of a run."""
    engines = result.engines
    shares = _computed_shares(result)
    measured = [sample for sample in result.samples if sample.time >= result.warmup_seconds]
    in_flight = sum(sum(s.queued.values()) + sum(s.running.values()) for s in measured)
    return RunSummary(
        system=result.policy,
        workload=result.workload,
        seed=result.seed,
        tiers={
            tier: _tier(result, tier, records, shares.get(tier, 0.0))
            for tier in result.tiers
            if (records := result.measured(tier))
        },
        completed_per_second=result.completed_per_second(),
        tokens_per_second=engines.generation_tokens / result.duration_seconds,
        in_flight=in_flight / max(1, len(measured)),
        hit_ratio=engines.prefix_hits_tokens / max(1, engines.prefix_queries_tokens),
        preemptions=engines.preemptions,
        recomputed_tokens=engines.recomputed_tokens,
        steps=engines.steps,
        simulated_seconds=result.duration_seconds,
        processor_seconds=processor_seconds,
        extra={**result.notes, **(extra(result) if extra is not None else {})},
    )


def _tier(
    result: SimulationResult, tier: str, records: Sequence[RequestRecord], share: float
) -> TierSummary:
    # The last arrivals of a run could not have completed; a first token comes in time.
    ttft = [record.ttft_seconds for record in settled(result, records)]
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    gaps = [gap for record in completed if (gap := record.seconds_per_output_token) is not None]
    slow = slowest(records)
    return TierSummary(
        requests=len(ttft),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        within_slo=sum(seconds <= SLO_SECONDS for seconds in ttft) / len(ttft),
        response_p99=percentile([r.response_seconds for r in completed], 99) if completed else 0.0,
        seconds_per_token=sum(gaps) / len(gaps) if gaps else 0.0,
        itl_p99=percentile([r.itl_max_seconds for r in completed], 99) if completed else 0.0,
        completed_per_second=result.completed_per_second(tier),
        computed_share=share,
        slowest_waited=mean(waited for waited, _ in slow) if slow else 0.0,
        slowest_computed=mean(computed for _, computed in slow) if slow else 0.0,
    )


def slowest(records: Sequence[RequestRecord], percent: float = 2.0) -> list[tuple[float, float]]:
    """What the slowest first tokens are made of: waiting for the first step, and the steps."""
    parts = [
        (r.first_scheduled - r.arrival, r.first_token - r.first_scheduled)
        for r in records
        if r.first_scheduled is not None and r.first_token is not None
    ]
    parts.sort(key=sum)
    return parts[len(parts) - ceil(len(parts) * percent / 100) :]


def settled(result: SimulationResult, records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Without those that arrived in the last 2 s and still wait: the run ended too early to say."""
    last = result.duration_seconds - 2.0
    kept = [r for r in records if r.first_token is not None or r.arrival <= last]
    return kept or list(records)


def _computed_shares(result: SimulationResult) -> dict[str, float]:
    if len(result.samples) < 2:
        return {}
    first = next(s for s in result.samples if s.time >= result.warmup_seconds)
    last = result.samples[-1]
    took = {t: last.service_tokens[t] - first.service_tokens[t] for t in result.tiers}
    total = sum(took.values())
    return {tier: tokens / total for tier, tokens in took.items()} if total else {}
