"""The simulation report as tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.scheduling.contracts.simulation_report import SimulationReport
from tidegate.simulator.report import rows, text

MOST_TENANTS = 20
"""More stand in the JSON report and are summed in their tier."""
_PADDING = 3
_MARGIN = 2


def print_report(report: SimulationReport, console: Console) -> None:
    """What to believe, the first policy in full, and all of them side by side."""
    console.print(text.fidelity(report), style="bold", markup=False)
    if report.fidelity is not None:
        console.print(text.fidelity_summary(report.fidelity), markup=False)
        _print(None, rows.fidelity(report.fidelity), console)
    for note in report.notes:
        console.print(note, markup=False)
    run = report.runs[0]
    _print(f"{report.workload}, policy {run.policy}", rows.counts(run, MOST_TENANTS), console)
    _print(None, rows.latencies(run, MOST_TENANTS), console)
    for line in (text.engine_line(run), *rows.remarks(run, MOST_TENANTS)):
        console.print(line, markup=False)
    priced = report.gpu_hour_price is not None
    _print("Economics", rows.economics(run, priced=priced), console)
    if len(report.runs) > 1:
        _print("Policies compared", rows.compared(report.runs), console)


def _print(title: str | None, grid: rows.Grid, console: Console) -> None:
    """The grid as one table, or as several below each other where the terminal is narrow."""
    for number, columns in enumerate(_fitting(grid, console.width)):
        console.print(_table(None if number else title, grid, columns))


def _fitting(grid: rows.Grid, width: int) -> Iterator[list[int]]:
    """The columns after the names, cut into lists that fit beside these; at least one each."""
    cells = [grid.headings, *(row for section in grid.sections for row in section)]
    widths = [max(len(row[at]) for row in cells) + _PADDING for at in range(len(grid.headings))]
    room = width - _MARGIN - sum(widths[: grid.names])
    taken: list[int] = []
    for at in range(grid.names, len(widths)):
        if taken and sum(widths[one] for one in taken) + widths[at] > room:
            yield taken
            taken = []
        taken.append(at)
    yield taken


def _table(title: str | None, grid: rows.Grid, columns: list[int]) -> Table:
    table = Table(title=title and escape(title), box=box.SIMPLE_HEAD, title_justify="left")
    shown = [*range(grid.names), *columns]
    for at in shown:
        side: Literal["left", "right"] = "left" if at < grid.names else "right"
        table.add_column(grid.headings[at], justify=side, no_wrap=True)
    for section in grid.sections:
        before = ""
        for cells in section:
            first = "" if before == cells[0] else escape(cells[0])
            table.add_row(first, *(escape(cells[at]) for at in shown[1:]))
            before = cells[0]
        table.add_section()
    return table
