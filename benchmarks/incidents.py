"""The four incidents of source 000, before and after: the same arrivals, the same constants.

A  Long prompts starve short ones: T1's P99 beside 32K prompts, over that of the same run without;
   sessions whose history they pushed out of the prefix cache.
B  A KV avalanche: sixty batch prompts of 16..32K within five seconds on the mixed node; T0's P99 of
   what arrives within 90 s of a burst, tokens computed twice, T0's prefix hits.
C  A draft that does not fit: throughput and T0's time per token, with the acceptances given.
D  Prompts of 200K tokens, for half the run: T1's worst minute in it, over its worst minute before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from incident_readings import in_bursts, lost_histories, minutes
from node_systems import DRAFT_TOKENS, by_draft, single
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from rich.table import Table
from sensitivity import sensitivity
from simulated import SEEDS, Results, Run, RunSummary, execute, model_only, options

from tidegate.scheduling.contracts import OnExceed, Policy, PromptLimit
from tidegate.simulator.engine_model import DRAFTS, Speculation
from tidegate.simulator.simulation import node_policy as node
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload.clients import incidents
from tidegate.workload.clients.client import Workload

DURATION_SECONDS = 3_600.0
SENSITIVITY_SECONDS = 700.0
DRAFT_SENSITIVITY_SECONDS = 400.0
"""Of each run where each constant is varied: two bursts of incident B; of C's."""
PAST_HOLD_SECONDS = 700.0
"""A's runs begin to count when a cache that is never hit is no longer kept (600 s)."""
WARMUP_SECONDS = 100.0

FCFS, PRIORITY, OURS = "vLLM FCFS", "vLLM priority", "Tidegate"
CAPPED = "Tidegate, steps <= 100 ms"
AS_TIME = "Tidegate, budget as time"
LIMITED, LIMITED_AS_TIME = "Tidegate, prompt limits", "Tidegate, prompt limits, budget as time"


# --- workloads and systems, by name, so that they can be sent to another process


def long_prompts(with_them: bool, short: bool, seed: int) -> Workload:
    """Incident A."""
    work = incidents.long_prompts(seed, short)
    return work if with_them else work.without(incidents.LONG_PROMPTS)


def avalanche(with_bursts: bool, seed: int) -> Workload:
    """Incident B."""
    work = incidents.avalanche(seed)
    return work if with_bursts else work.without("t2")


def poison(tier: str, duration_seconds: float, seed: int) -> Workload:
    """Incident D."""
    return incidents.poison(seed, duration_seconds / 2, tier)


def one_class(work: Workload) -> System:
    """Before A: 512 tokens a step, T1 and T2 in one class, T0 above them."""
    policy = node_policy(work)
    tiers = tuple(
        replace(tier, priority=0) if tier.name in ("t1", "t2") else tier for tier in policy.tiers
    )
    return one_engine(
        Scheduling.PRIORITY, replace(policy, tiers=tiers), name=PRIORITY, max_num_batched_tokens=512
    )


def with_draft(
    scheduling: Scheduling, draft: str, tiers: tuple[str, ...], work: Workload
) -> System:
    """One TP8 engine with a draft for some tiers; none: for all."""
    system = one_engine(scheduling, node_policy(work), name=f"{scheduling}, {draft} draft")
    group = replace(
        system.groups[0],
        speculation=Speculation.head(DRAFTS[f"{draft}_tp8"], DRAFT_TOKENS),
        drafted_tiers=frozenset(tiers) if tiers else None,
    )
    return System(system.name, (group,))


def limited(as_time: bool, work: Workload) -> System:
    """After D: the limits of source 000 in front (T0 and T1 up to 32K)."""
    policy = with_prompt_limits(node_policy(work))
    plugin = PluginOptions(knows_step_time=as_time)
    return one_engine(Scheduling.TIDEGATE, policy, name=OURS, plugin=plugin)


