"""Every figure again with each constant of the engine model at 0.8 and at 1.2.

One mechanism for all simulated benchmarks: the runs that a figure needs, with one seed and
shortened (the benchmark says to what), are made once as they are and once for each constant and
factor; the figures are computed from each. One table: a row for each figure, a column for each
constant, in it the value at 0.8 and at 1.2. What a shortened run says is how far a constant moves
a figure; the figure itself is that of the whole run.

A constant is varied in all engines of a system at once, and in every system alike. Where engines
have a draft, its passes and its acceptance are varied, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from report import Figure
from rich.console import Console
from rich.table import Table
from simulated import DRAFT_CONSTANTS, Results, Run, execute

from tidegate.simulator.engine_model import CALIBRATIONS
from tidegate.simulator.engine_model.calibrations import FACTORS

Figures = Callable[[Results], Sequence[Figure]]
_AS_IT_IS = ""


def constants(with_drafts: bool) -> list[str]:
    """Names of all constants that are not 0."""
    names = [name for name, _, _ in CALIBRATIONS["h100_70b_tp8"].variations()]
    return [*dict.fromkeys(names), *(DRAFT_CONSTANTS if with_drafts else ())]


def sensitivity(
    runs: Sequence[Run],
    figures: Figures,
    jobs: int,
    console: Console,
    *,
    with_drafts: bool = False,
) -> list[Figure]:
    """The figures of these runs as they are, and with each constant varied; prints the table."""
    names = constants(with_drafts)
    variations = {_AS_IT_IS: list(runs)}
    for name in names:
        for factor in FACTORS:
            variations[_label(name, factor)] = [
                replace(run, key=_key(run.key, _label(name, factor)), constant=name, factor=factor)
                for run in runs
            ]
    done = execute([run for those in variations.values() for run in those], jobs, console, "runs")
    found: dict[str, Sequence[Figure]] = {}
    for label in variations:
        own = {(run.key, run.seed): done[_key(run.key, label), run.seed] for run in runs}
        found[label] = figures(own)
    console.print(_table(found, names))
    return [
        replace(one, name=f"{one.name} ({label or 'shortened, constants as they are'})")
        for label, those in found.items()
        for one in those
    ]


def _label(constant: str, factor: float) -> str:
    return f"{constant} x {factor:g}"


def _key(key: str, label: str) -> str:
    return f"{key} ({label})" if label else key


def _table(found: dict[str, Sequence[Figure]], names: Sequence[str]) -> Table:
    table = Table(title="shortened; constants at 0.8 | 1.2", title_justify="left")
    for header in ("figure", "aim", "as they are", *(_short(name) for name in names)):
        table.add_column(header, justify="left" if header == "figure" else "right")
    for index, one in enumerate(found[_AS_IT_IS]):
        cells = [
            " | ".join(_shown(found[_label(name, factor)][index]) for factor in FACTORS)
            for name in names
        ]
        table.add_row(f"{one.name}, {one.unit}", str(one.aim or ""), _shown(one), *cells)
    return table


def _short(name: str) -> str:
    return name.removesuffix("_seconds").removesuffix("_tokens").replace("_", " ")


def _shown(one: Figure) -> str:
    if one.value is None:
        return "-"
    text = f"{one.value:,.0f}" if abs(one.value) >= 1000 else f"{one.value:.3g}"
    return f"[red]{text}[/]" if one.met is False else text
