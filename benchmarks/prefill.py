"""How much of a step prefills may take: T0's P99 against throughput, swept; and who is preempted.

The mixed node of `scripts/bench node` at full load, one seed. Swept are the prefill budget in
percent of 8,192 tokens and, in its place, a cap on the step's predicted time; each with lower tiers
standing back for protected prompts and without. The knee is the smallest budget that completes at
least 99% of the most requests of the sweep. Victim rules are compared where KV is short all the
time: 55 batch requests of 8..32K with outputs of 1,500 always under way.

`--plot FOLDER` draws T0's P99 against throughput there, as prefill-budget.svg.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from node_systems import single
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from rich.table import Table
from sensitivity import sensitivity
from simulated import Results, Run, RunSummary, execute, model_only, options

from tidegate.scheduling.contracts import PrefillLimits
from tidegate.simulator.simulation import node_policy as node
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload.clients.client import ClosedClient, Workload, log_normal
from tidegate.workload.clients.mixed_node import FULL, T2_PROMPT, mixed_node, tenants_of

SEED = 1
MEASURED_SECONDS = 1_400.0
SENSITIVITY_SECONDS = 200.0
"""Of the sweep's time, where each constant is varied."""
WARMUP_SECONDS = 200.0
BUDGETS = (5, 10, 15, 20, 25, 30, 40, 50, 60)
CAPS_MS = (60, 80, 100, 120, 160)
DEFAULT_BUDGET = 30
KNEE_RATIO = 0.99
OVERCOMMIT_SECONDS = 600.0
OVERCOMMITTED_T2 = 55

SERIES = {
    "budget": "budget, lower tiers stand back",
    "budget, no pause": "budget",
    "cap": "step time, lower tiers stand back",
    "cap, no pause": "step time",
}


def budgeted(percent: int, pause: bool, work: Workload) -> System:
    """Our policy with that budget."""
    return single(
        Scheduling.TIDEGATE,
        f"budget {percent}%",
        node.TP8,
        work,
        plugin=PluginOptions(pause=pause),
        prefill=PrefillLimits(budget_percent=percent),
    )


def capped(milliseconds: int, pause: bool, work: Workload) -> System:
    """Our policy with steps of at most that time."""
    options = PluginOptions(pause=pause, step_seconds_cap=milliseconds / 1_000)
    return single(Scheduling.TIDEGATE, f"cap {milliseconds} ms", node.TP8, work, plugin=options)


def full_load(seed: int) -> Workload:
    """The mixed node."""
    return mixed_node(FULL, seed)


def overcommitted(seed: int) -> Workload:
    """The mixed node with more of T2 under way than the KV cache can hold."""
    work = mixed_node(FULL, seed)
    batch = ClosedClient(
        "t2",
        "t2",
        tenants_of("t2"),
        OVERCOMMITTED_T2,
        T2_PROMPT,
        log_normal(1_500, 0.3, 3_000),
        seed,
        kind="code",
        spread_seconds=30.0,
    )
    others = tuple(client for client in work.clients if client.name != "t2")
    return replace(work, name="KV over-committed", clients=(*others, batch))


def without_pools(work: Workload) -> System:
    """Ours with no KV quota: only its victim rule and the order are left."""
    policy = replace(node_policy(work), kv_pools=())
    return one_engine(Scheduling.TIDEGATE, policy, name="Tidegate without KV pools")


VICTIMS: dict[str, Callable[[Workload], System]] = {
    "vLLM FCFS: admitted last": partial(single, Scheduling.FCFS, "vLLM FCFS", node.TP8),
    "vLLM priority: lowest, then last": partial(
        single, Scheduling.PRIORITY, "vLLM priority", node.TP8
    ),
    "source 000: lowest tier, lowest finish time": partial(
        single, Scheduling.SOURCE_000, "source 000", node.TP8
    ),
    "Tidegate without KV pools": without_pools,
    "Tidegate": partial(single, Scheduling.TIDEGATE, "Tidegate", node.TP8),
}


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """The sweeps, the references and the victim rules."""
    measured = MEASURED_SECONDS / (3 if arguments.quick else 1)
    if arguments.sensitivity:
        measured = SENSITIVITY_SECONDS
    systems: dict[str, Callable[[Workload], System]] = {
        **{f"budget {p}": partial(budgeted, p, True) for p in BUDGETS},
        **{f"budget, no pause {p}": partial(budgeted, p, False) for p in BUDGETS},
        **{f"cap {ms}": partial(capped, ms, True) for ms in CAPS_MS},
        **{f"cap, no pause {ms}": partial(capped, ms, False) for ms in CAPS_MS},
        "vLLM FCFS": partial(single, Scheduling.FCFS, "vLLM FCFS", node.TP8),
        "vLLM priority": partial(single, Scheduling.PRIORITY, "vLLM priority", node.TP8),
    }
    duration = WARMUP_SECONDS + measured
    runs = [
        Run(key, full_load, system, SEED, duration, WARMUP_SECONDS)
        for key, system in systems.items()
    ]
    short = OVERCOMMIT_SECONDS / (3 if arguments.quick or arguments.sensitivity else 1)
    runs += [
        Run(key, overcommitted, system, SEED, short + 100.0, 100.0)
        for key, system in VICTIMS.items()
    ]
    if arguments.sensitivity:
        needed = [run for run in runs if run.key.startswith("budget ") or run.key in VICTIMS]
        return model_only(
            sensitivity(needed, lambda done: figures_of(_by_key(done)), arguments.jobs, console)
        )
    done = _by_key(execute(runs, arguments.jobs, console, "sweeps"))
    _print(done, console)
    if arguments.plot is not None:
        plot(done, arguments.plot)
        console.print(f"drawn: {arguments.plot / 'prefill-budget.svg'}")
    return model_only(figures_of(done))


