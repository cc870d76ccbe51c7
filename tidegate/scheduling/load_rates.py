"""At what rate an engine takes work while some waits, and at what rate a tier is sent it.

Use: the host tells them of dispatches and arrivals; ``waiting_time`` asks them. O(1).

Theory. What the engine takes (R) is averaged over dispatches, not over time: the seats of an idle
engine fill within a moment, and a rate that remembered that for seconds would promise it to those
who wait behind a full one. Only time in which something waited counts, that since the last dispatch
too, so that a queue which stands still is a slow one. What is sent is averaged over the last half
minute or so: it is what a forecast of seconds needs to know, and bursts shorter than that are in
the queues already.

Invariants: never negative; unknown (None) is never zero. Costs are in the unit of the caller.
"""

from __future__ import annotations

from math import exp

MEMORY_SECONDS = 30.0
"""Time constant of what is offered."""
MEMORY_DISPATCHES = 32
"""Number of dispatches that the service rate remembers."""


class ServiceRate:
    """Cost per second that an engine takes while something waits."""

    __slots__ = ("_backlogged_since", "_cost", "_seconds")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._backlogged_since: float | None = None

    def dispatched(self, cost: float, backlogged: bool, now: float) -> None:
        """A request of this cost left; ``backlogged``: others still wait."""
        since = self._backlogged_since
        if since is not None:
            fade = 1 - 1 / MEMORY_DISPATCHES
            self._cost = self._cost * fade + cost
            self._seconds = self._seconds * fade + max(now - since, 0.0)
        self._backlogged_since = now if backlogged else None

    def idle(self) -> None:
        """Nothing waits any more, though nothing was dispatched (cancelled, expired)."""
        self._backlogged_since = None

    def per_second(self, now: float) -> float | None:
        """None: not measured yet. A queue that stands still is part of the measurement."""
        seconds = self._seconds
        if self._backlogged_since is not None:
            seconds += max(now - self._backlogged_since, 0.0)
        return self._cost / seconds if self._cost > 0 and seconds > 0 else None


class OfferedRate:
    """Cost per second that is sent to a tier."""

    __slots__ = ("_at", "_cost")

    def __init__(self) -> None:
        self._cost = 0.0
        self._at: float | None = None

    def arrived(self, cost: float, now: float) -> None:
        """A request of this cost was sent."""
        self._cost = self._faded(now) + cost
        self._at = now

    def per_second(self, now: float) -> float:
        """Averaged over the last half minute or so."""
        return self._faded(now) / MEMORY_SECONDS

    def _faded(self, now: float) -> float:
        if self._at is None:
            return 0.0
        return self._cost * exp(-max(now - self._at, 0.0) / MEMORY_SECONDS)
