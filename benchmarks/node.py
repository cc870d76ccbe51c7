"""The mixed node of source 000: T0's latency and everybody's throughput, under every policy.

Conversation (T0), agents (T1), batch (T2) and free traffic (T3) on one simulated 8xH100 node with a
70B model in bf16. Time to first token with all queueing; whoever is refused or never starts is a
miss. `x alone` is T0's P99 over that of the same T0 requests with the node to themselves (same
seed). Five seeds; for each aim the worst seed is the figure; rivals without an aim run for less
time and on the first. What else there is to know (T0's time per output token and response, which
sharing a batch must lengthen) is in the table above.

The static partition is the best of all ways to serve the four tiers with two TP4 engines: the one
that completes most requests per second, of those that serve T0 and T1 as they come (in a closed
loop one that lets conversations queue without end completes the most, of free traffic).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from node_systems import (
    AMPLE,
    FCFS,
    OURS,
    OURS_60,
    OURS_80,
    OURS_100,
    SINGLE,
    apart,
    by_draft,
    single,
)
from node_table import print_table
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from sensitivity import sensitivity
from simulated import (
    SEEDS,
    SLO_SECONDS,
    Results,
    Run,
    RunSummary,
    execute,
    model_only,
    options,
)

from tidegate.simulator.simulation import node_policy as node
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload.clients.client import Workload
from tidegate.workload.clients.mixed_node import FULL, HALF, TIERS, MixedLoad, mixed_node

MEASURED_SECONDS = 4_000.0
"""So that at least 1,300 requests of T0 arrive."""
RIVAL_SHARE = 0.4
"""Of that time, for systems that no aim is about."""
HALF_SHARE = 1.7
"""Of it at half load, where T0's requests come half as often."""
SENSITIVITY_SECONDS = 600.0
"""Of that time, where each constant is varied; one seed."""
WARMUP_SECONDS = 200.0
T3_RESERVED = 0.10
NEEDED_T0_REQUESTS = 1_300

ALONE = "T0 alone"


def workload(load: MixedLoad, only: tuple[str, ...], seed: int) -> Workload:
    """The node's traffic, or some tiers of it."""
    mixed = mixed_node(load, seed)
    return mixed.only(*only) if only else mixed


AT_FULL = tuple(SINGLE)
JUDGED = (FCFS, OURS, OURS_100)
"""Those that an aim is about."""
AT_HALF = (FCFS, OURS, OURS_80, OURS_60)
JUDGED_AT_HALF = (FCFS, OURS_80)


class Plan:
    """The runs of one invocation."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.quick: bool = arguments.quick
        self.jobs: int = arguments.jobs
        one = self.quick or arguments.sensitivity
        self.seeds: Sequence[int] = arguments.seeds or (SEEDS[:1] if one else SEEDS)
        self.measured_seconds = MEASURED_SECONDS / 6 if self.quick else MEASURED_SECONDS
        if arguments.sensitivity:
            self.measured_seconds = SENSITIVITY_SECONDS

    def runs(
        self,
        key: str,
        load: MixedLoad,
        system: Callable[[Workload], System],
        only: tuple[str, ...] = (),
        *,
        seeds: Sequence[int] | None = None,
        share: float = 1.0,
    ) -> list[Run]:
        """One for each seed, over ``share`` of the time."""
        return [
            Run(
                key,
                partial(workload, load, only),
                system,
                seed,
                WARMUP_SECONDS + share * self.measured_seconds,
                WARMUP_SECONDS,
            )
            for seed in seeds or self.seeds
        ]

    def alone(self, key: str, load: MixedLoad, share: float = 1.0) -> list[Run]:
        """T0 with the node to itself."""
        system = partial(single, Scheduling.FCFS, key, node.TP8)
        return self.runs(key, load, system, ("t0",), share=share)


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs every policy at full load, ours at half, and the search for the best split."""
    plan = Plan(arguments)
    if arguments.sensitivity:
        return model_only(_sensitivity(plan, console))
    names = arguments.only or AT_FULL
    runs = plan.alone(ALONE, FULL)
    for name in names:
        judged = name in JUDGED or bool(arguments.only)
        runs += plan.runs(
            name,
            FULL,
            partial(SINGLE[name], node.TP8),
            seeds=plan.seeds if judged else plan.seeds[:1],
            share=1.0 if judged or name == AMPLE else RIVAL_SHARE,
        )
    if not arguments.only:
        runs += plan.runs(
            "2 x TP4 by draft", FULL, by_draft, seeds=plan.seeds[:1], share=RIVAL_SHARE
        )
        runs += plan.alone(f"{ALONE}, half load", HALF, HALF_SHARE)
        for name in AT_HALF:
            seeds = plan.seeds if name != OURS_60 else plan.seeds[:1]
            system = partial(SINGLE[name], node.TP8)
            runs += plan.runs(f"{name}, half load", HALF, system, seeds=seeds, share=HALF_SHARE)
    done = execute(runs, plan.jobs, console, "mixed node")
    best = ""
    if not arguments.only:
        best, system = _best_split(plan, console, 0.25)
        done |= execute(plan.runs(best, FULL, system), plan.jobs, console, f"best split {best}")
    print_table(done, plan.seeds, console)
    return model_only(_figures(done, plan.seeds, best))


