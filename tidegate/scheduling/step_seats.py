"""Seats of a step: who may have a free one, whose is taken, and how many are kept free.

Theory of operation: a protected tier or one below its reserved seats may have a victim's seat, and
a free one that a tier below its reserved seats waits for is not given to another. But a victim
computes again all that it had, while a seat that is free when a protected request comes costs
nobody anything. So while protected requests come, seats are kept free for them (*headroom*): as
many as leave one of twenty to find none. Each end of any request fills the headroom up again, so
its seats in use are a queue M/M/1/h with rho = protected entries / ends, as they were of late, and
the part (1 - rho) rho^h / (1 - rho^(h + 1)) of arrivals finds it used up. Those have a victim's
seat and are lost to that queue; without a plug-in they wait in it, which is why ``spare_seats``,
which keeps seats free there, counts by rho^h instead.

Bounds: at most 1/8 of the seats, and none within ``_REMEMBERED_STEPS`` or so without a protected
entry, are kept. O(1) a step. Source: the guard channels of Hong and Rappaport 1986 with one server.

Invariants: seats given fit the engine; protected tiers and those below their reservation are never
kept waiting by headroom.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.preemption import Excess
from tidegate.scheduling.step_policy import StepPolicy

_REMEMBERED_STEPS = 256
_MOST_PARTS = 8
_MAY_FIND_NONE = 0.05
_FEWEST_ENTRIES = 0.5
"""Remembered ones, of which fewer are none."""


class SeatHeadroom:
    """Of one engine, from step to step."""

    __slots__ = ("_ends", "_entries", "_policy", "_seated")

    def __init__(self, policy: StepPolicy) -> None:
        self._policy = policy
        self._entries = self._ends = 0.0
        """Protected ones, and all; those of a step are forgotten within the steps remembered."""
        self._seated = 0

    def begin(self, running: int) -> int:
        """A step finds so many that run: how many seats are kept free in it."""
        keep = 1 - 1 / _REMEMBERED_STEPS
        self._entries *= keep
        self._ends = self._ends * keep + max(self._seated - running, 0)
        if self._entries < _FEWEST_ENTRIES:
            return 0
        most = self._policy.engine.max_num_seqs // _MOST_PARTS
        return min(headroom(self._entries / max(self._ends, 1.0)), most)

    def planned(self, running: int, preempted: int, admitted: Sequence[PlanRequest]) -> None:
        """What comes of the step."""
        self._seated = running - preempted + len(admitted)
        tiers = self._policy.tiers
        self._entries += sum([tiers[one.tier].protected for one in admitted])


def headroom(load: float) -> int:
    """Fewest seats of which entries find none seldom enough; ``load``: entries over ends."""
    load = min(load, 0.99)
    seats, power = 0, 1.0
    while (1 - load) * power > _MAY_FIND_NONE * (1 - power * load):
        seats += 1
        power *= load
    return seats


class Seats:
    """Of one step; ``heads``: who waits first, by tier."""

    __slots__ = ("_claims", "_held", "_kept", "_policy", "free")

    def __init__(
        self,
        policy: StepPolicy,
        running: Sequence[Sequence[PlanRequest]],
        heads: Sequence[PlanRequest | None],
        kept: int,
    ) -> None:
        self._policy, self._kept = policy, kept
        self._held = [len(those) for those in running]
        self._claims = [
            head is not None and held < tier.reserved_seats
            for head, held, tier in zip(heads, self._held, policy.tiers, strict=True)
        ]
        self.free = policy.engine.max_num_seqs - sum(self._held)

    def is_free_for(self, index: int) -> bool:
        """Whether a tier finds a seat."""
        kept = 0 if self.may_take(index) else self._kept
        return self.free - sum(self._claims) + self._claims[index] > kept

    def may_take(self, index: int) -> bool:
        """Whether a tier may have a victim's."""
        tier = self._policy.tiers[index]
        return tier.protected or self._held[index] < tier.reserved_seats

    def give(self, index: int) -> None:
        """One of that tier enters."""
        self.free -= 1
        self._held[index] += 1
        self._claims[index] = False

    def take_back(self, index: int) -> None:
        """One of that tier is preempted."""
        self.free += 1
        self._held[index] -= 1

    def excess(self) -> Excess:
        """What tiers hold above their reservation."""
        tiers = self._policy.tiers
        return Excess(
            range(len(tiers)),
            [held - tier.reserved_seats for held, tier in zip(self._held, tiers, strict=True)],
        )