def with_prompt_limits(policy: Policy) -> Policy:
    """T0 and T1 over 32K are refused with 413; T3 has no cap."""
    limit = PromptLimit(max_tokens=32_768, on_exceed=OnExceed.REJECT)
    return replace(
        policy,
        tiers=tuple(
            replace(tier, prompt_limit=limit) if tier.name in ("t0", "t1") else tier
            for tier in policy.tiers
        ),
    )


SYSTEMS: dict[str, Callable[[Workload], System]] = {
    FCFS: partial(single, Scheduling.FCFS, FCFS, node.TP8),
    PRIORITY: partial(single, Scheduling.PRIORITY, PRIORITY, node.TP8),
    OURS: partial(single, Scheduling.TIDEGATE, OURS, node.TP8),
    "one class, 512": one_class,
    "shared draft": partial(with_draft, Scheduling.FCFS, "shared", ()),
    "Tidegate, shared draft": partial(with_draft, Scheduling.TIDEGATE, "shared", ()),
    "Tidegate, chat draft for T0, T1": partial(
        with_draft, Scheduling.TIDEGATE, "chat", ("t0", "t1")
    ),
    "Tidegate, 2 x TP4 by draft": by_draft,
    LIMITED: partial(limited, False),
    LIMITED_AS_TIME: partial(limited, True),
    AS_TIME: partial(
        single, Scheduling.TIDEGATE, AS_TIME, node.TP8, plugin=PluginOptions(knows_step_time=True)
    ),
    CAPPED: partial(
        single, Scheduling.TIDEGATE, CAPPED, node.TP8, plugin=PluginOptions(step_seconds_cap=0.1)
    ),
}

CASES: dict[str, tuple[Callable[[int], Workload], tuple[str, ...]]] = {
    "A": (
        partial(long_prompts, True, False),
        ("one class, 512", FCFS, PRIORITY, OURS, CAPPED, AS_TIME),
    ),
    "A without": (partial(long_prompts, False, False), ("one class, 512", OURS, CAPPED, AS_TIME)),
    "A, short prompts": (partial(long_prompts, True, True), ("one class, 512", OURS, CAPPED)),
    "A, short prompts, without": (
        partial(long_prompts, False, True),
        ("one class, 512", OURS, CAPPED),
    ),
    "B": (partial(avalanche, True), (FCFS, PRIORITY, OURS)),
    "B without": (partial(avalanche, False), (OURS,)),
    "C": (
        incidents.drafts,
        (
            FCFS,
            "shared draft",
            OURS,
            "Tidegate, shared draft",
            "Tidegate, chat draft for T0, T1",
            "Tidegate, 2 x TP4 by draft",
        ),
    ),
}
EXTRAS = {
    "A": lost_histories,
    "A without": lost_histories,
    "B": in_bursts,
    "B without": in_bursts,
}
POISONED = {
    "D, T1 sends it": ("t1", (PRIORITY, LIMITED, OURS)),
    "D, T3 sends it": ("t3", (PRIORITY, LIMITED, LIMITED_AS_TIME)),
}


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """All cases on their systems."""
    seeds = SEEDS[:1] if arguments.quick or arguments.sensitivity else SEEDS
    duration = DURATION_SECONDS / (3 if arguments.quick else 1)
    if arguments.sensitivity:
        return model_only(_sensitivity(arguments, console))
    done = execute(_runs(arguments.only, seeds, duration), arguments.jobs, console, "incidents")
    _print(done, seeds, console)
    return model_only(_figures(done, seeds))


