"""The production scheduler beside other fair policies on the engine of VTC's artifact."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from fairness_runs import VARIATIONS, Ensembles, Spread, Task, members, run_all, spread
from report import Aim, Figure, figure
from rich.console import Console
from rich.table import Table

from tidegate.simulator.slora.lineup import CONTESTANTS, OURS
from tidegate.simulator.slora.published import FOLDER
from tidegate.simulator.slora.summary import RunSummary

FILE = "real_FCFS.jsonl"
"""Its requests are those of all runs of the real trace."""
VARIED = ("VTC", "VTC oracle", OURS)
VARIED_MEMBERS = 16
_COLUMNS = ("light_ttft", "quiet_ttft", "largest_gap", "mean_gap", "mean_ttft", "makespan")
_HEADERS = ("light TTFT s", "<= 30 requests s", "largest gap", "mean gap", "mean TTFT s",
            "makespan s")  # fmt: skip


def measure(arguments: argparse.Namespace, console: Console, traces: Path) -> Sequence[Figure]:
    """Runs all contestants both ways, and three of them with each constant changed."""
    folder = traces / FOLDER
    if not (folder / FILE).exists():
        return [figure("ours: VTC's trace", None, "", why=f"{FILE} is missing in {folder}")]
    plain = [
        Task(name, 0, FILE, backwards=backwards)
        for backwards in (False, True)
        for name in CONTESTANTS
    ]
    varied = [
        Task(name, 0, FILE, variation=variation) for variation in VARIATIONS for name in VARIED
    ]
    tasks = [one for each in plain for one in members(each, arguments.members)]
    tasks += [one for each in varied for one in members(each, VARIED_MEMBERS)]
    with console.status("ours beside the others") as status:
        ensembles = run_all(
            tasks, folder, arguments.jobs,
            lambda done: status.update(f"ours beside the others: {done}/{len(tasks)}"),
        )  # fmt: skip
    figures: list[Figure] = []
    for backwards in (False, True):
        runs = {name: ensembles[Task(name, 0, FILE, backwards=backwards)] for name in CONTESTANTS}
        title = "VTC's trace in reverse" if backwards else "VTC's trace"
        console.print(_table(f"{title}: median and range of {arguments.members}", runs))
        figures += _figures("reversed" if backwards else "ours", runs)
    console.print(_variation_table(ensembles))
    figures += _variation_figures(ensembles)
    return figures


def _figures(label: str, runs: dict[str, list[RunSummary]]) -> list[Figure]:
    ours = {field: spread(runs[OURS], field) for field in _COLUMNS}
    vtc = {field: spread(runs["VTC"], field) for field in _COLUMNS}
    oracle = {field: spread(runs["VTC oracle"], field) for field in _COLUMNS}

    def beside(field: str) -> str:
        return f"{ours[field]}; VTC {vtc[field]}; oracle {oracle[field]}"

    light = ours["light_ttft"].median
    figures = [
        figure(f"{label}: largest gap", ours["largest_gap"].median, "tokens", Aim("<=", 5_000),
               beside("largest_gap")),
        figure(f"{label}: mean gap", ours["mean_gap"].median, "tokens", Aim("<=", 1_800),
               beside("mean_gap")),
        figure(f"{label}: light tenants' TTFT", light, "s",
               Aim("<=", vtc["light_ttft"].median), beside("light_ttft")),
        figure(f"{label}: makespan, off VTC's",
               100 * abs(ours["makespan"].median / vtc["makespan"].median - 1), "%",
               Aim("<=", 1.5), beside("makespan")),
    ]  # fmt: skip
    if label == "ours":
        figures.append(
            figure("ours: light tenants' TTFT, stretch", light, "s", Aim("<=", 0.8), "issue 4")
        )
    return figures


def _table(title: str, runs: dict[str, list[RunSummary]]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in ("policy", *_HEADERS):
        table.add_column(header, justify="left" if header == "policy" else "right")
    for name, summaries in runs.items():
        style = "bold" if name == OURS else None
        table.add_row(name, *(str(spread(summaries, field)) for field in _COLUMNS), style=style)
    return table


def _varied(ensembles: Ensembles, name: str, variation: tuple[str, float], field: str) -> Spread:
    return spread(ensembles[replace(Task(name, 0, FILE), variation=variation)], field)


def _variation_table(ensembles: Ensembles) -> Table:
    title = f"each constant changed: medians of {VARIED_MEMBERS}, {' / '.join(VARIED)}"
    table = Table(title=title, title_justify="left")
    for header in ("constant", *_HEADERS):
        table.add_column(header, justify="left" if header == "constant" else "right")
    for constant, factor in VARIATIONS:
        cells = []
        for field in _COLUMNS:
            medians = [
                _varied(ensembles, name, (constant, factor), field).median for name in VARIED
            ]
            cells.append(" / ".join(f"{m:,.0f}" if m >= 100 else f"{m:.2f}" for m in medians))
        table.add_row(f"{constant} x {factor}", *cells)
    return table


def _variation_figures(ensembles: Ensembles) -> list[Figure]:
    """The worst of all constants, each at 0.8 and 1.2; there to be read, without an aim."""
    figures = []
    for field, unit in (("largest_gap", "tokens"), ("mean_gap", "tokens"), ("light_ttft", "s")):
        medians = {v: _varied(ensembles, OURS, v, field).median for v in VARIATIONS}
        worst = max(medians, key=medians.__getitem__)
        best = min(medians, key=medians.__getitem__)
        vtc = _varied(ensembles, "VTC", worst, field).median
        why = (
            f"with {worst[0]} x {worst[1]}, where VTC has {vtc:,.2f}; "
            f"least {medians[best]:,.2f} with {best[0]} x {best[1]}"
        )
        name = f"ours: {field.replace('_', ' ')}, worst of all constants at 0.8 and 1.2"
        figures.append(figure(name, medians[worst], unit, why=why))
    ratios = {
        v: _varied(ensembles, OURS, v, "light_ttft").median
        / _varied(ensembles, "VTC", v, "light_ttft").median
        for v in VARIATIONS
    }
    worst = max(ratios, key=ratios.__getitem__)
    why = f"with {worst[0]} x {worst[1]}; median of all {median(ratios.values()):.2f}"
    name = "ours: light tenants' TTFT over VTC's, worst of all constants"
    return [*figures, figure(name, ratios[worst], "ratio", why=why)]
