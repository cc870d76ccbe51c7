"""Percentiles by nearest rank: each is a value that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.scheduling.contracts import Percentiles


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least ``percent`` % of the ordered values do not exceed."""
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(1, rank) - 1]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Percentiles(p50=p50, p95=p95, p99=p99, max=ordered[-1])
