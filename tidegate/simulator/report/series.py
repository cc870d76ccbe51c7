"""What the plots draw, thinned to what a plot can show. Pure.

Thinning keeps what a reader looks for: of a distribution the tail (points are evenly spaced in the
number of nines), of a queue its peaks, of a rate its sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, log10

from tidegate.simulator.simulation.result import SimulationResult, TimeSample

POINTS = 240
CACHED = "cached, held by nobody"


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot."""

    x: tuple[float, ...]
    y: tuple[float, ...]


def distribution(latencies: Iterable[float], points: int = POINTS) -> Curve:
    """How many of all (y, 0..1) took at most so long (x, seconds); infinite ones never did."""
    values = sorted(latencies)
    finite = sum(map(isfinite, values))
    if not finite:
        return Curve((), ())
    count = len(values)
    nines = log10(count) if count > 1 else 1.0
    ranks = {1, finite}
    for point in range(points):
        part = 1 - 10 ** (-nines * point / points)
        ranks.add(min(finite, max(1, round(part * count))))
    ordered = sorted(ranks)
    return Curve(
        tuple(values[rank - 1] for rank in ordered), tuple(rank / count for rank in ordered)
    )


def queued(result: SimulationResult) -> dict[str, Curve]:
    """Requests that wait, by tier: the most in each interval."""

    def waiting(tier: str) -> Callable[[TimeSample], float]:
        return lambda sample: sample.queued.get(tier, 0)

    return {tier: _reduced(result.samples, waiting(tier), max) for tier in result.tiers}


def kv_percent(result: SimulationResult, pools: Mapping[str, str]) -> dict[str, Curve]:
    """Percent of all KV blocks held, by pool (a tier in none stands for itself), and cached."""
    members: dict[str, list[str]] = {}
    for tier in result.tiers:
        members.setdefault(pools.get(tier, tier), []).append(tier)

    def held(tiers: Sequence[str]) -> Callable[[TimeSample], float]:
        return lambda sample: _percent_of_kv(
            sample, sum(sample.kv_blocks.get(tier, 0) for tier in tiers)
        )

    curves = {pool: _reduced(result.samples, held(tiers), _mean) for pool, tiers in members.items()}
    curves[CACHED] = _reduced(
        result.samples, lambda sample: _percent_of_kv(sample, sample.kv_cached_blocks), _mean
    )
    return curves


def service_rates(result: SimulationResult) -> dict[str, Curve]:
    """Tokens computed per second, by tier, of each interval."""
    samples = result.samples
    if len(samples) < 2:
        return {tier: Curve((), ()) for tier in result.tiers}
    times = [sample.time for sample in samples]
    first, last = times[0], times[-1]
    edges = [first + (last - first) * step / POINTS for step in range(POINTS + 1)]
    marks = sorted({max(0, bisect_right(times, edge) - 1) for edge in edges})
    return {tier: _rates([samples[mark] for mark in marks], tier) for tier in result.tiers}


def _rates(samples: Sequence[TimeSample], tier: str) -> Curve:
    x, y = [], []
    for before, after in pairwise(samples):
        seconds = after.time - before.time
        if seconds > 0:
            gained = after.service_tokens.get(tier, 0.0) - before.service_tokens.get(tier, 0.0)
            x.append((before.time + after.time) / 2)
            y.append(gained / seconds)
    return Curve(tuple(x), tuple(y))


def _reduced(
    samples: Sequence[TimeSample],
    value: Callable[[TimeSample], float],
    reduce: Callable[[Sequence[float]], float],
) -> Curve:
    width = max(1, -(-len(samples) // POINTS))
    groups = [samples[start : start + width] for start in range(0, len(samples), width)]
    return Curve(
        tuple(group[-1].time for group in groups),
        tuple(reduce([value(sample) for sample in group]) for group in groups),
    )


def _percent_of_kv(sample: TimeSample, blocks: int) -> float:
    return 100.0 * blocks / sample.kv_total_blocks if sample.kv_total_blocks else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
