"""The demonstration's table and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from tidegate.load.demo import DemoPhase, DemoSizes
from tidegate.load.tables import seconds
from tidegate.scheduling.contracts import LoadFigures, SchedulingMode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = {
    SchedulingMode.FIRST_COME_FIRST_SERVED: "one shared queue",
    SchedulingMode.TIDEGATE: "Tidegate",
}
_COLOURS = {
    SchedulingMode.FIRST_COME_FIRST_SERVED: "#c2410c",
    SchedulingMode.TIDEGATE: "#0f5fa8",
}


def demo_table(phases: Sequence[DemoPhase], sizes: DemoSizes) -> Table:
    """One column per mode."""
    table = Table(
        title=f"A sends {sizes.a_requests:,} requests, then B of the same tier sends "
        f"{sizes.b_requests}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("")
    for phase in phases:
        table.add_column(_NAMES[phase.mode], justify="right")
    rows = [
        ("B's longest wait for a first token", [seconds(p.b_longest_wait_seconds) for p in phases]),
        ("B's last answer complete", [_last_of_b(p, sizes) for p in phases]),
        ("A's last answer complete", [seconds(p.a_longest_seconds) for p in phases]),
        ("answered", [_answered(p.report.total) for p in phases]),
        ("tokens/s of both", [f"{p.report.total.tokens_per_second:,.0f}" for p in phases]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _last_of_b(phase: DemoPhase, sizes: DemoSizes) -> str:
    if not phase.b_answered_seconds:
        return "-"
    return seconds(phase.b_answered_seconds[-1] - sizes.b_start_seconds)


def _answered(figures: LoadFigures) -> str:
    return f"{figures.ok:,} of {figures.sent:,}"


def write_chart(phases: Sequence[DemoPhase], sizes: DemoSizes, target: Path) -> None:
    """B's answered requests over time, a line per mode, as SVG; the same input, the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {"svg.hashsalt": "tidegate", "font.size": 12}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(8.4, 3.9), layout="constrained")
        end = max((p.b_answered_seconds[-1] for p in phases if p.b_answered_seconds), default=1.0)
        end = max(end, sizes.b_start_seconds) * 1.04
        for phase in phases:
            _draw(axes, phase, sizes, end)
        axes.axvline(sizes.b_start_seconds, color="#777777", linestyle=":", linewidth=1)
        axes.annotate(
            "B asks",
            xy=(sizes.b_start_seconds, sizes.b_requests + 0.45),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color="#555555",
        )
        axes.set_xlim(0, end)
        axes.set_ylim(0, sizes.b_requests + 0.75)
        axes.set_yticks(range(sizes.b_requests + 1))
        axes.set_xlabel(f"seconds since A sent its {sizes.a_requests:,} requests")
        axes.set_ylabel("answers that B has")
        axes.set_title(
            f"A sends {sizes.a_requests:,} requests, B (same tier) {sizes.b_requests} of its own "
            f"{sizes.b_start_seconds:g} s later",
            loc="left",
            fontsize=12,
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(target, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _draw(axes: Axes, phase: DemoPhase, sizes: DemoSizes, end: float) -> None:
    """One line: how many of B's requests are answered, with its wait written beside it."""
    answered = phase.b_answered_seconds
    colour = _COLOURS[phase.mode]
    times = [sizes.b_start_seconds, *answered, end]
    counts = [*range(len(answered) + 1), len(answered)]
    axes.plot(times, counts, drawstyle="steps-post", color=colour, linewidth=2.5)
    last = answered[-1] if answered else end
    left = last < end / 2
    axes.annotate(
        f"{_NAMES[phase.mode]}: {len(answered)} of {sizes.b_requests} in "
        f"{_last_of_b(phase, sizes)}",
        xy=(last, len(answered) * (0.75 if left else 0.4)),
        xytext=(10 if left else -10, 0),
        textcoords="offset points",
        ha="left" if left else "right",
        va="center",
        color=colour,
        fontweight="bold",
    )