def _sensitivity(arguments: argparse.Namespace, console: Console) -> list[Figure]:
    """One seed of what figures of ours are made of; a draft's constants in C alone."""
    seeds, figures = SEEDS[:1], list[Figure]()
    for drafted, seconds in ((False, SENSITIVITY_SECONDS), (True, DRAFT_SENSITIVITY_SECONDS)):
        runs = [
            run
            for run in _runs(arguments.only, seeds, seconds)
            if drafted == (run.key[0] == "C") and (drafted or _is_judged(run.key))
        ]
        runs = [_past_hold(run) if run.key[0] == "A" else run for run in runs]
        if runs:
            figures += sensitivity(
                runs,
                lambda done: _figures(done, seeds),
                arguments.jobs,
                console,
                with_drafts=drafted,
            )
    return figures


def _past_hold(run: Run) -> Run:
    return replace(
        run,
        duration_seconds=PAST_HOLD_SECONDS + SENSITIVITY_SECONDS,
        warmup_seconds=PAST_HOLD_SECONDS,
    )


def _is_judged(key: str) -> bool:
    """Whether a figure of ours needs the run."""
    case, name = key.split(": ")
    return name in (OURS, LIMITED) or (case == "B" and name in (PRIORITY, FCFS))


def _runs(only: Sequence[str] | None, seeds: Sequence[int], duration: float) -> list[Run]:
    runs: list[Run] = []
    for case, (work, names) in CASES.items():
        extra = EXTRAS.get(case)
        for name in names:
            runs += [
                Run(f"{case}: {name}", work, SYSTEMS[name], seed, duration, WARMUP_SECONDS, extra)
                for seed in seeds
            ]
    for case, (tier, names) in POISONED.items():
        work = partial(poison, tier, duration)
        for name in names:
            runs += [
                Run(f"{case}: {name}", work, SYSTEMS[name], seed, duration, WARMUP_SECONDS, minutes)
                for seed in seeds
            ]
    return [run for run in runs if not only or run.key[0] in only]


def _print(done: Results, seeds: Sequence[int], console: Console) -> None:
    table = Table(title="incidents, worst seed; seconds", title_justify="left")
    for name in (
        "case", "T0 p50", "T0 p99", "T1 p50", "T1 p99", "T2 p99", "T3 p99", "T0 ms/token", "req/s",
        "tokens/s", "preempted", "recomputed", "own",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name in ("case", "own") else "right")
    for key in dict.fromkeys(key for key, _ in done):
        rows = [done[key, seed] for seed in seeds]

        def worst(tier: str, field: str, rows: list[RunSummary] = rows) -> str:
            values = [getattr(row.tiers[tier], field) for row in rows if tier in row.tiers]
            return f"{max(values):.3g}" if values else "-"

        shown = ", ".join(
            f"{name} {max(row.extra[name] for row in rows):.3g}"
            for name in rows[0].extra
            if not name.startswith(("gate", "vetoed"))  # of some seeds only
        )
        table.add_row(
            key,
            worst("t0", "ttft_p50"),
            worst("t0", "ttft_p99"),
            worst("t1", "ttft_p50"),
            worst("t1", "ttft_p99"),
            worst("t2", "ttft_p99"),
            worst("t3", "ttft_p99"),
            f"{1000 * max(row.tiers['t0'].seconds_per_token for row in rows):.0f}",
            f"{min(row.completed_per_second for row in rows):.2f}",
            f"{min(row.tokens_per_second for row in rows):,.0f}",
            f"{max(row.preemptions for row in rows)}",
            f"{max(row.recomputed_tokens for row in rows):,}",
            shown,
        )
    console.print(table)


