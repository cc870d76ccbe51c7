"""The load report as tables for a person."""

from __future__ import annotations

import os

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.scheduling.contracts import LoadFigures, LoadReport, Percentiles

PLAIN_WIDTH = 160
"""Columns where the output is no terminal (a file, a pipe) and nobody says how many."""
WIDE = 140
"""Narrower than this, the figures stand in two tables below each other."""

_COUNTS = ("sent", "ok", "refused", "failed", "tokens/s", "share", "longest wait")
_LATENCIES = ("TTFT p50", "p95", "p99", "E2E p50", "p95", "p99")


def output_console() -> Console:
    """Standard output; where it is no terminal, as wide as ``COLUMNS`` says, else wide enough for
    the tables."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else 0
    return Console(highlight=False, width=width or PLAIN_WIDTH)


def print_report(report: LoadReport, console: Console) -> None:
    """The figures per tenant and tier, the refusals by reason, and what to doubt."""
    title = escape(report.scenario)
    if console.width >= WIDE:
        console.print(_table(report, title, counts=True, latencies=True))
    else:
        console.print(_table(report, title, counts=True, latencies=False))
        console.print(_table(report, None, counts=False, latencies=True))
    for name, figures in ((tenant.name, tenant.figures) for tenant in report.tenants):
        for verb, reasons in (("refused", figures.refused), ("failed", figures.failed)):
            for reason, count in reasons.items():
                console.print(f"{escape(name)}: {count} {verb}: {escape(reason)}")
        if figures.unfinished:
            console.print(f"{escape(name)}: {figures.unfinished} unfinished when the run ended")
    for line in notes(report):
        console.print(line)


def notes(report: LoadReport) -> list[str]:
    """What a reader must know of the run itself."""
    client = report.client
    lag = client.send_lag_seconds
    lines = [
        f"{report.wall_seconds:.1f} s in all; shares and tokens/s over the first "
        f"{report.window_seconds:.1f} s; client lag p99: "
        f"{seconds(client.loop_lag_p99_seconds)} of its event loop, "
        f"{seconds(lag.p99) if lag else '-'} of its sends"
    ]
    if not report.complete:
        lines.append("Interrupted: these are the figures until then.")
    if client.saturated:
        lines.append(
            "WARNING: the load generator itself was late "
            f"({seconds(client.loop_lag_p99_seconds)} in its event loop, {client.late_sends} late "
            "sends): these latencies are partly its own. Send less, or from a faster machine."
        )
    return lines


def _table(report: LoadReport, title: str | None, *, counts: bool, latencies: bool) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("tenant", no_wrap=True)
    table.add_column("label", no_wrap=True)  # the scenario's: the cluster may know another tier
    for column in (*(_COUNTS if counts else ()), *(_LATENCIES if latencies else ())):
        table.add_column(column, justify="right", no_wrap=True)

    def row(name: str, tier: str, figures: LoadFigures) -> None:
        cells = _counts(figures) if counts else []
        if latencies:
            cells = [*cells, *_three(figures.ttft_seconds), *_three(figures.e2e_seconds)]
        table.add_row(escape(name), escape(tier), *cells)

    for tenant in report.tenants:
        row(tenant.name, tenant.tier, tenant.figures)
    table.add_section()
    for tier in report.tiers:
        row("(all)", tier.name, tier.figures)
    return table


def _counts(figures: LoadFigures) -> list[str]:
    return [
        str(figures.sent),
        str(figures.ok),
        str(sum(figures.refused.values())),
        str(sum(figures.failed.values())),
        f"{figures.tokens_per_second:,.0f}",
        f"{100 * figures.share:.1f}%",
        seconds(figures.longest_wait_seconds),
    ]


def _three(values: Percentiles | None) -> list[str]:
    if values is None:
        return ["-", "-", "-"]
    return [seconds(values.p50), seconds(values.p95), seconds(values.p99)]


def seconds(value: float) -> str:
    """A duration in three digits or so."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"
