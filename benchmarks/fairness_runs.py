"""Ensembles on the engine of VTC's artifact: many runs, each constant 1% off, in parallel.

A task names a workload (a published run's file, forwards or in reverse), a policy, a seed and, for
the sensitivity to the constants, one of them and its factor. A worker reads each file once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from statistics import median

from tidegate.simulator.engine_model.calibrations import A10G_FIRST_COME
from tidegate.simulator.service_gap import ServedRequest
from tidegate.simulator.slora.engine import Engine, Limits
from tidegate.simulator.slora.lineup import ARTIFACT, CONTESTANTS, Maker
from tidegate.simulator.slora.published import read_run
from tidegate.simulator.slora.request import jobs_of, reversed_in_time
from tidegate.simulator.slora.summary import RunSummary, summarize
from tidegate.simulator.slora.timing import CONSTANTS

POOL = "pool_tokens"
FACTORS = (0.8, 1.2)
VARIATIONS = tuple((name, factor) for name in (*CONSTANTS, POOL) for factor in FACTORS)


@dataclass(frozen=True, slots=True)
class Task:
    """One member of an ensemble."""

    policy: str
    seed: int
    file: str
    published: bool = False
    """The policy is one of ARTIFACT, with the published code's quirk, not of CONTESTANTS."""
    backwards: bool = False
    variation: tuple[str, float] | None = None

    @property
    def ensemble(self) -> Task:
        return replace(self, seed=0)


Ensembles = dict[Task, list[RunSummary]]


@cache
def workload(file: Path, backwards: bool) -> tuple[ServedRequest, ...]:
    """The requests of a published run."""
    run = read_run(file)
    return tuple(reversed_in_time(run) if backwards else run)


def run_all(
    tasks: Sequence[Task], folder: Path, jobs: int, done: Callable[[int], None]
) -> Ensembles:
    """Run them on so many processes; ``done`` is told how many have ended."""
    ensembles: Ensembles = {}
    with Pool(jobs) as pool:
        work = [(task, folder) for task in tasks]
        for number, (task, summary) in enumerate(pool.imap_unordered(_run, work, 4), start=1):
            ensembles.setdefault(task.ensemble, []).append(summary)
            done(number)
    return ensembles


def _run(work: tuple[Task, Path]) -> tuple[Task, RunSummary]:
    task, folder = work
    requests = workload(folder / task.file, task.backwards)
    make: Maker = ARTIFACT[task.policy][1] if task.published else CONTESTANTS[task.policy]
    timing, limits = A10G_FIRST_COME.timing.perturbed(task.seed), Limits()
    if task.variation is not None:
        name, factor = task.variation
        if name == POOL:
            limits = Limits(pool_tokens=round(limits.pool_tokens * factor))
        else:
            timing = timing.scaled(name, factor)
    engine = Engine(timing, make({one.tenant for one in requests}), limits)
    return task, summarize(engine.run(jobs_of(requests)))


def members(prototype: Task, number: int) -> Iterable[Task]:
    """An ensemble's tasks; equal seeds mean equal noise, whatever the policy."""
    return (replace(prototype, seed=seed) for seed in range(number))


@dataclass(frozen=True, slots=True)
class Spread:
    """One number over an ensemble."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{_short(self.median)} [{_short(self.least)}..{_short(self.most)}]"

    def outside(self, value: float) -> float:
        """How far a value lies outside the range; 0: within."""
        return max(self.least - value, value - self.most, 0.0)


def spread(summaries: Sequence[RunSummary], field: str) -> Spread:
    """Median and range of one field of the summaries."""
    values = [getattr(one, field) for one in summaries]
    return Spread(median(values), min(values), max(values))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
