"""A calendar window (Day, Month) in UTC: a budget for each day or month.

Theory. One slice for each day or month, by the wall clock, which may be stepped. Each day has a
number and a slice of its own, so a clock that goes back finds what it had counted there, and no
step to and fro gives a second allowance; the two days last used are kept. Time zones play no part:
days are counted from the epoch.

Bound: the limit in each day or month of UTC, while the clock stays within the two last used; so up
to twice the limit in the hours around its end. O(1). Source: public case O9.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor

from tidegate.scheduling.contracts import LimitWindow
from tidegate.scheduling.limit_window import Clocks, Slice, Window

SLICES_KEPT = 2
_DAY_SECONDS = 86_400


class CalendarWindow(Window):
    """A day or a month in UTC."""

    def __init__(self, per: LimitWindow) -> None:
        super().__init__()
        self._index_of = day_of if per is LimitWindow.DAY else month_of
        self._begin_of = _day_begin if per is LimitWindow.DAY else _month_begin
        self._index = 0

    @property
    def taken(self) -> tuple[int, int]:
        part = self.slices.get(self._index)
        return (part.requests, part.tokens) if part else (0, 0)

    def advance(self, clocks: Clocks) -> None:
        self._index = self._index_of(clocks.utc)

    def current(self) -> Slice:
        part = self.slices.pop(self._index, None) or Slice(self._index)
        self.slices[self._index] = part
        while len(self.slices) > SLICES_KEPT:
            del self.slices[next(iter(self.slices))]
        return part

    def add(self, to: Slice, requests: int, tokens: int) -> None:
        if self.slices.get(to.index) is to:
            to.requests += requests
            to.tokens += tokens

    def replace(self, requests: int, tokens: int) -> None:
        self.slices.pop(self._index, None)
        self.add(self.current(), requests, tokens)

    def wait_seconds(self, clocks: Clocks, requests: float, tokens: float) -> float:
        taken_requests, taken_tokens = self.taken
        if taken_requests <= requests and taken_tokens <= tokens:
            return 0.0
        return self._begin_of(self._index + 1) - clocks.utc

    def begin_utc(self, part: Slice, clocks: Clocks) -> float:
        return self._begin_of(part.index)

    def slice_at(self, begin_utc: float, clocks: Clocks) -> Slice:
        return self._slice(self._index_of(begin_utc))


def day_of(utc: float) -> int:
    """Days since the epoch."""
    return floor(utc / _DAY_SECONDS)


def _day_begin(index: int) -> float:
    return float(index * _DAY_SECONDS)


def month_of(utc: float) -> int:
    """Months since the year 0."""
    date = datetime.fromtimestamp(utc, UTC)
    return date.year * 12 + date.month - 1


def _month_begin(index: int) -> float:
    return datetime(index // 12, index % 12 + 1, 1, tzinfo=UTC).timestamp()
