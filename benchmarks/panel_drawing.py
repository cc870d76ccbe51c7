"""Draws the panels of a dashboard from the series that its queries gave.

What Grafana would show, near enough to judge it: each panel's own title, legend, unit, limits,
thresholds and place. One axis of time for all panels, and one colour for each tenant and tier in
all of them. A gap in a line is a time without a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter
from matplotlib.transforms import Bbox

Json = dict[str, Any]

STEP_SECONDS = 15
COLUMNS, UNIT_WIDTH, UNIT_HEIGHT = 24, 0.8, 0.5
"""Of Grafana's grid, in inches."""
LEFT, RIGHT, TITLE, TICKS, LEGEND_LINE, LETTER = 0.95, 0.25, 0.45, 0.34, 0.17, 0.072
"""Inches around a panel's axes, of a line of its legend, and of a letter there."""
TICK_MINUTES = (1, 2, 5, 10, 15, 30, 60)
COLOURS = mpl.colormaps["tab10"].colors + mpl.colormaps["Dark2"].colors  # type: ignore[attr-defined]
THRESHOLDS = {"dark-red": "darkred", "yellow": "goldenrod", "orange": "darkorange"}
"""Grafana's names of colours that have others here."""


class Series(NamedTuple):
    """One line of a panel."""

    ref: str
    """Of the query that gave it."""
    legend: str
    subject: str
    """The tenant or tier that it is about; empty: neither."""
    points: Sequence[tuple[float, float]]
    """Seconds since the epoch, and finite values."""


class Span(NamedTuple):
    """The time that all panels show, seconds since the epoch."""

    begin: float
    end: float

    @property
    def grid(self) -> list[float]:
        count = round((self.end - self.begin) / STEP_SECONDS)
        return [self.begin + STEP_SECONDS * place for place in range(count + 1)]


class Drawing:
    """Of several dashboards, over the same time."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._colours: dict[str, Any] = {}

    def dashboard(self, dashboard: Json, found: dict[str, list[Series]], picture: Path) -> None:
        """Every panel at its place, and each row by itself; ``found`` is by the panels' ids."""
        panels = dashboard["panels"]
        rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
        width, height = COLUMNS * UNIT_WIDTH, rows * UNIT_HEIGHT
        figure = plt.figure(figsize=(width, height))
        for panel in panels:
            if panel["type"] == "row":
                continue
            series = found[str(panel["id"])]
            at = panel["gridPos"]
            inner = UNIT_WIDTH * at["w"] - LEFT - RIGHT
            columns, lines = _legend_grid(panel, series, inner)
            below = TICKS + LEGEND_LINE * lines + 0.1
            tall = UNIT_HEIGHT * at["h"] - TITLE - below
            left = UNIT_WIDTH * at["x"] + LEFT
            bottom = height - UNIT_HEIGHT * (at["y"] + at["h"]) + below
            axes = figure.add_axes((left / width, bottom / height, inner / width, tall / height))
            axes.set_title(panel["title"], fontsize=10, loc="left", fontweight="bold")
            axes.tick_params(labelsize=8)
            if panel["type"] == "bargauge":
                _bars(axes, series, panel["fieldConfig"]["defaults"])
                continue
            self._panel(axes, panel, series)
            if series:
                axes.legend(
                    fontsize=8, ncol=columns, loc="upper left", frameon=False, borderaxespad=0,
                    bbox_to_anchor=(0, -TICKS / tall), labelspacing=0.3,
                )  # fmt: skip
        figure.savefig(picture, dpi=60)
        for row, end in _rows(panels, rows):
            top, low = (height - UNIT_HEIGHT * y for y in (row["gridPos"]["y"] + 0.9, end))
            part = Bbox([[0, low], [width, top]])
            figure.savefig(
                picture.with_stem(f"{picture.stem}-{row['id']}"), dpi=80, bbox_inches=part
            )
        plt.close(figure)

    def _panel(self, axes: Axes, panel: Json, found: Sequence[Series]) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        custom = defaults.get("custom", {})
        if not found:
            axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes)
        grid = self._span.grid
        times = [at / 86_400 for at in grid]
        stacked = [0.0] * len(grid)
        for series, (colour, style) in zip(found, self._looks(panel, found), strict=True):
            values = _on_grid(series.points, self._span)
            if custom.get("stacking", {}).get("mode") == "normal":
                under, stacked = stacked, [
                    low + (0.0 if math.isnan(value) else value)
                    for low, value in zip(stacked, values, strict=True)
                ]  # fmt: skip
                axes.fill_between(times, under, stacked, color=colour, alpha=0.3, linewidth=0)
                values = stacked
            axes.plot(
                times, values, color=colour, linestyle=style, linewidth=1.5,
                marker="." if style == "-" else None, markersize=2.5, label=series.legend,
            )  # fmt: skip
        _value_axis(axes, defaults, [v for s in found for _, v in s.points] + stacked)
        axes.set_ylabel(custom.get("axisLabel", ""), fontsize=8)
        axes.set_xlim(times[0], times[-1])
        minutes = (self._span.end - self._span.begin) / 60
        every = next((m for m in TICK_MINUTES if minutes / m <= 8), TICK_MINUTES[-1])
        axes.xaxis.set_major_locator(MinuteLocator(byminute=range(0, 60, every)))
        axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
        axes.grid(linewidth=0.4, alpha=0.5)

    def _looks(self, panel: Json, found: Sequence[Series]) -> Iterator[tuple[Any, str]]:
        """Colour and style of each line: dashed where the panel says so, and of those about the
        same tenant or tier each another."""
        dashed = {
            override["matcher"]["options"]
            for override in panel["fieldConfig"]["overrides"]
            if any(p["id"] == "custom.lineStyle" for p in override["properties"])
        }
        others = cycle(COLOURS)
        styles: dict[str, Iterator[str]] = {}
        for series in found:
            if not series.subject:
                yield next(others), "-"
                continue
            taken = len(self._colours)
            colour = self._colours.setdefault(series.subject, COLOURS[taken % len(COLOURS)])
            if series.ref in dashed:
                yield colour, "--"
            else:
                yield colour, next(styles.setdefault(series.subject, cycle("-:")))


