"""Which tier goes next: reservations first, then priority under the limits.

Theory of operation: mClock (Gulati, Merchant, Varman, OSDI 2010) with measured service in the place
of its clock, because an engine's capacity is not a known rate. ``served_tokens`` counts the prompt
and output tokens that the engine is seen to have worked on, over all tiers; it only rises.

* ``reservation_tag``: the value of ``served_tokens`` at which the tier is due by its reservation
  ``r``. A request dispatched because the tier was due moves it on by cost / r, and corrections of
  its cost follow. One dispatched in excess only sets it to at least ``served_tokens + cost / r``:
  the tier was just served, and what it took beyond its reservation does not count against it.
* ``limit_tag``: the value at which the tier is below its limit ``m`` again; moved on by cost / m by
  what is dispatched while another tier waits. Capacity that no other tier waits for is not limited.
* A tier that begins to wait has both tags lifted to ``served_tokens``: no credit for the past.

The tier to go next is the one longest overdue; where none is due, of those under their limit the
one of highest priority; where all that wait are over it, the one that comes under it first (work
conservation). Equal priorities share evenly, by start-time fair queueing.

Bound: while a tier waits and something may be dispatched, it is dispatched at least
``r x served_tokens`` minus one request, since its tag never leads ``served_tokens`` by more than
the cost / r of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tidegate.scheduling.contracts import TierPolicy

T = TypeVar("T")


class TierAccount(Generic[T]):
    """One tier's tags; ``owner`` is the host's object for it."""

    __slots__ = (
        "limit_ratio",
        "limit_tag",
        "owner",
        "priority",
        "reservation_tag",
        "reserved_ratio",
        "turn_tag",
        "waiting",
    )

    def __init__(self, owner: T, policy: TierPolicy, served_tokens: float) -> None:
        self.owner = owner
        self.priority = policy.priority
        self.reserved_ratio = policy.reserved_percent / 100
        self.limit_ratio = policy.max_percent / 100
        self.reservation_tag = served_tokens
        self.limit_tag = served_tokens
        self.turn_tag = 0.0
        """Dispatched tokens, for evenness between equal priorities."""
        self.waiting = False


class Grant(NamedTuple):
    """Under which rules a request was dispatched; its corrections follow the same."""

    due: bool
    """By the reservation."""
    limited: bool
    """Counted against the limit."""


UNCHARGED = Grant(due=False, limited=False)


class Tiers(Generic[T]):
    """The tiers of a pool, at most 64: a decision looks at each once."""

    __slots__ = ("_tiers", "_turns", "served_tokens")

    def __init__(self) -> None:
        self._tiers: Sequence[TierAccount[T]] = ()
        self._turns: dict[int, float] = {}
        """By priority: the turn tag last served."""
        self.served_tokens = 0.0

    def set_tiers(self, tiers: Sequence[TierAccount[T]]) -> None:
        """All tiers of the policy in force."""
        self._tiers = tiers

    def enter(self, tier: TierAccount[T]) -> None:
        """It begins to wait."""
        tier.waiting = True
        self.forget_credit(tier)

    def leave(self, tier: TierAccount[T]) -> None:
        """Nothing of it waits any more."""
        tier.waiting = False

    def forget_credit(self, tier: TierAccount[T]) -> None:
        """No claim from before now."""
        tier.reservation_tag = max(tier.reservation_tag, self.served_tokens)
        tier.limit_tag = max(tier.limit_tag, self.served_tokens)
        tier.turn_tag = max(tier.turn_tag, self._turns.get(tier.priority, 0.0))

    def first(self) -> TierAccount[T] | None:
        """The tier to go next; None: none waits."""
        served = self.served_tokens
        due: TierAccount[T] | None = None
        under: TierAccount[T] | None = None
        over: TierAccount[T] | None = None
        for tier in self._tiers:
            if not tier.waiting:
                continue
            if tier.reserved_ratio and tier.reservation_tag <= served:
                if due is None or tier.reservation_tag < due.reservation_tag:
                    due = tier
            elif tier.limit_ratio >= 1 or tier.limit_tag <= served:
                if under is None or _before(tier, under):
                    under = tier
            elif over is None or tier.limit_tag < over.limit_tag:
                over = tier
        return due or under or over

    def dispatch(self, tier: TierAccount[T], tokens: float, ordered: bool = True) -> Grant:
        """Charge a request of the predicted size; ``ordered`` False: chosen by another rule."""
        served = self.served_tokens
        due = False
        if tier.reserved_ratio:
            due = ordered and tier.reservation_tag <= served
            cost = tokens / tier.reserved_ratio
            if due:
                tier.reservation_tag += cost
            else:
                tier.reservation_tag = max(tier.reservation_tag, served + cost)
        limited = (
            ordered
            and tier.limit_ratio < 1
            and any(other.waiting for other in self._tiers if other is not tier)
        )
        if limited:
            cost = tokens / tier.limit_ratio
            # One request's worth of credit: what fell due between two dispatches is not lost.
            tier.limit_tag = max(tier.limit_tag, served - cost) + cost
        self._turns[tier.priority] = max(self._turns.get(tier.priority, 0.0), tier.turn_tag)
        tier.turn_tag += tokens
        return Grant(due, limited) if due or limited else UNCHARGED

    def correct(self, tier: TierAccount[T], tokens: float, grant: Grant) -> None:
        """A request turned out so much larger (or, negative, smaller) than it was charged."""
        if grant.due and tier.reserved_ratio:
            tier.reservation_tag += tokens / tier.reserved_ratio
        if grant.limited:
            tag = tier.limit_tag + tokens / tier.limit_ratio
            tier.limit_tag = max(tag, min(tier.limit_tag, self.served_tokens))

    def undo(self, tier: TierAccount[T], tokens: float, grant: Grant) -> None:
        """A dispatch turned out not to be one: the engine did no work on it."""
        tier.turn_tag -= tokens
        self.correct(tier, -tokens, grant)

    def serve(self, tokens: float) -> None:
        """The engine was seen to have worked on so many tokens."""
        self.served_tokens += tokens

    def change(self, tier: TierAccount[T], policy: TierPolicy) -> None:
        """New terms from now on; what is still owed under the old ones is restated in the new."""
        served = self.served_tokens
        reserved, limit = policy.reserved_percent / 100, policy.max_percent / 100
        if reserved != tier.reserved_ratio:
            ahead = max(tier.reservation_tag - served, 0.0)
            scale = tier.reserved_ratio / reserved if reserved else 0.0
            tier.reservation_tag = served + ahead * scale
        if limit != tier.limit_ratio:
            ahead = max(tier.limit_tag - served, 0.0)
            tier.limit_tag = served + ahead * tier.limit_ratio / limit
        tier.reserved_ratio, tier.limit_ratio = reserved, limit
        tier.priority = policy.priority


def _before(tier: TierAccount[T], other: TierAccount[T]) -> bool:
    if tier.priority != other.priority:
        return tier.priority > other.priority
    return tier.turn_tag < other.turn_tag