def _sensitivity(plan: Plan, console: Console) -> list[Figure]:
    """The runs that aims are about, shortened; the best split is that of the constants given."""
    best, system = _best_split(plan, console, 1.0)
    runs = plan.alone(ALONE, FULL) + plan.runs(best, FULL, system)
    for name in JUDGED:
        runs += plan.runs(name, FULL, partial(SINGLE[name], node.TP8))
    runs += plan.alone(f"{ALONE}, half load", HALF)
    for name in JUDGED_AT_HALF:
        runs += plan.runs(f"{name}, half load", HALF, partial(SINGLE[name], node.TP8))

    def figures(done: Results) -> list[Figure]:
        # Of the run itself, not of the engine.
        own = ("T0 requests", "simulator, production step plan")
        return [one for one in _figures(done, plan.seeds, best) if one.name not in own]

    return sensitivity(runs, figures, plan.jobs, console)


def _best_split(
    plan: Plan, console: Console, share: float
) -> tuple[str, Callable[[Workload], System]]:
    """The static partition that completes most; searched on one seed."""
    ways = {
        " | ".join("+".join(part) for part in parts): partial(apart, parts, node.TP4)
        for parts in node.splits_in_two(TIERS)
    }
    seed = plan.seeds[0]
    runs = [
        run
        for key, system in ways.items()
        for run in plan.runs(key, FULL, system, seeds=[seed], share=share)
    ]
    tried = execute(runs, plan.jobs, console, "static partitions")

    def serves(summary: RunSummary) -> bool:
        return all(summary.tiers[tier].ttft_p50 <= SLO_SECONDS for tier in ("t0", "t1"))

    ordered = sorted(tried.items(), key=lambda each: -each[1].completed_per_second)
    for (key, _), summary in ordered:
        p50 = ", ".join(f"{tier} {summary.tiers[tier].ttft_p50:.3g} s" for tier in ("t0", "t1"))
        console.print(
            f"2 x TP4, {key}: {summary.completed_per_second:.2f} requests/s, TTFT p50 {p50}",
            style="dim",
        )
    best = next(key for (key, _), summary in ordered if serves(summary))
    return best, ways[best]


def _times_alone(done: Results, seed: int, key: str, alone: str = ALONE) -> float:
    return done[key, seed].tiers["t0"].ttft_p99 / done[alone, seed].tiers["t0"].ttft_p99


def _of(done: Results, seed: int, key: str, other: str) -> float:
    return done[key, seed].completed_per_second / done[other, seed].completed_per_second


def _made_of(done: Results, seed: int, key: str, alone: str = ALONE) -> str:
    """What T0's slowest first tokens are made of, beside its P99 alone."""
    t0 = done[key, seed].tiers["t0"]
    return (
        f"alone {done[alone, seed].tiers['t0'].ttft_p99:.3f} s; slowest 2% wait "
        f"{t0.slowest_waited:.3f} s for a step and take {t0.slowest_computed:.3f} s"
    )


def _by_tier(done: Results, seed: int) -> str:
    """Requests per second of each tier, ours over FCFS's: what the sum is made of."""
    ours, fcfs = done[OURS, seed].tiers, done[FCFS, seed].tiers
    ratios = {t: ours[t].completed_per_second / fcfs[t].completed_per_second for t in fcfs}
    return "by tier " + ", ".join(f"{tier} {ratio:.3g}" for tier, ratio in ratios.items())


