"""Progress of a run: a bar on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.load.run import LoadRun
from tidegate.load.sample import SampleState

_REFRESH_SECONDS = 0.2
_LINE_SECONDS = 10.0


async def show_progress(run: LoadRun, console: Console, label: str) -> None:
    """Show the run's state until cancelled."""
    if console.is_terminal:
        await _bar(run, console, label)
    else:
        await _lines(run, console, label)


async def _bar(run: LoadRun, console: Console, label: str) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    duration = run.scenario.duration_seconds
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=duration, state="")
        while True:
            progress.update(
                task, completed=min(run.elapsed_seconds, duration), state=progress_line(run)
            )
            await asyncio.sleep(_REFRESH_SECONDS)


async def _lines(run: LoadRun, console: Console, label: str) -> None:
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        console.print(
            f"{label}: {run.elapsed_seconds:.0f} s of {run.scenario.duration_seconds:g} s, "
            f"{progress_line(run)}",
            highlight=False,
            soft_wrap=True,
        )


def progress_line(run: LoadRun) -> str:
    """Counts so far."""
    counts = run.counts
    return (
        f"{run.in_flight} in flight, {counts[SampleState.OK]} ok, "
        f"{counts[SampleState.REFUSED]} refused, {counts[SampleState.FAILED]} failed"
    )
