"""How far a simulation is, as the terminal shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

from tidegate.cli import simulate_systems as systems
from tidegate.simulator.simulation.run import Progress

_LINE_SECONDS = 10.0


@contextmanager
def watching(console: Console) -> Iterator[systems.Watch]:
    """A bar for each simulation on a terminal, else a line now and then."""
    if not console.is_terminal:
        yield lambda what, seconds: _lines(console, what, seconds)
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.percentage:>3.0f}%"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as progress:

        def watch(what: str, seconds: float) -> Progress:
            task = progress.add_task(what, total=seconds)
            return lambda now: progress.update(task, completed=now)

        yield watch


def _lines(console: Console, what: str, seconds: float) -> Progress:
    last = time.monotonic()

    def reached(now: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            console.print(
                f"{what}: {now:,.0f} s of {seconds:,.0f} s", highlight=False, soft_wrap=True
            )

    return reached
