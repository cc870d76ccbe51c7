"""What each tier is promised, has waiting and is sent: what a wait is predicted from.

Costs are in the currency of the tiers. O(1) but for a new policy, which counts everything anew.

Invariants: a tier's queued cost is the sum over its queued jobs of ``Job.expected_cost``, as it was
when each arrived; a tenant is active while anything of it is queued or in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.scheduling.contracts import TierPolicy
from tidegate.scheduling.load_rates import OfferedRate

if TYPE_CHECKING:
    from tidegate.scheduling.job import Job
    from tidegate.scheduling.state import TenantState


@dataclass(slots=True)
class TierLoad:
    """Of one tier."""

    priority: int
    weight: int = 1
    reserved_ratio: float = 0.0
    limit_ratio: float = 1.0
    queued: float = 0.0
    """Cost of all that waits in it."""
    active_weight: float = 0.0
    """Weights of its tenants with anything queued or in flight."""
    offered_per_second: float = 0.0


class TierLoads:
    """Of all tiers of one scheduler."""

    __slots__ = ("_loads", "_offered")

    def __init__(self) -> None:
        self._loads: dict[str, TierLoad] = {}
        self._offered: dict[str, OfferedRate] = {}

    def forget_offered(self) -> None:
        """What was sent was counted in costs of another scale."""
        self._offered = {}

    def apply_policy(self, tiers: Iterable[TierPolicy], tenants: Iterable[TenantState]) -> None:
        """New terms; nothing waits until it is added again."""
        offered, self._offered, self._loads = self._offered, {}, {}
        for row in tiers:
            reserved, limit = row.reserved_percent / 100, row.max_percent / 100
            self._loads[row.name] = TierLoad(row.priority, row.weight, reserved, limit)
            self._offered[row.name] = offered.get(row.name, OfferedRate())
        for tenant in tenants:
            tenant.queued_cost = 0.0
            if tenant.policy is not None and tenant.queue.size + tenant.in_flight:
                self._loads[tenant.tier.name].active_weight += tenant.account.weight

    def around(self, tenant: TenantState, now: float) -> tuple[TierLoad, list[TierLoad]]:
        """The tenant's tier, and the others."""
        for name, offered in self._offered.items():
            self._loads[name].offered_per_second = offered.per_second(now)
        mine = self._loads[tenant.tier.name]
        return mine, [load for load in self._loads.values() if load is not mine]

    def entered(self, job: Job) -> None:
        """It has begun to wait, at its expected cost."""
        tenant = job.tenant
        if tenant.queue.size + tenant.in_flight == 1:
            self._loads[tenant.tier.name].active_weight += tenant.account.weight
        self.add(job)

    def left(self, tenant: TenantState) -> None:
        """A request of it neither waits nor is in flight any more."""
        if not tenant.queue.size + tenant.in_flight and tenant.policy is not None:
            self._loads[tenant.tier.name].active_weight -= tenant.account.weight

    def sent(self, job: Job, now: float) -> None:
        """A request came."""
        self._offered[job.tenant.tier.name].arrived(job.expected_cost, now)

    def add(self, job: Job) -> None:
        """It waits, of a tenant that is active for it already."""
        tenant = job.tenant
        tenant.queued_cost += job.expected_cost
        self._loads[tenant.tier.name].queued += job.expected_cost

    def remove(self, job: Job) -> None:
        """It waits no more."""
        tenant = job.tenant
        load = self._loads[tenant.tier.name]
        tenant.queued_cost -= job.expected_cost
        load.queued -= job.expected_cost
        # What rounding has left of an empty queue is nothing.
        if not tenant.queue.size:
            tenant.queued_cost = 0.0
        if not tenant.tier.queued:
            load.queued = 0.0
