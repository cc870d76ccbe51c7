"""Two tenants over several pods: what one that has a single pod gets beside one that has all.

In virtual time, with the production scheduler (``replicas_fleet``), and the exchange of contended
service as a sidecar does it, against pods that do not tell each other. The gap is the greatest
difference over any interval of what two tenants were given that wait throughout, in single-pod
bounds (``deficit_round_robin.difference_bound``); the worst seed counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations
from statistics import mean

from replicas_fleet import OTHER, PINNED, SPREAD, TENANTS, Fleet, places, widest_gap
from report import Aim, Figure, benchmark, figure
from rich.console import Console

OUTAGE_SECONDS = 60.0


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--seconds", type=float, default=20.0, help="virtual, of each run")
    parser.add_argument("--seeds", type=int, default=8)


def gap(pods: int, seed: int, seconds: float, together: bool) -> float:
    """The widest, of any two tenants, in single-pod bounds; PINNED has one pod, the others all."""
    fleet = Fleet(places(pods), seed)
    if together:
        fleet.connect(*range(pods))
    served = list(fleet.run(seconds))
    return max(widest_gap(served, *pair) for pair in combinations(TENANTS, 2)) / fleet.bound


def outage_gap(pods: int, seed: int, seconds: float) -> float:
    """Of two tenants on all pods: one pod joins, then the server is away, then it is back."""
    fleet = Fleet([{SPREAD, OTHER} for _ in range(pods)], seed)
    fleet.connect(*range(pods - 1))
    served = list(fleet.run(seconds))
    fleet.connect(pods - 1)
    served += fleet.run(seconds)
    fleet.cut()
    served += fleet.run(OUTAGE_SECONDS)
    fleet.connect(*range(pods))
    served += fleet.run(seconds)
    return widest_gap(served, SPREAD, OTHER) / fleet.bound


def wait_ratio(seed: int, seconds: float) -> float:
    """SPREAD's mean wait on a busy pod, with an idle one to go to, over the same without."""
    waits = []
    for idle_pod in ({SPREAD}, set[str]()):
        fleet = Fleet([{PINNED, SPREAD}, idle_pod], seed)
        fleet.connect(0, 1)
        for _ in fleet.run(seconds):
            pass
        waits.append(mean(fleet.pods[0].waits))
    return waits[0] / waits[1]


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """All figures; the worst of the seeds each."""
    seeds, seconds = range(arguments.seeds), arguments.seconds
    figures = []
    for pods in (2, 3):
        console.print(f"{pods} pods", style="dim", highlight=False)
        shared = max(gap(pods, seed, seconds, True) for seed in seeds)
        figures.append(figure(f"gap, {pods} pods", shared, "bounds", Aim("<=", 1.5)))
        apart = max(gap(pods, seed, seconds, False) for seed in seeds)
        figures.append(figure(f"gap, {pods} pods that do not tell each other", apart, "bounds"))
        away = max(outage_gap(pods, seed, seconds) for seed in seeds)
        name = f"gap, {pods} pods: one joins, then 60 s apart"
        figures.append(figure(name, away, "bounds", Aim("<=", float(pods))))
    worst = max(wait_ratio(seed, seconds) for seed in seeds)
    figures.append(figure("wait beside an idle pod, over none", worst, "ratio", Aim("<=", 1.05)))
    return figures


if __name__ == "__main__":
    raise SystemExit(benchmark("replicas", __doc__ or "", measure, options))
