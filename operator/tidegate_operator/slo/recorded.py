"""What a Prometheus has of a pool's promises, believed only where it is whole, a number and fresh.

The one rule for all who ask, budgets and scaling alike: an objective is known when every series
that was asked for has it, with a finite number, recorded lately. Anything else is a text that says
which of these it is not. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str]
"""Tier and metric."""

FRESH_SECONDS = 180.0
"""Rules are evaluated every minute at the latest; Prometheus itself answers with what is 5 minutes
old."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Series of the pool's recording rules, as they were at some time."""

    series: Sequence[Mapping[Key, float]]
    recorded_at: Mapping[Key, float]
    """Since the epoch."""
    asked_at: float

    def of(self, key: Key) -> tuple[float, ...] | str:
        """One objective's number in each series, or why it is not known."""
        tier, metric = key
        what = f"{metric} of tier {tier}"
        if any(key not in found for found in (*self.series, self.recorded_at)):
            return f"Prometheus has no series for {what}: it needs the pool's rules and metrics"
        numbers = tuple(found[key] for found in self.series)
        if not all(map(math.isfinite, numbers)):
            return f"Prometheus has no number for {what}"
        # No number is not near either.
        if not abs(self.asked_at - self.recorded_at[key]) <= FRESH_SECONDS:
            return f"what Prometheus has for {what} is too old"
        return numbers


def recorded(vectors: Sequence[Sequence[Json]], times: Sequence[Json], asked_at: float) -> Recorded:
    """From instant vectors; ``times`` are those at which the first of the others was recorded."""
    return Recorded([_by_objective(vector) for vector in vectors], _by_objective(times), asked_at)


def _by_objective(vector: Sequence[Json]) -> Mapping[Key, float]:
    found = {}
    for sample in vector:
        labels = sample["metric"]
        found[labels.get("tier", ""), labels.get("objective", "")] = float(sample["value"][1])
    return found
