"""When a tier's first tokens come far later than they used to: P99 against its own last hour.

Theory of operation
-------------------
Times to first token are counted per tier in buckets that grow by :data:`GROWTH`, in slices of
:data:`SLICE_SECONDS`. Twelve slices are a window of 60 s. Windows follow each other; one of at
least :data:`MIN_REQUESTS` requests gives a P99, and the *baseline* is the median of those of the
last hour (issue 5). The *present* P99 is that of the last twelve slices, at every slice's end. A
tier is *slow* when its present P99 was above :data:`TIMES` the baseline for
:data:`SUSTAINED_SECONDS` without a break; that is told once, and again only after it has been over.

The present P99 needs fewer requests than a window of the baseline does, because what makes first
tokens late makes them rare, too; but never is one request alone a P99.

The median leaves out an incident of less than half an hour; what is slow for longer becomes what is
usual, as it should. Clocks and times are given from outside; a clock that jumps ahead (a machine
that slept) begins anew.

Bound: a P99 read from buckets is at most :data:`GROWTH` above the true one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, isnan, log
from statistics import median

SLICE_SECONDS = 5.0
SLICES = 12
WINDOWS = 60
MIN_REQUESTS = 100
MIN_PRESENT_REQUESTS = 20
TIMES = 3.0
SUSTAINED_SECONDS = 30.0
GROWTH = 1.05
_SHORTEST_SECONDS = 1e-4
_LOG_GROWTH = log(GROWTH)


@dataclass(slots=True)
class _Tier:
    slices: deque[Counter[int]]
    """Newest last; that one still counts."""
    windows: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """P99 of each window of the last hour, NaN where it had too few requests."""
    over_slices: int = 0
    told: bool = False
    ratio: float = 0.0


class LatencyBaseline:
    """The tiers of one sidecar; ``tick`` it every :data:`SLICE_SECONDS`."""

    def __init__(self, now: float) -> None:
        self._tiers: dict[str, _Tier] = {}
        self._next = now + SLICE_SECONDS
        self._slice = 0

    def observe(self, tier: str, ttft_seconds: float) -> None:
        """A first token came."""
        row = self._tiers.get(tier)
        if row is None:
            row = self._tiers[tier] = _Tier(deque([Counter()], maxlen=SLICES))
        row.slices[-1][_bucket(ttft_seconds)] += 1

    def keep_tiers(self, names: Iterable[str]) -> None:
        """These are all that there are."""
        kept = set(names)
        self._tiers = {name: row for name, row in self._tiers.items() if name in kept}

    def ratio(self, tier: str) -> float:
        """The present P99 over the baseline; 0 where either is not known."""
        row = self._tiers.get(tier)
        return 0.0 if row is None else row.ratio

    def tick(self, now: float) -> list[str]:
        """Let time pass; the tiers that have become slow."""
        if now - self._next > SLICES * SLICE_SECONDS:
            self.__init__(now)  # type: ignore[misc]
            return []
        slow: list[str] = []
        while now >= self._next:
            self._next += SLICE_SECONDS
            self._slice += 1
            slow += [name for name, row in self._tiers.items() if self._end_slice(row)]
        return slow

    def _end_slice(self, row: _Tier) -> bool:
        counts: Counter[int] = Counter()
        for part in row.slices:
            counts.update(part)
        baseline = _baseline(row.windows)
        present = _p99(counts) if counts.total() >= MIN_PRESENT_REQUESTS else None
        row.ratio = present / baseline if present is not None and baseline is not None else 0.0
        if self._slice % SLICES == 0:
            full = counts.total() >= MIN_REQUESTS
            row.windows.append(_p99(counts) if full else float("nan"))
        row.slices.append(Counter())
        row.over_slices = row.over_slices + 1 if row.ratio > TIMES else 0
        if not row.over_slices:
            row.told = False
        if row.told or row.over_slices * SLICE_SECONDS < SUSTAINED_SECONDS:
            return False
        row.told = True
        return True


def _bucket(seconds: float) -> int:
    return max(ceil(log(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS) / _LOG_GROWTH), 0)


def _p99(counts: Counter[int]) -> float:
    """The upper bound of the bucket that holds it; of two or more requests never the last alone."""
    total = counts.total()
    rank = max(min(ceil(0.99 * total), total - 1), 1)
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            return float(_SHORTEST_SECONDS * GROWTH**bucket)
    raise ValueError("no requests")


def _baseline(windows: Iterable[float]) -> float | None:
    known = [p99 for p99 in windows if not isnan(p99)]
    return median(known) if known else None
