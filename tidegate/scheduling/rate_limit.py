"""Rate limits: the most that one tenant may take in a window, of requests and of tokens.

Use: ``RateLimiter.reserve`` before a request is queued, with those limits of
``tier.rate_limits_of(tenant)`` that count it, gives a ``Reservation`` or a ``LimitRefusal``; while
it streams ``Reservation.top_up``, at its end ``settle`` with what it used, or ``release`` where the
engine did nothing for it. O(limits).

Theory
------
Check and reservation are one act, so that requests side by side cannot all see the same room (the
scheduler has one thread). What is reserved for a request is its prompt and the output it is likely
to have, min(what it may produce, the 95th percentile of the tenant's outputs): the most that it may
produce would refuse what fits, as clients leave ``max_tokens`` high; the mean would let half of all
requests outgrow theirs. One that outgrows it is topped up while it streams, so that those after it
see what it takes; at its end what it really took stands in the place of the reservation, in the
window in which that was made.

All limits or none: a request that one limit refuses takes nothing from any, and costs nothing. One
that is larger than a limit's whole window can never pass: ``REQUEST_EXCEEDS_LIMIT`` (413), else
``RATE_LIMITED`` (429) with the seconds after which it fits, if nobody takes anything meanwhile.

Bound: when the last request of a window was admitted, all that counted and its reservation were
within the limit. What is settled in a window exceeds the limit by at most what the requests in
flight at that moment could still produce beyond their reservations, hence by less than one full
reservation (prompt and most output) for each; by nothing where all reservations are full ones.

Several pods. Each for itself, a request counts ``pods`` times, as if the others saw the same: they
stay within the limit however the requests are spread (what is larger than a pod's part of a window
passes alone). Together, the shared counts take the place of its own (:meth:`RateLimiter.observe`).

The counters survive a new policy (by the limit's name and window) and, with ``limit_state``, a
restart. Source: public cases O3, O6, O7, O9; windows: ``rolling_window``, ``calendar_window``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from math import ceil, inf
from typing import NamedTuple

from tidegate.scheduling.calendar_window import CalendarWindow
from tidegate.scheduling.contracts import LimitWindow, RateLimit
from tidegate.scheduling.limit_window import Clocks, Slice, Window
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.rolling_window import RollingWindow


class LimitRefusal(NamedTuple):
    """Why a request may not enter."""

    outcome: Outcome
    """RATE_LIMITED or REQUEST_EXCEEDS_LIMIT."""
    limit: str
    """The name of the limit that holds it up longest."""
    retry_after_seconds: int | None
    """Unset: never."""


class Room(NamedTuple):
    """What OpenAI's ``x-ratelimit-`` headers say, of requests or of tokens."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until all of it is there again, if nothing is taken meanwhile."""


class Reservation:
    """What one request has taken of its limits, from its admission to its end."""

    __slots__ = ("_parts", "_times", "tokens")

    def __init__(self, parts: Sequence[tuple[Window, Slice]], tokens: int, times: int = 1) -> None:
        self._parts = parts
        self._times = times
        self.tokens = tokens
        """Counted at present."""

    def top_up(self, tokens: int) -> None:
        """It has used so many tokens by now; counts where that is more than was reserved."""
        if tokens > self.tokens:
            self._count(0, tokens)

    def settle(self, tokens: int) -> None:
        """It ended and has used so many tokens in all; later calls change nothing."""
        self._count(0, tokens)
        self._parts = ()

    def release(self) -> None:
        """It ended without any work of the engine: as if it had never been."""
        self._count(-1, 0)
        self._parts = ()

    def _count(self, requests: int, tokens: int) -> None:
        for window, part in self._parts:
            window.add(part, requests * self._times, (tokens - self.tokens) * self._times)
        self.tokens = tokens


WindowKey = tuple[str, str, LimitWindow]
"""Tenant, name of the limit, and window."""


class RateLimiter:
    """All limits of all tenants of one scheduler."""

    def __init__(self) -> None:
        self.windows: dict[WindowKey, Window] = {}
        self.pods = 1
        """How many count for themselves, this one included."""

    def reserve(
        self, tenant: str, limits: Iterable[RateLimit], tokens: int, clocks: Clocks
    ) -> Reservation | LimitRefusal:
        """Take one request and ``tokens`` from all of ``limits``, or nothing from any.

        ``limits``: those of the tenant that count this request.
        """
        windows = []
        refusal: LimitRefusal | None = None
        times = self.pods
        for limit in limits:
            if limit.tokens is not None and tokens > limit.tokens:
                return LimitRefusal(Outcome.REQUEST_EXCEEDS_LIMIT, limit.name, None)
            window = self._window(tenant, limit, clocks)
            wait = window.wait_seconds(
                clocks,
                inf if limit.requests is None else max(limit.requests - times, 0),
                inf if limit.tokens is None else max(limit.tokens - tokens * times, 0),
            )
            seconds = max(1, ceil(wait))
            if wait > 0 and (refusal is None or seconds > (refusal.retry_after_seconds or 0)):
                refusal = LimitRefusal(Outcome.RATE_LIMITED, limit.name, seconds)
            windows.append(window)
        if refusal is not None:
            return refusal
        parts = [(window, window.current()) for window in windows]
        for window, part in parts:
            window.add(part, times, tokens * times)
        return Reservation(parts, tokens, times)

    def observe(
        self, tenant: str, limit: RateLimit, requests: int, tokens: int, clocks: Clocks
    ) -> None:
        """So much is counted in its window on all pods together, what was counted here included.

        It counts from now on for a whole window, as it is not known when it was taken.
        """
        self._window(tenant, limit, clocks).replace(requests, tokens)

    def room(
        self, tenant: str, limits: Iterable[RateLimit], clocks: Clocks
    ) -> tuple[Room | None, Room | None]:
        """Of requests and of tokens, what the limit with least left has; None: not limited."""
        requests: Room | None = None
        tokens: Room | None = None
        for limit in limits:
            window = self._window(tenant, limit, clocks)
            taken_requests, taken_tokens = window.taken
            if limit.requests is not None:
                reset = window.wait_seconds(clocks, 0, inf)
                requests = _tighter(requests, limit.requests, taken_requests, reset)
            if limit.tokens is not None:
                reset = window.wait_seconds(clocks, inf, 0)
                tokens = _tighter(tokens, limit.tokens, taken_tokens, reset)
        return requests, tokens

    def forget_unused(self, clocks: Clocks, in_force: Container[WindowKey] = ()) -> None:
        """Let go of counters in which nothing counts, but of limits ``in_force``; O(n)."""
        for key, window in list(self.windows.items()):
            if key in in_force:
                continue
            window.advance(clocks)
            if window.taken == (0, 0):
                del self.windows[key]

    def _window(self, tenant: str, limit: RateLimit, clocks: Clocks) -> Window:
        key = (tenant, limit.name, limit.per)
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = make_window(limit.per)
        window.advance(clocks)
        return window


def make_window(per: LimitWindow) -> Window:
    if per is LimitWindow.MINUTE:
        return RollingWindow(60.0)
    if per is LimitWindow.HOUR:
        return RollingWindow(3_600.0)
    return CalendarWindow(per)


def _tighter(room: Room | None, limit: int, taken: int, reset_seconds: float) -> Room:
    mine = Room(limit, max(limit - taken, 0), reset_seconds)
    return mine if room is None or mine.remaining < room.remaining else room
