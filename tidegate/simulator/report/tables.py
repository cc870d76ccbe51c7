"""The simulation report as tables for a person at a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.scheduling.contracts.simulation_report import SimulationReport
from tidegate.simulator.report import rows, text

MOST_TENANTS = 20
"""More stand in the JSON report and are summed in their tier."""


def print_report(report: SimulationReport, console: Console) -> None:
    """What to believe, the first policy in full, and all of them side by side."""
    console.print(text.fidelity(report), style="bold", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    run = report.runs[0]
    console.print(_table(f"{report.workload}, policy {run.policy}", rows.counts(run, MOST_TENANTS)))
    console.print(_table(None, rows.latencies(run, MOST_TENANTS)))
    for line in (text.engine_line(run), *rows.remarks(run, MOST_TENANTS)):
        console.print(line, markup=False)
    priced = report.gpu_hour_price is not None
    console.print(_table("Economics", rows.economics(run, priced=priced)))
    if len(report.runs) > 1:
        console.print(_table("Policies compared", rows.compared(report.runs)))


def _table(title: str | None, grid: rows.Grid) -> Table:
    table = Table(title=title and escape(title), box=box.SIMPLE_HEAD, title_justify="left")
    for place, heading in enumerate(grid.headings):
        table.add_column(heading, justify="left" if place < grid.names else "right", no_wrap=True)
    for section in grid.sections:
        before: tuple[str, ...] | None = None
        for cells in section:
            first = "" if before and before[0] == cells[0] else escape(cells[0])
            table.add_row(first, *map(escape, cells[1:]))
            before = cells
        table.add_section()
    return table