def _legend_grid(panel: Json, found: Sequence[Series], inches: float) -> tuple[int, int]:
    """Columns and lines of a legend that is so wide."""
    if not found or panel["type"] == "bargauge":
        return 1, 0
    entry = 0.6 + LETTER * max(len(series.legend) for series in found)
    columns = max(1, min(len(found), int(inches / entry)))
    return columns, math.ceil(len(found) / columns)


def _rows(panels: Sequence[Json], end: int) -> Iterator[tuple[Json, int]]:
    """Each row of a dashboard, with where the next begins."""
    rows = [panel for panel in panels if panel["type"] == "row"]
    ends = [row["gridPos"]["y"] for row in rows[1:]]
    yield from zip(rows, [*ends, end][: len(rows)], strict=True)


def _on_grid(points: Sequence[tuple[float, float]], span: Span) -> list[float]:
    by_place = {round((at - span.begin) / STEP_SECONDS): value for at, value in points}
    return [by_place.get(place, math.nan) for place in range(len(span.grid))]


def _value_axis(axes: Axes, defaults: Json, values: Sequence[float]) -> None:
    """Limits, even ticks, and the thresholds within them. A line at zero stands off the frame."""
    custom = defaults.get("custom", {})
    if custom.get("scaleDistribution", {}).get("type") == "log" and any(v > 0 for v in values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(_seconds))
        return
    low = defaults.get("min", min([0.0, *values]))
    high = max([custom.get("axisSoftMax", 0.0), *values], default=0.0) or 1.0
    high = defaults.get("max", 1.08 * high)
    axes.set_ylim(low - 0.03 * (high - low), high)
    if defaults["unit"] == "bytes":
        step = 1024.0 ** max(0, int(math.log(max(high, 1.0), 1024)))
        each = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if high / (n * step) <= 6)
        axes.yaxis.set_major_locator(MultipleLocator(each * step))
    else:
        whole = defaults["unit"] == "none"
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=whole))
    text = text_of(defaults["unit"], high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    if "thresholdsStyle" not in custom:
        return
    for step in defaults["thresholds"]["steps"]:
        at, colour = step["value"], THRESHOLDS.get(step["color"], step["color"])
        if at is not None and low <= at <= high:
            axes.axhline(at, color=colour, linestyle=(0, (4, 4)), linewidth=1)


def _bars(axes: Axes, found: Sequence[Series], defaults: Json) -> None:
    """The last value of each, least first; what is beyond the limits ends there."""
    low, high = defaults["min"], defaults["max"]
    text = text_of(defaults["unit"], high)
    ordered = sorted(found, key=lambda series: -series.points[-1][1])
    for place, series in enumerate(ordered):
        value = series.points[-1][1]
        steps = defaults["thresholds"]["steps"]
        steps = [s for s in steps if s["value"] is None or s["value"] <= value]
        colour = THRESHOLDS.get(steps[-1]["color"], steps[-1]["color"])
        axes.barh(place, min(max(value, low), high), height=0.4, color=colour, alpha=0.7)
        axes.text(
            low, place + 0.24, f" {series.legend}: {text(round(value, 2))}", va="bottom", fontsize=9
        )
    axes.axvline(0.0, color="black", linewidth=1)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.5, max(len(ordered), 1) - 0.2)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _seconds(value: float, _: object = None) -> str:
    return f"{1000 * value:g} ms" if 0 < value < 1 else f"{value:g} s"


def text_of(unit: str, highest: float) -> Callable[[float], str]:
    """How the numbers of an axis up to there are written, about as Grafana does."""
    if unit == "s":
        return (lambda v: f"{1000 * v:g} ms") if highest < 1 else (lambda v: f"{v:g} s")
    if unit == "percentunit":
        return lambda v: f"{round(100 * v, 4):,.10g}%"
    if unit == "bytes":
        return (lambda v: f"{v / 1024:g} KiB") if highest >= 1024 else (lambda v: f"{v:g} B")
    if unit.startswith("suffix:"):
        return lambda v: f"{round(v, 6):,.10g}{unit.removeprefix('suffix:')}"
    suffix = {"reqps": " req/s", "ops": " ops/s", "wps": " writes/s", "short": "", "none": ""}[unit]
    return lambda v: f"{round(v, 6):,.10g}{suffix}"
