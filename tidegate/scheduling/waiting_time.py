"""How long a request would wait for its dispatch, under the policy in force.

Use: keep one ``TierLoad`` per tier up to date (``add``/``remove`` as requests enter and leave the
queues, ``active_weight`` as tenants become active or idle) and one ``ServiceRate`` per engine; then
``predict`` gives a ``WaitForecast``. O(tiers), at most 64.

Theory
------
A fluid model of what the scheduler does, in its own unit of cost (tokens, or EngineTime), at the
rate R at which the engine was seen to take work while work waited. A request waits for

* ``own``: what its own tenant has queued before it, and what that owes the round robin;
* ``tier``: what the tenants beside it get while that is served, each its weight's share, but not
  more than they have: ``min(queued by others, own x (active weight - weight) / weight)``;
* ``yielded``: what its tier must yield meanwhile. Strict: all that tiers of higher priority have
  queued, and R less what they keep sending and less the reservations of lower tiers that wait; an
  equal tier takes as much as this one, but not more than it has. Weighted: each other tier its
  share of the excess, but not more than it has.

A reservation r bounds it: no longer than (own + tier) / (r x R). A limit m prolongs it while others
wait: no shorter than (own + tier) / (m x R).

Hence a tenant with nothing queued and no debt waits for no other of its tier, whatever that has
queued: round robin serves it next. Its wait is what its tier yields.

``seconds(after)`` is the forecast for a request sent later, if nobody sends anything meanwhile: the
work shrinks by R x after, and the rate of the senders above is forgotten as ``OfferedRate`` forgets
it. It never rises with ``after``, which makes a true Retry-After a matter of bisection.

Bound: no shorter than a fluid's wait at the rate R; a real one differs by the grain of requests.
Source: GPS (Parekh and Gallager 1993); mClock's tags (OSDI 2010) for reservation and limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf

MEMORY_SECONDS = 30.0
"""Time constant of what is offered."""
MEMORY_DISPATCHES = 32
"""Of the service rate: idle seats fill within a moment, which must soon be forgotten."""


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


@dataclass(slots=True)
class TierLoad:
    """What a tier is promised, and what it has; the host keeps the second part up to date."""

    priority: int
    weight: int = 1
    reserved_ratio: float = 0.0
    limit_ratio: float = 1.0
    queued: float = 0.0
    """Cost of all that waits in it."""
    active_weight: float = 0.0
    """Weights of its tenants with anything queued or in flight."""
    offered_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitForecast:
    """Of one request."""

    work: float
    """Cost that is served before it."""
    guaranteed_work: float
    """Of that, its own tier's: what a reservation or a limit counts."""
    rate: float
    """R, less what lower tiers have reserved."""
    reserved_rate: float
    limit_rate: float
    """Infinite: no limit holds."""
    arriving_rate: float
    """What higher tiers keep sending."""

    def seconds(self, after: float = 0.0) -> float:
        """The wait of the same request sent so much later; may be infinite."""
        work = max(self.work - self.rate * after, 0.0)
        own = min(self.guaranteed_work, work)
        if not work:
            return 0.0
        left = self.rate - self.arriving_rate * exp(-after / MEMORY_SECONDS)
        wait = work / left if left > 0 else inf
        if self.reserved_rate > 0:
            wait = min(wait, own / self.reserved_rate)
        return max(wait, own / self.limit_rate)


NO_WAIT = WaitForecast(0.0, 0.0, 1.0, 0.0, inf, 0.0)


def predict(
    own: float,
    tenant_weight: int,
    tier: TierLoad,
    others: Iterable[TierLoad],
    rate: float | None,
    weighted: bool,
) -> WaitForecast:
    """The forecast for a request behind ``own`` cost of its tenant (queued, and its debt).

    ``rate``: R (None: not measured, and nothing is predicted); ``weighted``: between the tiers.
    """
    if rate is None:
        return NO_WAIT
    beside = max(tier.active_weight - tenant_weight, 0.0) / tenant_weight
    mine = own + min(max(tier.queued - own, 0.0), own * beside)
    waiting = [other for other in others if other.queued > 0]
    if weighted:
        work, left, arriving = mine + _shared(mine, tier, waiting), rate, 0.0
    else:
        higher = [other for other in others if other.priority > tier.priority]
        work = mine + sum(other.queued for other in higher)
        arriving = sum(other.offered_per_second for other in higher)
        reserved = 0.0
        for other in waiting:
            if other.priority == tier.priority:
                work += min(other.queued, mine)
            elif other.priority < tier.priority:
                reserved += other.reserved_ratio
        left = rate * (1.0 - reserved)
    return WaitForecast(
        work,
        mine,
        left,
        tier.reserved_ratio * rate,
        tier.limit_ratio * rate if waiting and tier.limit_ratio < 1 else inf,
        arriving,
    )


def _shared(mine: float, tier: TierLoad, waiting: list[TierLoad]) -> float:
    """What the other tiers get while ``mine`` is served, by reservations and weights."""
    excess = 1.0 - tier.reserved_ratio - sum(other.reserved_ratio for other in waiting)
    weights = tier.weight + sum(other.weight for other in waiting)
    share = tier.reserved_ratio + max(excess, 0.0) * tier.weight / weights
    return sum(
        min(
            other.queued,
            mine * (other.reserved_ratio + max(excess, 0.0) * other.weight / weights) / share,
        )
        for other in waiting
    )
