"""The engine model beside the published runs of VTC's artifact."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairness_runs import Ensembles, Spread, Task, members, run_all, spread
from report import Aim, Figure, figure
from rich.console import Console
from rich.table import Table

from tidegate.simulator.engine_model.calibrations import A10G_FIRST_COME
from tidegate.simulator.service_gap import WINDOW_SECONDS, window_gaps
from tidegate.simulator.slora.counters import FirstComeFirstServed
from tidegate.simulator.slora.engine import Engine
from tidegate.simulator.slora.lineup import ARTIFACT
from tidegate.simulator.slora.published import FOLDER, read_run
from tidegate.simulator.slora.request import jobs_of
from tidegate.simulator.slora.summary import RunSummary, summarize

GAPPED = ("FCFS", "LCF", "VTC", "VTC oracle", "VTC predict")
"""Whose gaps are compared; behind a limit of requests next to nothing waits long enough."""
_COLUMNS = ("mean_ttft", "makespan", "mean_gap", "light_ttft", "largest_gap")


def measure(arguments: argparse.Namespace, console: Console, traces: Path) -> Sequence[Figure]:
    """Runs every published policy in the model."""
    folder = traces / FOLDER
    missing = sorted({file for file, _ in ARTIFACT.values() if not (folder / file).exists()})
    if missing:
        return [figure("model: published runs", None, "", why=f"missing in {folder}: {missing}")]
    prototypes = {name: Task(name, 0, file, published=True) for name, (file, _) in ARTIFACT.items()}
    tasks = [one for each in prototypes.values() for one in members(each, arguments.members)]
    with console.status("the model beside the published runs") as status:
        ensembles = run_all(
            tasks, folder, arguments.jobs,
            lambda done: status.update(f"the model beside the published runs: {done}/{len(tasks)}"),
        )  # fmt: skip
    published = {name: summarize(read_run(folder / file)) for name, (file, _) in ARTIFACT.items()}
    console.print(_table(prototypes, ensembles, published))
    figures: list[Figure] = []
    for name, prototype in prototypes.items():
        runs = ensembles[prototype]
        figures += _averages(name, runs, published[name])
        if name in GAPPED:
            figures += _extremes(name, runs, published[name], folder)
    return figures


def _averages(name: str, runs: Sequence[RunSummary], real: RunSummary) -> list[Figure]:
    figures = [
        _error(name, "mean TTFT", spread(runs, "mean_ttft"), real.mean_ttft, 10),
        _error(name, "makespan", spread(runs, "makespan"), real.makespan, 10),
    ]
    if name in GAPPED:
        figures.append(_error(name, "mean gap", spread(runs, "mean_gap"), real.mean_gap, 20))
    return figures


def _extremes(
    name: str, runs: Sequence[RunSummary], real: RunSummary, folder: Path
) -> list[Figure]:
    light, largest = spread(runs, "light_ttft"), spread(runs, "largest_gap")
    figures = [_range(name, "light TTFT", "s", light, real.light_ttft)]
    if name != "FCFS":
        return [*figures, _range(name, "largest gap", "tokens", largest, real.largest_gap)]
    off = 100 * abs(real.largest_gap / largest.median - 1)
    why = f"published {real.largest_gap:,.0f}, model {largest}; {_straddle(folder)}"
    figures.append(figure("model, FCFS: largest gap, off the median", off, "%", Aim("<=", 15), why))
    return figures


def _straddle(folder: Path) -> str:
    """Largest gap and the one after it, together: does a burst fall into one window or two?"""
    run = read_run(folder / ARTIFACT["FCFS"][0])
    engine = Engine(A10G_FIRST_COME.timing, FirstComeFirstServed())
    real = {window.start: window.gap for window in window_gaps(run)}
    model = {window.start: window.gap for window in window_gaps(engine.run(jobs_of(run)))}
    worst = max(real, key=real.__getitem__)
    both = (worst, worst + WINDOW_SECONDS)
    texts = [f"{sum(gaps.get(start, 0.0) for start in both):,.0f}" for gaps in (real, model)]
    return (
        f"windows {worst:.0f} and {both[1]:.0f} s together: published {texts[0]}, model "
        f"{texts[1]}, so a burst straddles their border that does not in the published run"
    )


def _error(name: str, what: str, model: Spread, real: float, percent: float) -> Figure:
    error = 100 * (model.median / real - 1)
    why = f"{error:+.1f}%: published {real:,.2f}, model {model}"
    return figure(f"model, {name}: {what}, error", abs(error), "%", Aim("<=", percent), why)


def _range(name: str, what: str, unit: str, model: Spread, real: float) -> Figure:
    why = f"published {real:,.2f}, model {model}"
    return figure(
        f"model, {name}: {what}, published outside the range by",
        model.outside(real), unit, Aim("<=", 0), why,
    )  # fmt: skip


def _table(
    prototypes: dict[str, Task], ensembles: Ensembles, published: dict[str, RunSummary]
) -> Table:
    title = "published / model: median and range (behind a request limit few windows have a gap)"
    table = Table(title=title, title_justify="left")
    for header in (
        "policy",
        "mean TTFT s",
        "makespan s",
        "mean gap",
        "light TTFT s",
        "largest gap",
    ):
        table.add_column(header, justify="left" if header == "policy" else "right")
    for name, prototype in prototypes.items():
        cells = []
        for field in _COLUMNS:
            real = getattr(published[name], field)
            shown = f"{real:,.0f}" if real >= 100 else f"{real:.2f}"
            cells.append(f"{shown} / {spread(ensembles[prototype], field)}")
        table.add_row(name, *cells)
    return table
