"""One tier's account, which ``tiers`` keeps, and the rules under which a request was charged."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from tidegate.scheduling.contracts import TierPolicy
from tidegate.scheduling.tier_turns import Share

T = TypeVar("T")


class TierAccount(Generic[T]):
    """One tier's tags; ``owner`` is the host's object for it."""

    __slots__ = (
        "limit_ratio",
        "limit_tag",
        "name",
        "owner",
        "reservation_tag",
        "reserved_ratio",
        "share",
        "shares",
        "waiting",
    )

    def __init__(self, owner: T, policy: TierPolicy, served: float) -> None:
        self.name = policy.name
        self.owner = owner
        self.reserved_ratio = policy.reserved_percent / 100
        self.limit_ratio = policy.max_percent / 100
        self.reservation_tag = served
        self.limit_tag = served
        self.share = Share()
        self.shares = False
        """There is another tier to share with."""
        self.waiting = False


class Grant(NamedTuple):
    """Under which rules a request was dispatched; its corrections follow the same."""

    due: bool
    """By the reservation."""
    limited: bool
    """Counted against the limit."""
    shared: bool
    """Counted in its share."""
    contended: bool
    """Another tier that it shares with waited."""


GRANTS = [Grant(*(bool(bits & bit) for bit in (8, 4, 2, 1))) for bits in range(16)]
"""All of them, made once: a dispatch picks one."""
