"""Whose turn it is: the tiers, the round robin in each, or the arrival order over everything.

Invariant: a tenant stands in its tier's round robin (and, in arrival order, among the arrivals) if
and only if it may dispatch something; its tier waits if and only if a tenant of it does.
:meth:`Selection.refresh` restores that after every change of a tenant's queue or requests in
flight. Bound: O(tiers + log n) a decision or change, amortised. Source: source 002's selectors, in
its order.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tidegate.scheduling.lazy_heap import LazyHeap
from tidegate.scheduling.request import Request
from tidegate.scheduling.state import TenantState, TierState
from tidegate.scheduling.tiers import Tiers


class Selection:
    """The tenants that may dispatch something."""

    __slots__ = ("_arrivals", "_places", "in_arrival_order", "ready", "tiers")

    def __init__(self) -> None:
        self.tiers: Tiers[TierState] = Tiers()
        self.in_arrival_order = False
        self.ready = 0
        """How many there are."""
        self._arrivals: LazyHeap[TenantState] = LazyHeap()
        """Them by their oldest request, in arrival order only."""
        self._places = 0

    def first_come(self, closed: Container[str]) -> TenantState | None:
        """Whose request is oldest, in arrival order; None: or its tier is one of ``closed``."""
        entry = self._arrivals.first()
        if entry is None:
            return None
        tenant: TenantState = entry[2]
        return None if tenant.tier.name in closed else tenant

    def fair_first(self, closed: Container[str]) -> TenantState | None:
        """Whom tiers and round robin would have, whatever the order is; none of ``closed``."""
        tier = self.tiers.first(closed)
        if tier is None:
            return None
        account = tier.owner.robin.first()
        return None if account is None else account.owner

    def heads(self) -> list[Request]:
        """Who is first of each tier that waits, in fair order."""
        accounts = [tier.robin.first() for tier in self.tiers.waiting()]
        return [account.owner.queue.next().request for account in accounts if account is not None]

    def refresh(self, tenant: TenantState) -> None:
        """Take note of what may have changed about it."""
        if not tenant.may_dispatch():
            self.leave(tenant)
        else:
            if tenant.account.entry is None:
                self._enter(tenant)
            if self.in_arrival_order:
                self._place(tenant)

    def leave(self, tenant: TenantState) -> None:
        """Take it out, until the next refresh."""
        tenant.at_limit = tenant.queue.size > 0
        if tenant.account.entry is None:
            return
        tier = tenant.tier
        tier.robin.leave(tenant.account)
        self.ready -= 1
        if tier.robin.is_empty:
            self.tiers.leave(tier.account)
        if tenant.arrival_entry is not None:
            self._arrivals.withdraw(tenant.arrival_entry)
            tenant.arrival_entry = None

    def set_order(self, in_arrival_order: bool, tenants: Iterable[TenantState]) -> None:
        """Change the order for ``tenants``, who are all; O(n log n)."""
        if in_arrival_order == self.in_arrival_order:
            return
        self.in_arrival_order = in_arrival_order
        self._arrivals = LazyHeap()
        for tenant in tenants:
            tenant.queue.reorder(in_arrival_order)
            tenant.arrival_entry = None
            if tenant.account.entry is None:
                continue
            if in_arrival_order:
                self._place(tenant)
            else:
                # What arrival order gave was not the tenants' choice: nobody's claim. (Nor debt:
                # the virtual time followed it.)
                tenant.tier.robin.enter(tenant.account, credit=True)
                self.tiers.forget_credit(tenant.tier.account)

    def _enter(self, tenant: TenantState) -> None:
        tier = tenant.tier
        if tier.robin.is_empty:
            self.tiers.enter(tier.account)
        idle = tenant.in_flight == 0
        tier.robin.enter(tenant.account, credit=idle or tenant.at_limit)
        tenant.at_limit = False
        self.ready += 1

    def _place(self, tenant: TenantState) -> None:
        oldest = tenant.queue.next().order
        entry = tenant.arrival_entry
        if entry is not None:
            if entry[0] == oldest:
                return
            self._arrivals.withdraw(entry)
        self._places += 1
        tenant.arrival_entry = self._arrivals.push(oldest, self._places, tenant)
