"""The rate limits' counters over a restart: without it, a month's limit would begin anew with each.

Theory. The monotonic clock means nothing to the next process, so each slice is written with the
begin of its time by the wall clock; restored, it counts for as long as it would have (a slice of a
rolling window up to one slice longer, never shorter). What has left its window meanwhile does not
count. A reservation in flight stays counted as reserved: what the cut-off stream had used is not
known, and no other process can settle it. O(slices) a window.

The states are dataclasses that ``contracts.encode`` and ``contracts.decode`` turn to and from JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.scheduling.contracts import LimitWindow
from tidegate.scheduling.limit_window import Clocks, Window
from tidegate.scheduling.rate_limit import RateLimiter, WindowKey, make_window


@dataclass(frozen=True, slots=True)
class SliceState:
    """Part of a window."""

    begin_utc: float
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowState:
    """One limit of one tenant."""

    tenant: str
    limit: str
    per: LimitWindow
    slices: tuple[SliceState, ...]


def window_state(key: WindowKey, window: Window, clocks: Clocks) -> WindowState:
    """One of ``RateLimiter.windows`` as it is now."""
    window.advance(clocks)
    slices = tuple(
        SliceState(window.begin_utc(part, clocks), part.requests, part.tokens)
        for part in window.slices.values()
    )
    return WindowState(*key, slices)


def restore_state(limiter: RateLimiter, states: Iterable[WindowState], clocks: Clocks) -> None:
    """Count on from exported counters; before anything was reserved."""
    for state in states:
        window = make_window(state.per)
        window.advance(clocks)
        for taken in state.slices:
            part = window.slice_at(taken.begin_utc, clocks)
            window.add(part, taken.requests, taken.tokens)
        limiter.windows[state.tenant, state.limit, state.per] = window
