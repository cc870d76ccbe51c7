"""How long a request would wait for its dispatch, under the policy in force.

Use: keep ``tier_loads`` and the rates of ``load_rates`` up to date; then ``predict`` gives a
``WaitForecast``. O(tiers), at most 64.

Theory
------
A fluid model of what the scheduler does, in its own unit of cost (tokens, or EngineTime), at the
rate R at which the engine was seen to take work while work waited. A request waits for

* *own*: what its own tenant has queued before it;
* what the tenants beside it in its tier get meanwhile: each its weight's share of that and of what
  its tenant owes the round robin, but not more than they have and are sent meanwhile;
* what its tier must yield. Strict: all that tiers of higher priority have and are sent, and the
  reservations of lower tiers that wait; an equal tier takes as much as this one. Weighted: each
  other tier its share of the excess. Neither more than they have and are sent meanwhile.

Of all that, what the engine takes at once (its ``room``) delays the request by its prefill only, a
``room_ratio`` of its cost. "Meanwhile" is the wait itself, so the forecast is a fixed point; it is
approached from above, from the wait in which all take their full shares. A reservation r bounds it
to its tier's work / (r R), a limit m prolongs it, while others wait, to its tier's work / (m R).

Hence a tenant with nothing queued and no debt waits for no other of its tier, whatever that has
queued: round robin serves it next. Its wait is what its tier yields.

``seconds(after)`` is the forecast for a request sent later, if nobody sends anything meanwhile:
what is queued shrinks by R x after, and what was offered is forgotten as ``OfferedRate`` forgets
it. It never rises with ``after``, which makes a true Retry-After a matter of bisection.

Bound: no shorter than a fluid's wait at the rate R; a real one differs by the grain of requests.
Source: GPS (Parekh and Gallager 1993); mClock (OSDI 2010) for reservation and limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf
from typing import NamedTuple

from tidegate.scheduling.load_rates import MEMORY_SECONDS
from tidegate.scheduling.tier_loads import TierLoad

ROUNDS = 6
"""Of the iteration; each of its values is an upper bound, so stopping early is on the safe side."""


class Sharer(NamedTuple):
    """Who is served beside a request, in turns."""

    queued: float
    offered_per_second: float
    ratio: float
    """Cost that it is served for each that this one is (the tenant; for tiers: the tier)."""


@dataclass(frozen=True, slots=True)
class WaitForecast:
    """Of one request."""

    own: float
    debt: float
    """Of its tenant: its neighbours are given their shares of that too."""
    neighbours: Sharer
    """The other tenants of its tier."""
    tiers: tuple[Sharer, ...]
    """That take turns with its own."""
    ahead: float
    """Queued in tiers that go first."""
    arriving_rate: float
    """What those keep being sent."""
    rate: float
    """R, less what lower tiers have reserved."""
    reserved_rate: float
    limit_rate: float
    """Infinite: no limit holds."""
    room: float = 0.0
    """Cost that the engine takes at once ..."""
    room_ratio: float = 1.0
    """... and the part of it that others wait for nevertheless."""

    def seconds(self, after: float = 0.0) -> float:
        """The wait of the same request sent so much later; may be infinite."""
        work, _ = self._work(1.0, 0.0, 0.0)
        left = 1.0 - self.rate * after / work if work > 0 else 0.0
        if left <= 0:
            return 0.0
        fade = exp(-after / MEMORY_SECONDS)
        rate = self.rate - self.arriving_rate * fade
        wait = inf
        for _ in range(ROUNDS):
            work, mine = self._work(left, fade, wait)
            at_once = min(self.room, work) * (1.0 - self.room_ratio)
            work, mine = work - at_once, max(mine - at_once, 0.0)
            shorter = work / rate if rate > 0 else inf
            if self.reserved_rate > 0:
                shorter = min(shorter, mine / self.reserved_rate)
            shorter = max(shorter, mine / self.limit_rate)
            if shorter >= wait:
                break
            wait = shorter
        return wait

    def _work(self, left: float, fade: float, wait: float) -> tuple[float, float]:
        """Cost that is served within ``wait``, and of that its tier's; ``left`` of what waits."""
        own, debt = self.own * left, self.debt * left
        mine = own + _taken(self.neighbours, own + debt, left, fade, wait)
        shared = sum([_taken(tier, mine, left, fade, wait) for tier in self.tiers])
        return self.ahead * left + mine + shared, mine


def _taken(sharer: Sharer, served: float, left: float, fade: float, wait: float) -> float:
    arriving = sharer.offered_per_second * fade
    most = sharer.queued * left + (arriving * wait if arriving else 0.0)
    return min(most, served * sharer.ratio)


NO_WAIT = WaitForecast(0.0, 0.0, Sharer(0.0, 0.0, 0.0), (), 0.0, 0.0, 1.0, 0.0, inf)


def predict(
    own: float,
    tenant_weight: int,
    tier: TierLoad,
    others: Iterable[TierLoad],
    rate: float | None,
    weighted: bool,
    room: float = 0.0,
    room_ratio: float = 1.0,
    debt: float = 0.0,
) -> WaitForecast:
    """The forecast for a request behind ``own`` cost that its tenant has queued.

    ``rate``: R (None: not measured, and nothing is predicted); ``weighted``: between the tiers;
    ``room``: of ``ServiceRate``; ``room_ratio``: the part of costs that is prefill; ``debt``: what
    its tenant owes the round robin of its tier.
    """
    if rate is None:
        return NO_WAIT
    others = list(others)
    beside = max(tier.active_weight - tenant_weight, 0.0)
    sent = tier.offered_per_second * beside / max(tier.active_weight, tenant_weight)
    waiting = [other for other in others if other.queued > 0]
    taking_turns, higher, left = _between_tiers(tier, others, waiting, rate, weighted)
    return WaitForecast(
        own,
        debt,
        Sharer(max(tier.queued - own, 0.0), sent, beside / tenant_weight),
        taking_turns,
        sum([other.queued for other in higher]),
        sum([other.offered_per_second for other in higher]),
        left,
        tier.reserved_ratio * rate,
        tier.limit_ratio * rate if waiting and tier.limit_ratio < 1 else inf,
        room,
        room_ratio,
    )


def _between_tiers(
    tier: TierLoad,
    others: list[TierLoad],
    waiting: list[TierLoad],
    rate: float,
    weighted: bool,
) -> tuple[tuple[Sharer, ...], list[TierLoad], float]:
    """The tiers that take turns with this one, those that go first, and the rate left for these."""
    if not weighted:
        equal = [other for other in waiting if other.priority == tier.priority]
        lower = [other for other in waiting if other.priority < tier.priority]
        return (
            tuple(Sharer(other.queued, other.offered_per_second, 1.0) for other in equal),
            [other for other in others if other.priority > tier.priority],
            rate * (1.0 - sum([other.reserved_ratio for other in lower])),
        )
    excess = max(1.0 - tier.reserved_ratio - sum([each.reserved_ratio for each in waiting]), 0.0)
    each = excess / (tier.weight + sum([other.weight for other in waiting]))
    mine = tier.reserved_ratio + each * tier.weight
    sharers = [
        Sharer(
            other.queued,
            other.offered_per_second,
            (other.reserved_ratio + each * other.weight) / max(mine, 1e-9),
        )
        for other in waiting
    ]
    return tuple(sharers), [], rate
