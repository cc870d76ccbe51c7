"""Tables that fit the width of a terminal by saying less, never by cutting what they say. Pure.

A column in which nothing is known goes. What is still too wide gives way in the order that the
table names: a column is written shorter as long as it has a shorter version, then it goes. Those
that are not named stay; a name that leaves no room is folded over several lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.markup import escape, render
from rich.table import Table

UNKNOWN = "-"
GAP = 2
"""Between two columns."""


@dataclass(slots=True)
class Column:
    """One column; cells are markup."""

    heading: str
    """A line break stands where it is broken."""
    cells: list[str]
    words: bool = False
    """To the left; figures go to the right."""
    folds: bool = False
    """Over several lines where there is no room."""
    shorter: tuple[list[str], ...] = ()
    """Ever shorter versions of the cells."""

    @property
    def name(self) -> str:
        """The heading in one line."""
        return " ".join(self.heading.split())

    @property
    def width(self) -> int:
        """Of the widest of its cells and its heading."""
        return max(
            [cell_len(line) for line in self.heading.splitlines()]
            + [cell_len(render(cell).plain) for cell in self.cells]
        )

    @property
    def empty(self) -> bool:
        """Whether there are rows and nothing in it is known of any."""
        return bool(self.cells) and all(cell == UNKNOWN for cell in self.cells)


def names(heading: str, cells: Sequence[str]) -> Column:
    """A column of names, which stay whole."""
    return Column(heading, [escape(cell) for cell in cells], words=True, folds=True)


def words(heading: str, cells: Sequence[str], *shorter: Sequence[str]) -> Column:
    """A column of plain text, and its shorter versions."""
    versions = [[escape(cell) for cell in version] for version in (cells, *shorter)]
    return Column(heading, versions[0], words=True, shorter=tuple(versions[1:]))


def fitted(columns: Sequence[Column], yielding: Sequence[str], width: int) -> Table:
    """The table of these columns; ``yielding`` names what gives way, a step each, first first."""
    if not any(column.cells for column in columns):
        return _nothing(columns[0])
    shown = [column for column in columns if not column.empty]
    for name in yielding:
        if _width(shown) <= width:
            break
        shown = _with_less(shown, name)
    table = Table(box=None, pad_edge=False)
    for column in shown:
        table.add_column(
            column.heading,
            justify="left" if column.words else "right",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*row)
    return table


def _nothing(first: Column) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first.heading, no_wrap=True)
    table.add_row("none active")
    return table


def _with_less(columns: list[Column], name: str) -> list[Column]:
    """That column shorter, or without it where it has no shorter version."""
    found = []
    for column in columns:
        if column.name == name:
            if not column.shorter:
                continue
            column = Column(
                column.heading, column.shorter[0], column.words, column.folds, column.shorter[1:]
            )
        found.append(column)
    return found


def _width(columns: Sequence[Column]) -> int:
    return sum([column.width for column in columns]) + GAP * (len(columns) - 1)