def _figures(done: Results, seeds: Sequence[int]) -> list[Figure]:
    def each(name: str, unit: str, aim: Aim | None, value: Callable[[int], float]) -> Figure:
        values = [value(seed) for seed in seeds]
        shown = max(values) if aim is None or aim.op == "<=" else min(values)
        said = f"seeds: {', '.join(f'{one:.3g}' for one in values)}"
        return figure(name, shown, unit, aim, said)

    def have(*keys: str) -> bool:
        return all((key, seeds[0]) in done for key in keys)

    figures: list[Figure] = []
    for case, base in (("A", "A without"), ("A, short prompts", "A, short prompts, without")):
        for name in (OURS, CAPPED, AS_TIME, "one class, 512"):
            if not have(f"{case}: {name}", f"{base}: {name}"):
                continue
            aim = Aim("<=", 1.2) if case == "A" and name == OURS else None
            key, other = f"{case}: {name}", f"{base}: {name}"
            figures += [
                each(
                    f"{key}, T1 P99", "x without long prompts", aim,
                    lambda s, key=key, other=other: done[key, s].tiers["t1"].ttft_p99  # type: ignore[misc]
                    / done[other, s].tiers["t1"].ttft_p99,
                ),
                each(
                    f"{key}, T1 P99", "s", None,
                    lambda s, key=key: done[key, s].tiers["t1"].ttft_p99,  # type: ignore[misc]
                ),
            ]  # fmt: skip
    if have(f"B: {OURS}", f"B: {PRIORITY}"):
        figures += _b_figures(done, each)
    if have(f"C: {OURS}", f"C: {FCFS}"):
        figures += _c_figures(done, each)
    for case in POISONED:
        for name in (PRIORITY, LIMITED, LIMITED_AS_TIME, OURS):
            key = f"{case}: {name}"
            if have(key):
                aim = Aim("<=", 1.2) if name == LIMITED else None
                figures.append(
                    each(
                        f"{key}, T1's worst minute", "x its worst before", aim,
                        lambda s, key=key: done[key, s].extra["t1 worst minute after"]  # type: ignore[misc]
                        / done[key, s].extra["t1 worst minute before"],
                    )
                )  # fmt: skip
    return figures


Each = Callable[[str, str, Aim | None, Callable[[int], float]], Figure]


def _b_figures(done: Results, each: Each) -> list[Figure]:
    ours, priority = f"B: {OURS}", f"B: {PRIORITY}"

    def fewer(seed: int) -> float:
        before = done[priority, seed].recomputed_tokens
        return 100 * (1 - done[ours, seed].recomputed_tokens / before) if before else 100.0

    return [
        each(
            "B: T0 P99 in the avalanche", "s", Aim("<=", 0.5),
            lambda s: done[ours, s].extra["t0 p99 in bursts"],
        ),
        *(
            each(
                f"B: T0 P99 in the avalanche, {name}", "s", None,
                lambda s, name=name: done[f"B: {name}", s].extra["t0 p99 in bursts"],  # type: ignore[misc]
            )
            for name in (PRIORITY, FCFS)
        ),
        each("B: recomputed tokens, down from vLLM priority", "%", Aim(">=", 95), fewer),
        each(
            "B: T0's prefix hits", "of those without bursts", Aim(">=", 0.9),
            lambda s: done[ours, s].extra["t0 hits"]
            / done[f"B without: {OURS}", s].extra["t0 hits"],
        ),
    ]  # fmt: skip


def _c_figures(done: Results, each: Each) -> list[Figure]:
    figures = []
    for name in CASES["C"][1][1:]:
        key = f"C: {name}"
        base = f"C: {OURS}" if name.startswith(OURS) and name != OURS else f"C: {FCFS}"
        against = base.removeprefix("C: ")
        figures += [
            each(
                f"{key}, generated tokens/s", f"of {against} without draft", None,
                lambda s, key=key, base=base: done[key, s].tokens_per_second  # type: ignore[misc]
                / done[base, s].tokens_per_second,
            ),
            each(
                f"{key}, T0's time per token", f"of {against} without draft", None,
                lambda s, key=key, base=base: done[key, s].tiers["t0"].seconds_per_token  # type: ignore[misc]
                / done[base, s].tiers["t0"].seconds_per_token,
            ),
        ]  # fmt: skip
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    options(parser)
    parser.add_argument("--only", nargs="*", choices=("A", "B", "C", "D"), help="unset: all")


if __name__ == "__main__":
    sys.exit(benchmark("incidents", __doc__ or "", measure, add_options))
