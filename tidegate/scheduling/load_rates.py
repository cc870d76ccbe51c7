"""How much work an engine takes: at once where it has room, else at what rate; what a tier is sent.

Use: the host tells of arrivals, dispatches and ends; ``waiting_time`` asks. O(1).

Theory. A full engine takes work at the rate at which it ends work (R): the cost of what ended while
something waited, over that time, the time since the last dispatch included, so that a queue which
stands still is a slow one. Only a wait that an end cut short is measured: while the seats of an
idle engine fill, dispatches wait for each other's prefills, which says nothing about a full one. An
end without any work (refused by the engine, put back) is none: it took no time. R is averaged over
dispatches, not over time, and so forgets as fast as it learns.

An engine that is not full takes at once what it has room for: what it can hold, less what is in
flight. What it can hold is the cost in flight at which dispatches waited for ends, and at least the
most that it has held since the last of those.

What is sent is averaged over the last half minute or so: it is what a forecast of seconds needs to
know, and bursts shorter than that are in the queues already.

Bound: of what went before, R keeps (31/32)^n after n dispatches that it counts (5% after 95), and
what is sent keeps exp(-t/30 s) (5% after 90 s): a change is followed that fast, and no faster.

Invariants: never negative; unknown (None) is never zero. Costs are in the unit of the caller, a
request's the same at its arrival, dispatch and end.
Source: exponential averages (Holt 1957), for the live throttle of source 002.
"""

from __future__ import annotations

from math import exp

MEMORY_SECONDS = 30.0
"""Time constant of what is offered."""
MEMORY_DISPATCHES = 32
"""Number of dispatches that the service rate remembers."""


class ServiceRate:
    """Of one engine."""

    __slots__ = ("_cost", "_ended", "_holds", "_in_flight", "_seconds", "_waiting_since")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._waiting_since: float | None = None
        """Something waits, and that long nothing was dispatched."""
        self._ended = 0.0
        """Cost that the engine ended since then."""
        self._in_flight = 0.0
        self._holds = 0.0

    @property
    def room(self) -> float:
        """Cost that it takes at once."""
        return max(self._holds - self._in_flight, 0.0)

    def waiting(self, now: float) -> None:
        """Something waits, whether or not anything did before."""
        if self._waiting_since is None:
            self._waiting_since = now
            self._ended = 0.0

    def idle(self) -> None:
        """Nothing waits any more."""
        self._waiting_since = None

    def dispatched(self, cost: float, others_wait: bool, now: float) -> None:
        """A request of this cost went to the engine."""
        self._in_flight += cost
        if self._waiting_since is not None and self._ended > 0:
            made_way = min(cost, self._ended)
            fade = 1 - 1 / MEMORY_DISPATCHES
            self._cost = self._cost * fade + made_way
            self._seconds = self._seconds * fade + max(now - self._waiting_since, 0.0)
            self._ended -= made_way
            self._holds += (self._in_flight - self._holds) / MEMORY_DISPATCHES
        self._holds = max(self._holds, self._in_flight)
        self._waiting_since = now if others_wait else None

    def ended(self, cost: float, served: bool = True) -> None:
        """A dispatched request of this cost is out of flight; ``served``: by work of the engine."""
        self._in_flight = max(self._in_flight - cost, 0.0)
        if served:
            self._ended += cost

    def restart(self, in_flight: float) -> None:
        """What is in flight, counted anew."""
        self._in_flight = in_flight
        self._waiting_since = None

    def per_second(self, now: float) -> float | None:
        """R, in cost per second; None: not measured yet."""
        seconds = self._seconds
        if self._waiting_since is not None:
            seconds += max(now - self._waiting_since, 0.0)
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
