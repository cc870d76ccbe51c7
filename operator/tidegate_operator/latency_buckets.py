"""Histograms of several sidecars as one, and its quantiles. Pure.

Quantiles come from summed buckets, never from quantiles of quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tidegate.scheduling.contracts import Histogram

Json = dict[str, Any]


@dataclass(slots=True)
class Buckets:
    """Observations by bucket, of several sidecars with equal bounds."""

    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)

    def add(self, new: Histogram | None, old: Histogram | None) -> None:
        """Count what was observed between two states of one histogram."""
        if new is None or not new.counts:
            return
        if not self.counts:
            self.bounds, self.counts = new.bounds, [0] * len(new.counts)
        if new.bounds != self.bounds:
            return
        before = old.counts if old and old.bounds == new.bounds and old.counts else None
        for place, count in enumerate(new.counts):
            self.counts[place] += count - (before[place] if before else 0)

    def merge(self, other: Buckets) -> None:
        """Add the other's observations."""
        self.add(Histogram(other.bounds, tuple(other.counts)), None)

    def quantile_ms(self, quantile: float) -> int | None:
        """Milliseconds, interpolated within the bucket, to two digits; None without observations.

        More digits would be noise, and a difference in noise would be a write.
        """
        total = sum(self.counts)
        if total <= 0:
            return None
        rank, seen = quantile * total, 0
        for place, count in enumerate(self.counts):
            if count and seen + count >= rank:
                if place >= len(self.bounds):
                    return _two_digits(self.bounds[-1] * 1000)
                low = self.bounds[place - 1] if place else 0.0
                part = (rank - seen) / count
                return _two_digits((low + (self.bounds[place] - low) * part) * 1000)
            seen += count
        return None

    def latency(self) -> Json:
        """p50 and p99 as a status has them."""
        return {"p50Ms": self.quantile_ms(0.5), "p99Ms": self.quantile_ms(0.99)}


def _two_digits(value: float) -> int:
    if value < 1:
        return round(value)
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(round(value / scale) * scale)