def _figures(done: Results, seeds: Sequence[int], best: str) -> list[Figure]:
    def worst(
        name: str, unit: str, aim: Aim | None, value: Callable[[int], float], why: str = ""
    ) -> Figure:
        values = [value(seed) for seed in (seeds if aim is not None else seeds[:1])]
        highest_is_worst = aim is None or aim.op == "<="
        figure_value = max(values) if highest_is_worst else min(values)
        said = f"seeds: {', '.join(f'{each:.3g}' for each in values)}"
        return figure(name, figure_value, unit, aim, f"{why}; {said}" if why else said)

    def have(*keys: str) -> bool:
        return all((key, seeds[0]) in done for key in keys)

    figures: list[Figure] = []
    if have(OURS):
        figures += [
            worst(
                "T0 P99", "x alone", Aim("<=", 2.0), lambda s: _times_alone(done, s, OURS),
                _made_of(done, seeds[0], OURS),
            ),
            worst(
                "T0 within 800 ms", "%", Aim(">=", 99.5),
                lambda s: 100 * done[OURS, s].tiers["t0"].within_slo,
            ),
            worst(
                "T3 of the tokens computed", "%", Aim(">=", 100 * T3_RESERVED),
                lambda s: 100 * done[OURS, s].tiers["t3"].computed_share,
            ),
            worst(
                "T0 requests", "", Aim(">=", NEEDED_T0_REQUESTS),
                lambda s: done[OURS, s].tiers["t0"].requests,
            ),
            worst(
                "simulator, production step plan", "x real time", Aim(">=", 60),
                lambda s: done[OURS, s].simulated_seconds / done[OURS, s].processor_seconds,
            ),
        ]  # fmt: skip
    for name in AT_FULL:
        if have(name) and name != OURS:
            figures.append(
                worst(
                    f"T0 P99, {name}", "x alone",
                    Aim("<=", 1.65) if name == OURS_100 else None,
                    lambda s, name=name: _times_alone(done, s, name),  # type: ignore[misc]
                )
            )  # fmt: skip
    if have(OURS, FCFS):
        figures.append(
            worst(
                "requests/s",
                "of FCFS",
                Aim(">=", 1.10),
                lambda s: _of(done, s, OURS, FCFS),
                _by_tier(done, seeds[0]),
            )
        )
    if have(AMPLE, FCFS):
        figures.append(
            worst(f"requests/s, {AMPLE}", "of FCFS", None, lambda s: _of(done, s, AMPLE, FCFS))
        )
    if have(OURS_100, FCFS):
        figures.append(
            worst(
                f"requests/s, {OURS_100}", "of FCFS", Aim(">=", 1.0),
                lambda s: _of(done, s, OURS_100, FCFS),
            )
        )  # fmt: skip
    if best and have(OURS, best):
        figures.append(
            worst(
                "requests/s", "of the best split", Aim(">=", 1.38),
                lambda s: _of(done, s, OURS, best), best,
            )
        )  # fmt: skip
    if best and have(AMPLE, best):
        figures.append(
            worst(
                f"requests/s, {AMPLE}",
                "of the best split",
                None,
                lambda s: _of(done, s, AMPLE, best),
            )
        )
    half_fcfs = f"{FCFS}, half load"
    for name in (OURS_80, OURS_60):
        half, judged = f"{name}, half load", name in JUDGED_AT_HALF
        if not have(half, half_fcfs):
            continue
        figures += [
            worst(
                f"T0 P99, {half}", "x alone", Aim("<=", 1.25) if judged else None,
                lambda s, half=half: _times_alone(done, s, half, f"{ALONE}, half load"),  # type: ignore[misc]
                _made_of(done, seeds[0], half, f"{ALONE}, half load"),
            ),
            worst(
                f"requests/s, {half}", "of FCFS", Aim(">=", 0.99) if judged else None,
                lambda s, half=half: _of(done, s, half, half_fcfs),  # type: ignore[misc]
            ),
        ]  # fmt: skip
    if have("2 x TP4 by draft"):
        figures += [
            worst(
                "T0 P99, 2 x TP4 by draft", "x alone", None,
                lambda s: _times_alone(done, s, "2 x TP4 by draft"),
            ),
            worst(
                "requests/s, 2 x TP4 by draft", "of FCFS", None,
                lambda s: _of(done, s, "2 x TP4 by draft", FCFS),
            ),
        ]  # fmt: skip
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    options(parser)
    parser.add_argument("--only", nargs="*", choices=SINGLE, help="policies; unset: all")
    parser.add_argument("--seeds", nargs="*", type=int, help="unset: 1 to 5")


if __name__ == "__main__":
    sys.exit(benchmark("node", __doc__ or "", measure, add_options))
