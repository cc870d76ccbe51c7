"""Who there is: the tiers and tenants of the policy in force, and how another takes their place.

A change of policy keeps queues, debts and requests in flight. A tenant that left the policy stays
until its last request in flight has landed; a tier that left is kept by those requests alone.
"""

from __future__ import annotations

from tidegate.scheduling.contracts import (
    Policy,
    SchedulingMode,
    Task,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.snapshots import Backlog, TenantSnapshot, TierSnapshot
from tidegate.scheduling.state import TenantState, TierState


class Roster:
    """Tiers and tenants by name."""

    __slots__ = ("_selection", "_timed", "tenants", "tiers")

    def __init__(self, selection: Selection, timed: bool) -> None:
        self._selection = selection
        self._timed = timed
        self.tiers: dict[str, TierState] = {}
        self.tenants: dict[str, TenantState] = {}

    def apply_policy(self, policy: Policy) -> list[TenantState]:
        """Another policy; those of whose requests none may wait any more. O(n)."""
        embeds = policy.model.task is Task.EMBED
        batch_tokens = policy.engine.max_num_batched_tokens if embeds else None
        for tier_row in policy.tiers:
            self._apply_tier(tier_row, batch_tokens)
        names = set()
        for row in policy.tenants:
            names.add(row.name)
            self._apply_tenant(row)
        for name, tenant in self.tenants.items():
            if name not in names:
                tenant.set_policy(None)
        self.tiers = {row.name: self.tiers[row.name] for row in policy.tiers}
        self._selection.tiers.apply_policy(
            policy.between_tiers, [(tier.account, tier.policy) for tier in self.tiers.values()]
        )
        in_arrival_order = policy.scheduling_mode is not SchedulingMode.TIDEGATE
        self._selection.set_order(in_arrival_order, self.tenants.values())
        return [tenant for tenant in self.tenants.values() if tenant.lost_place() is not None]

    def forget_if_gone(self, tenant: TenantState) -> None:
        """Once it has left the policy and all its requests have ended."""
        if tenant.policy is None and not tenant.in_flight and not tenant.queue.size:
            del self.tenants[tenant.name]

    def tenant_snapshots(self, now: float) -> list[TenantSnapshot]:
        """Every tenant; O(n)."""
        return [_snapshot(tenant, now) for tenant in self.tenants.values()]

    def backlogged(self) -> list[Backlog]:
        """Every tenant of which something waits; O(n)."""
        return [tenant.backlog() for tenant in self.tenants.values() if tenant.queue.size]

    def tier_snapshots(self) -> list[TierSnapshot]:
        """Every tier."""
        return [
            TierSnapshot(name, tier.queued, tier.running, tier.service.published, tier.engine_ms)
            for name, tier in self.tiers.items()
        ]

    def _apply_tier(self, row: TierPolicy, batch_tokens: int | None) -> None:
        tier = self.tiers.get(row.name)
        if tier is None:
            served = self._selection.tiers.served
            self.tiers[row.name] = TierState(row, self._timed, served, batch_tokens)
            return
        old_unit, old_quantum = tier.unit, tier.quantum
        tier.set_policy(row, self._timed, batch_tokens)
        if old_quantum != tier.quantum:
            tier.robin.set_quantum(tier.quantum)
        if old_unit is not tier.unit:
            # Costs of two units do not convert: all start even.
            for tenant in self.tenants.values():
                if tenant.tier is tier:
                    tier.robin.set_debt(tenant.account, 0.0)

    def _apply_tenant(self, row: TenantPolicy) -> None:
        tier = self.tiers[row.tier]
        tenant = self.tenants.get(row.name)
        if tenant is None:
            in_arrival_order = self._selection.in_arrival_order
            self.tenants[row.name] = TenantState(row, tier, in_arrival_order)
            return
        if tenant.tier is not tier:
            self._move(tenant, tier)
        tenant.set_policy(row)
        if tenant.account.weight != row.weight:
            tier.robin.set_weight(tenant.account, row.weight)
        tenant.queue.limits = tier.policy.queue
        self._selection.refresh(tenant)

    def _move(self, tenant: TenantState, tier: TierState) -> None:
        """Into another tier: its queue, and its debt where the unit is the same."""
        old = tenant.tier
        self._selection.leave(tenant)
        old.queued -= tenant.queue.size
        tier.queued += tenant.queue.size
        debt = old.robin.debt(tenant.account) if old.unit is tier.unit else 0.0
        tenant.tier = tier
        tier.robin.set_debt(tenant.account, debt)


def _snapshot(tenant: TenantState, now: float) -> TenantSnapshot:
    oldest = tenant.queue.oldest()
    return TenantSnapshot(
        name=tenant.name,
        tier=tenant.tier.name,
        queued=tenant.queue.size,
        queued_bytes=tenant.queue.bytes,
        running=tenant.in_flight,
        service_tokens_total=tenant.service.published,
        longest_wait_seconds=0.0 if oldest is None else now - oldest.arrival,
        engine_ms_total=tenant.engine_ms,
    )