def _by_key(done: Results) -> dict[str, RunSummary]:
    return {key: one for (key, _), one in done.items()}


def figures_of(done: dict[str, RunSummary]) -> list[Figure]:
    """The knee, the default, and what victims cost."""
    sweep = {percent: done[f"budget {percent}"] for percent in BUDGETS}
    most = max(one.completed_per_second for one in sweep.values())
    knee = min(p for p, one in sweep.items() if one.completed_per_second >= KNEE_RATIO * most)
    default = sweep[DEFAULT_BUDGET]
    figures = [
        figure("knee of the budget", knee, "%", None, f"of 8,192 tokens; {KNEE_RATIO:.0%} of most"),
        figure("T0 P99 at the knee", sweep[knee].tiers["t0"].ttft_p99, "s"),
        figure(f"T0 P99 at {DEFAULT_BUDGET}%", default.tiers["t0"].ttft_p99, "s"),
        figure(f"requests/s at {DEFAULT_BUDGET}%", default.completed_per_second / most, "of most"),
    ]
    stock = done["vLLM priority: lowest, then last"].recomputed_tokens
    for key in VICTIMS:
        one = done[key]
        aim = Aim("<=", 0.05 * stock) if key == "Tidegate" else None
        figures.append(
            figure(
                f"KV over-committed, {key}: computed again", one.recomputed_tokens, "tokens", aim,
                f"{one.preemptions} preemptions, T0 P99 {one.tiers['t0'].ttft_p99:.3g} s",
            )
        )  # fmt: skip
    return figures


def _print(done: dict[str, RunSummary], console: Console) -> None:
    table = Table(title="mixed node; seconds", title_justify="left")
    for name in (
        "run", "T0 p50", "T0 p99", "T0 ms/token", "T1 p99", "T2 p50", "T3 p99", "T3 gap p99",
        "req/s", "preempted", "recomputed",
    ):  # fmt: skip
        table.add_column(name, justify="left" if name == "run" else "right")
    for key, one in done.items():
        t0, t1, t2, t3 = (one.tiers[tier] for tier in ("t0", "t1", "t2", "t3"))
        values = (t0.ttft_p50, t0.ttft_p99, 1000 * t0.seconds_per_token, t1.ttft_p99, t2.ttft_p50)
        table.add_row(
            key,
            *(f"{value:.3g}" for value in (*values, t3.ttft_p99, t3.itl_p99)),
            f"{one.completed_per_second:.2f}",
            str(one.preemptions),
            f"{one.recomputed_tokens:,}",
        )
    console.print(table)


def plot(done: dict[str, RunSummary], folder: Path) -> None:
    """T0's P99 against throughput, of the runs that there are."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tidegate"
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for series, label in SERIES.items():
        steps = [
            step
            for step in (BUDGETS if series.startswith("budget") else CAPS_MS)
            if f"{series} {step}" in done
        ]
        if not steps:
            continue
        unit = "%" if series.startswith("budget") else " ms"
        points = [(done[f"{series} {step}"], step) for step in steps]
        x = [one.completed_per_second for one, _ in points]
        y = [one.tiers["t0"].ttft_p99 for one, _ in points]
        axes.plot(
            x, y, "--" if "no pause" in series else "-", marker="o", markersize=4, label=label
        )
        for (one, step), at in zip(points, y, strict=True):
            place = (one.completed_per_second, at)
            axes.annotate(
                f"{step}{unit}", place, fontsize=7, xytext=(3, 3), textcoords="offset points"
            )
    for name, marker in (("vLLM FCFS", "x"), ("vLLM priority", "+")):
        if name not in done:
            continue
        one = done[name]
        axes.plot(one.completed_per_second, one.tiers["t0"].ttft_p99, marker, label=name)
    axes.set(
        xlabel="completed requests per second, all tiers",
        ylabel="T0, time to first token, P99 in seconds",
        title="Mixed node, 8xH100, 70B: the prefill budget (model only)",
        ylim=(0.0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    drawing.savefig(folder / "prefill-budget.svg", metadata={"Date": None})
    pyplot.close(drawing)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    options(parser)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the sweep there")


if __name__ == "__main__":
    sys.exit(benchmark("prefill", __doc__ or "", measure, add_options))
