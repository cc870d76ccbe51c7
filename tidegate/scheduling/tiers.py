"""Which tier goes next: reservations first, then priority or weight, under the limits.

Theory of operation: mClock (Gulati, Merchant, Varman, OSDI 2010) with measured service in the place
of its clock, because an engine's capacity is not a known rate. ``served`` counts the work that the
engine is seen to have done over all tiers; it only rises, but for what was counted too high of one
request. Costs are in the same unit.

* ``reservation_tag``: the value of ``served`` at which the tier is due by its reservation ``r``. A
  request dispatched because the tier was due moves it on by cost / r, and corrections of its cost
  follow. One dispatched in excess does not move it where the excess goes by weight; by priority it
  sets it to at least ``served + cost / r``, as the tier was just served.
* ``limit_tag``: the value at which the tier is below its limit ``m`` again; moved on by cost / m by
  what is dispatched while another tier waits. Capacity that no other tier waits for is not limited.
* ``share``: its place among the tiers it shares the rest with (``tier_turns``): by priority
  (Strict) or by weight (Weighted).

A tier that begins to wait has both tags lifted to ``served``: no credit for the past.
Next goes the tier longest overdue; where none is due, of those under their limit the one whose turn
it is; where all that wait are over it, the one that comes under it first (work conservation).

Bounds: while a tier waits and something may be dispatched, it is dispatched at least
``r x served`` minus one request, since its tag never leads ``served`` by more than the cost / r of
one request. What two tiers are given in excess of their reservations, while both wait below their
limits, is even by weight within ``tier_turns.weighted_bound``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Generic, TypeVar

from tidegate.scheduling.contracts import BetweenTiers, TierBefore, TierPolicy
from tidegate.scheduling.tier_account import GRANTS, Grant, TierAccount
from tidegate.scheduling.tier_turns import Turn

T = TypeVar("T")


class Tiers(Generic[T]):
    """The tiers of a pool, at most 64: a decision looks at each once."""

    __slots__ = ("_tiers", "_turns", "_waiting", "_weighted", "served")

    def __init__(self) -> None:
        self._tiers: Sequence[TierAccount[T]] = ()
        self._turns: dict[int, Turn] = {}
        """By rank."""
        self._weighted = False
        self._waiting = 0
        """How many tiers wait."""
        self.served = 0.0
        """Work that the engine was seen to do; the ledger adds to it."""

    def apply_policy(
        self, rule: BetweenTiers, tiers: Sequence[tuple[TierAccount[T], TierPolicy]]
    ) -> None:
        """All tiers and their terms; what is owed is restated in them, new sharers start even."""
        weighted = rule is BetweenTiers.WEIGHTED
        if weighted is not self._weighted:
            self._weighted = weighted
            self._turns = {}
        for tier, policy in tiers:
            self._restate(tier, policy)
            rank = 0 if weighted else -policy.priority
            turn = self._turns.setdefault(rank, Turn())
            tier.share.join(turn, rank, policy.weight if weighted else 1)
        for tier in self._tiers:
            tier.shares = False  # of those that left, requests may still be in flight
        self._tiers = [tier for tier, _ in tiers]
        ranks = Counter(tier.share.rank for tier in self._tiers)
        for tier in self._tiers:
            tier.shares = ranks[tier.share.rank] > 1
        self._turns = {tier.share.rank: tier.share.turn for tier in self._tiers}

    def enter(self, tier: TierAccount[T]) -> None:
        """It begins to wait."""
        tier.waiting = True
        self._waiting += 1
        tier.share.enter()
        self.forget_credit(tier)

    def leave(self, tier: TierAccount[T]) -> None:
        """Nothing of it waits any more."""
        tier.waiting = False
        self._waiting -= 1
        tier.share.leave()

    def forget_credit(self, tier: TierAccount[T]) -> None:
        """No claim from before now."""
        served = self.served
        if tier.reservation_tag < served:
            tier.reservation_tag = served
        if tier.limit_tag < served:
            tier.limit_tag = served
        tier.share.forget_credit()

    def first(self, closed: Container[str] = ()) -> TierAccount[T] | None:
        """The tier to go next, none whose name is in ``closed``; None: none waits."""
        served = self.served
        due: TierAccount[T] | None = None
        under: TierAccount[T] | None = None
        over: TierAccount[T] | None = None
        for tier in self._tiers:
            if not tier.waiting or (closed and tier.name in closed):
                continue
            if tier.reserved_ratio and tier.reservation_tag <= served:
                if due is None or tier.reservation_tag < due.reservation_tag:
                    due = tier
            elif tier.limit_ratio >= 1 or tier.limit_tag <= served:
                if under is None or tier.share.goes_before(under.share):
                    under = tier
            elif over is None or tier.limit_tag < over.limit_tag:
                over = tier
        return due or under or over

    def why_before(self, other: TierAccount[T], mine: TierAccount[T]) -> TierBefore | None:
        """Why :meth:`first` would have the other of the two, if both waited; None: it would not."""
        theirs, own = self._standing(other), self._standing(mine)
        if theirs != own:
            if theirs > own:
                return None
            return TierBefore.RESERVATION if theirs == 0 else TierBefore.LIMIT
        if own == 0:
            overdue = other.reservation_tag < mine.reservation_tag
            return TierBefore.RESERVATION if overdue else None
        if own == 1:
            if not other.share.goes_before(mine.share):
                return None
            higher = other.share.rank < mine.share.rank
            return TierBefore.PRIORITY if higher else TierBefore.TURN
        return TierBefore.LIMIT if other.limit_tag < mine.limit_tag else None

    def _standing(self, tier: TierAccount[T]) -> int:
        """0: due by its reservation, 1: below its limit, 2: above it."""
        if tier.reserved_ratio and tier.reservation_tag <= self.served:
            return 0
        return 1 if tier.limit_ratio >= 1 or tier.limit_tag <= self.served else 2

    def waiting(self) -> list[T]:
        """The owners of those that wait."""
        return [tier.owner for tier in self._tiers if tier.waiting]

    def dispatch(self, tier: TierAccount[T], cost: float, ordered: bool = True) -> Grant:
        """Charge a request of the predicted cost; ``ordered`` False: chosen by another rule."""
        served = self.served
        due = False
        if tier.reserved_ratio:
            due = ordered and tier.reservation_tag <= served
            step = cost / tier.reserved_ratio
            if due:
                tier.reservation_tag += step
            elif not self._weighted and tier.reservation_tag < served + step:
                tier.reservation_tag = served + step
        limited = ordered and tier.limit_ratio < 1 and self._waiting > 1
        if limited:
            step = cost / tier.limit_ratio
            # One request's worth of credit: what fell due between two dispatches is not lost.
            tier.limit_tag = max(tier.limit_tag, served - step) + step
        shared = tier.shares and not (due and self._weighted)
        contended = False
        if shared:
            tier.share.charge(cost)
            contended = ordered and tier.share.turn.waiting > 1
        return GRANTS[8 * due + 4 * limited + 2 * shared + contended]

    def charge(self, tier: TierAccount[T], cost: float) -> None:
        """Charge what it cost others, without a request of its own."""
        limited = tier.limit_ratio < 1 and self._waiting > tier.waiting
        self.correct(tier, cost, Grant(False, limited, tier.shares, True))

    def correct(self, tier: TierAccount[T], cost: float, grant: Grant) -> None:
        """A request turned out to cost so much more (or, negative, less) than it was charged."""
        due, limited, shared, contended = grant
        if due and tier.reserved_ratio:
            tier.reservation_tag += cost / tier.reserved_ratio
        if limited:
            tag = tier.limit_tag + cost / tier.limit_ratio
            tier.limit_tag = max(tag, min(tier.limit_tag, self.served))
        if shared and tier.shares:
            tier.share.correct(cost, contended)

    def _restate(self, tier: TierAccount[T], policy: TierPolicy) -> None:
        served = self.served
        reserved, limit = policy.reserved_percent / 100, policy.max_percent / 100
        if reserved != tier.reserved_ratio:
            owed = max(tier.reservation_tag - served, 0.0) * tier.reserved_ratio
            tier.reservation_tag = served + (owed / reserved if reserved else 0.0)
        if limit != tier.limit_ratio:
            owed = max(tier.limit_tag - served, 0.0) * tier.limit_ratio
            tier.limit_tag = served + owed / limit
        tier.reserved_ratio, tier.limit_ratio = reserved, limit
