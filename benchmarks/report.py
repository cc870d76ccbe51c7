"""Figures of a benchmark: what was measured, what was aimed at, and whether it was met.

A figure that could not be measured has no value, `met` null and the reason in `why`; it is never
left out, so that two runs can be laid side by side. A benchmark measures and does not judge: its
exit code is 0 whether or not its aims are met, and other than 0 only when it could not run at all.
"""

from __future__ import annotations

import argparse
import json
import operator
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
FILE_COLUMNS = 240


@dataclass(frozen=True, slots=True)
class Aim:
    """`value op aim`, such as `>= 0.97`."""

    op: str
    value: float

    def __str__(self) -> str:
        return f"{self.op} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. Without an aim it is there to be read."""

    name: str
    value: float | None
    unit: str
    aim: Aim | None
    met: bool | None
    why: str


def figure(
    name: str, value: float | None, unit: str, aim: Aim | None = None, why: str = ""
) -> Figure:
    """A figure, with `met` worked out. ValueError for a missing value without a reason."""
    if value is None and not why:
        raise ValueError(f"{name}: a figure without a value needs a reason")
    met = None if value is None or aim is None else _COMPARE[aim.op](value, aim.value)
    return Figure(name, value, unit, aim, met, why)


def figures_table(title: str, figures: Sequence[Figure]) -> Table:
    """One row a figure."""
    table = Table(title=title, title_justify="left")
    for header in ("figure", "value", "unit", "aim", "met", "why"):
        table.add_column(header, justify="right" if header == "value" else "left")
    words = {True: "[green]yes", False: "[red]no", None: "-"}
    for one in figures:
        value = "-" if one.value is None else f"{one.value:,.3g}"
        if one.value is not None and abs(one.value) >= 1000:
            value = f"{one.value:,.0f}"
        table.add_row(one.name, value, one.unit, str(one.aim or ""), words[one.met], one.why)
    return table


def write_json(path: Path, benchmark_name: str, figures: Sequence[Figure]) -> None:
    """The figures, with when and on what they were measured."""
    report: dict[str, Any] = {
        "benchmark": benchmark_name,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": len(_cores()),
            "architecture": platform.machine(),
            "python": platform.python_version(),
        },
        "figures": [asdict(one) for one in figures],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def _cores() -> Sequence[int]:
    import os

    return sorted(os.sched_getaffinity(0))


def benchmark(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace, Console], Sequence[Figure]],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> int:
    """Reads `--json FILE` and own options, measures, prints and writes; the exit code."""
    parser = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    if options is not None:
        options(parser)
    arguments = parser.parse_args()
    # a file's width is nobody's: tables are not folded there
    console = Console(width=None if sys.stdout.isatty() else FILE_COLUMNS)
    figures = measure(arguments, console)
    console.print(figures_table(name, figures))
    if arguments.json is not None:
        write_json(arguments.json, name, figures)
        console.print(f"written: {arguments.json}")
    return 0
