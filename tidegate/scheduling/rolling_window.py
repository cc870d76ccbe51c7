"""A rolling window (Minute, Hour): never more than the limit in any so many seconds.

Theory. Time is cut into slices of a 60th of the window. What is taken counts in the slice of its
moment, and a slice counts until a whole window has passed since its end. So everything counts for
at least the window and at most a 60th longer: in no interval as long as the window is more than the
limit counted, wherever it begins, with 61 numbers in the place of a list of all requests. (A token
bucket, or a window that starts anew, lets through twice the limit in one such interval.)

It follows the monotonic clock and does not notice the wall clock, but to carry a state over a
restart; a time before the last one seen counts as the last one.

Bound: the limit in any interval of a window's length; who waits to be let in waits at most a 60th
of the window longer than with a list (two, over a restart). O(1) amortised, ``wait_seconds`` O(60).
Source: the sliding-window counter of gateways, made exact to the safe side; public case O9.
"""

from __future__ import annotations

from math import floor, inf

from tidegate.scheduling.limit_window import Clocks, Slice, Window

SLICES = 60


class RollingWindow(Window):
    """Any so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._slice_seconds = seconds / SLICES
        self._now = -inf
        self._requests = 0
        self._tokens = 0

    @property
    def taken(self) -> tuple[int, int]:
        return self._requests, self._tokens

    def advance(self, clocks: Clocks) -> None:
        self._now = max(self._now, clocks.now)
        oldest = self._index(self._now) - SLICES
        while self.slices and (first := next(iter(self.slices))) < oldest:
            gone = self.slices.pop(first)
            self._requests -= gone.requests
            self._tokens -= gone.tokens

    def current(self) -> Slice:
        return self._slice(self._index(self._now))

    def add(self, to: Slice, requests: int, tokens: int) -> None:
        if self.slices.get(to.index) is to:
            to.requests += requests
            to.tokens += tokens
            self._requests += requests
            self._tokens += tokens

    def replace(self, requests: int, tokens: int) -> None:
        self.slices.clear()
        self._requests = self._tokens = 0
        self.add(self.current(), requests, tokens)

    def wait_seconds(self, clocks: Clocks, requests: float, tokens: float) -> float:
        left_requests, left_tokens = self._requests, self._tokens
        leaves = self._now
        for part in self.slices.values():
            if left_requests <= requests and left_tokens <= tokens:
                break
            left_requests -= part.requests
            left_tokens -= part.tokens
            leaves = (part.index + 1 + SLICES) * self._slice_seconds
        return leaves - self._now

    def begin_utc(self, part: Slice, clocks: Clocks) -> float:
        return clocks.utc - (self._now - part.index * self._slice_seconds)

    def slice_at(self, begin_utc: float, clocks: Clocks) -> Slice:
        index = self._index(self._now - max(clocks.utc - begin_utc, 0.0))
        # In the next slice, which does not end before the old one did: nothing is forgotten early.
        return self._slice(min(index + 1, self._index(self._now)))

    def _index(self, now: float) -> int:
        return floor(now / self._slice_seconds)
