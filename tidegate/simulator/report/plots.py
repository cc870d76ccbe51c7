"""The report's plots as inline SVG, readable on a light and on a dark page.

Nothing in them has a colour of paper or ink: what matplotlib draws in ``_INK`` and ``_RULE``
becomes ``currentColor`` and a variable of the page's style sheet, the background is left out, and
the tiers' colours are of middle lightness. Letters stay text, in the page's font. One panel for
each policy, all of a plot with the same axes, so that policies can be compared by eye.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator

from tidegate.simulator.report import series
from tidegate.simulator.report.series import Curve
from tidegate.simulator.simulation.result import SimulationResult

_INK = "#0a0b0c"
_RULE = "#1a1b1c"
_COLOURS = (
    "#3d85c6", "#e08a1e", "#2f9e6e", "#a371d4", "#d9506a", "#1aa3a3", "#a8763e", "#7d8794",
)  # fmt: skip
_CACHED_COLOUR = "#9aa0a655"
"""Seen through: what nobody holds is no use of the cache."""
_FEW_WAITING = 100
_COLUMNS = 3
_PANEL_INCHES = (3.9, 2.7)
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollars in it is a name
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _RULE,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}
_MOST_NINES = 4.0
_MARGIN = 1.1
"""Beside the shortest and the longest latency, as a factor: wide enough for a mark or two."""

Results = Sequence[SimulationResult]


def latency_plot(
    results: Results, until: float, targets: Mapping[str, float], value: str, label: str
) -> str:
    """Distribution by tier of a property of the records that arrived before ``until``, in seconds.

    ``targets`` by tier are drawn dotted.
    """
    curves = [
        {
            tier: series.distribution(
                getattr(one, value) for one in result.measured(tier) if one.arrival < until
            )
            for tier in result.tiers
        }
        for result in results
    ]
    drawn = [x for one in curves for curve in one.values() for x in curve.x if x > 0]
    reached = [*drawn, *targets.values()]

    def draw(axes: Any, position: int, colours: Mapping[str, str]) -> None:
        for tier, curve in curves[position].items():
            if curve.x:
                axes.plot(curve.x, [_nines(part) for part in curve.y], color=colours[tier])
            if tier in targets:
                axes.axvline(targets[tier], color=colours[tier], linestyle=":", linewidth=1.2)
        axes.set_xscale("log")
        if reached:
            axes.set_xlim(min(reached) / _MARGIN, max(reached) * _MARGIN)
        axes.set_ylim(0, _MOST_NINES)
        axes.yaxis.set_major_locator(FixedLocator([0.0, _nines(0.5), 1.0, 2.0, 3.0, 4.0]))
        axes.yaxis.set_major_formatter(FuncFormatter(_nines_label))
        axes.xaxis.set_major_locator(_LatencyMarks())
        axes.xaxis.set_major_formatter(FuncFormatter(_seconds_label))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(label)

    return _panels(results, draw, f"{label}: distribution by tier")


def service_plot(results: Results) -> str:
    """Tokens computed per second over time, tiers stacked."""
    curves = [series.service_rates(result) for result in results]
    return _panels(
        results,
        lambda axes, position, colours: _stacked(
            axes, curves[position], colours, "tokens/s", lambda value, _: f"{value:,.0f}"
        ),
        "Service over time by tier",
    )


def kv_plot(results: Results, pools: Mapping[str, str]) -> str:
    """Percent of the KV cache held over time, pools stacked, and what is cached on top."""
    curves = [series.kv_percent(result, pools) for result in results]

    def draw(axes: Any, position: int, colours: Mapping[str, str]) -> None:
        _stacked(axes, curves[position], colours, "KV blocks", lambda value, _: f"{value:.0f}%")
        axes.set_ylim(0, 100)

    return _panels(results, draw, "KV cache by pool", names=_names(curves))


def queue_plot(results: Results) -> str:
    """Requests that wait over time, by tier; logarithmic above 10 where there are many."""
    curves = [series.queued(result) for result in results]
    many = any(max(curve.y, default=0) > _FEW_WAITING for one in curves for curve in one.values())

    def draw(axes: Any, position: int, colours: Mapping[str, str]) -> None:
        for tier, curve in curves[position].items():
            axes.plot(curve.x, curve.y, color=colours[tier])
        if many:
            axes.set_yscale("symlog", linthresh=10)
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.yaxis.set_major_locator(_whole_numbers())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _time_axis(axes, "requests waiting")

    return _panels(results, draw, "Queue by tier")


def _stacked(
    axes: Any,
    curves: Mapping[str, Curve],
    colours: Mapping[str, str],
    label: str,
    format_value: Callable[[float, int], str],
) -> None:
    drawn = {name: curve for name, curve in curves.items() if curve.x}
    if drawn:
        x = next(iter(drawn.values())).x
        axes.stackplot(
            x,
            [curve.y for curve in drawn.values()],
            colors=[colours[name] for name in drawn],
            linewidth=0,
        )
        axes.margins(x=0)
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter(FuncFormatter(format_value))
    _time_axis(axes, label)


def _time_axis(axes: Any, label: str) -> None:
    axes.set_xlabel("seconds")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _whole_numbers() -> MaxNLocator:
    """Marks where their labels say that they are: 2.5 would be shown as 2."""
    return MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)


def _panels(
    results: Results,
    draw: Callable[[Any, int, Mapping[str, str]], None],
    title: str,
    *,
    names: Sequence[str] | None = None,
) -> str:
    tiers = list(dict.fromkeys(tier for result in results for tier in result.tiers))
    colours = _colours(list(names) if names is not None else tiers, tiers)
    columns = 2 if len(results) == 4 else min(_COLUMNS, len(results))
    rows = ceil(len(results) / columns)
    width, height = _PANEL_INCHES
    style: dict[Any, Any] = {**_STYLE, "svg.hashsalt": title}
    with matplotlib.rc_context(style):
        figure = Figure((max(2, columns) * width, rows * height + 0.35), layout="constrained")
        figure.patch.set_alpha(0)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for position, axes in enumerate(grid.flat):
            if position >= len(results):
                axes.set_visible(False)
                continue
            axes.patch.set_alpha(0)
            axes.set_title(results[position].policy)
            axes.tick_params(labelbottom=True, labelleft=True)
            draw(axes, position, colours)
        grid[0, 0].set_ylim(bottom=0)
        handles = [matplotlib.patches.Patch(color=colour) for colour in colours.values()]
        figure.legend(handles, list(colours), loc="outside upper left", ncols=min(8, len(colours)))
        return _svg(figure, title)


def _colours(names: Sequence[str], tiers: Sequence[str]) -> dict[str, str]:
    """A tier has its colour in every plot; a pool that is no tier takes one of the next."""
    place = {tier: index for index, tier in enumerate(tiers)}
    found = {}
    for name in names:
        index = place.setdefault(name, len(place))
        found[name] = _CACHED_COLOUR if name == series.CACHED else _COLOURS[index % len(_COLOURS)]
    return found


def _names(curves: Sequence[Mapping[str, Curve]]) -> list[str]:
    return list(dict.fromkeys(name for one in curves for name in one))


def _nines(part: float) -> float:
    """0.9 is 1, 0.99 is 2, and so on: the tail of a distribution takes most of the axis."""
    return min(_MOST_NINES, -log10(max(1 - part, 10**-_MOST_NINES)))


def _nines_label(value: float, _: int) -> str:
    return f"{100 * (1 - 10**-value):.4g}%"


class _LatencyMarks(Locator):
    """Powers of ten, and what lies between where there are few: no axis is without numbers."""

    def __call__(self) -> Sequence[float]:
        return self.tick_values(*self.axis.get_view_interval()) if self.axis else ()

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        decades = log10(vmax / vmin)
        if decades < 1:
            marks = list(MaxNLocator(nbins=5).tick_values(vmin, vmax))
        else:
            powers = range(floor(log10(vmin)), ceil(log10(vmax)) + 1)
            steps = (1, 2, 5) if decades < 2 else (1,)
            marks = [step * 10.0**power for power in powers for step in steps]
        return [mark for mark in marks if vmin <= mark <= vmax]


def _seconds_label(value: float, _: int) -> str:
    return f"{1000 * value:g} ms" if value < 1 else f"{value:g} s"


_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.S)
_UNUSED_ID = re.compile(r' id="[a-zA-Z.0-9]+_\d+"')
_FONT = re.compile(r"font-family: [^;\"]+;?|font: (?P<size>[\d.]+px) [^;\"]+")
_STYLE_ELEMENT = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.S)
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', re.S)
_SIZE_REVERSED = re.compile(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', re.S)


def _svg(figure: Figure, title: str) -> str:
    """The figure as an element of a page: as wide as its place, nothing loaded, nothing named."""
    file = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)
    canvas.print_svg(file, metadata={"Date": None})
    text = _PROLOGUE.sub("", file.getvalue(), count=1)
    text = _METADATA.sub("", text)
    text = _STYLE_ELEMENT.sub("", text)
    text = _UNUSED_ID.sub("", text)
    text = _NUMBER.sub(lambda number: f"{float(number.group()):.1f}", text)
    text = _FONT.sub(_without_family, text)
    text = _SIZE.sub(r"\1\2", text, count=1)
    text = _SIZE_REVERSED.sub(r"\1\2", text, count=1)
    text = text.replace(_INK, "currentColor").replace(_RULE, "var(--rule)")
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()


def _without_family(match: re.Match[str]) -> str:
    size = match.group("size")
    return f"font-size: {size}" if size else ""
