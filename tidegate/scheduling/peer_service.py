"""Fair shares over several pods: each counts, within bounds, what the others gave a tenant.

Pods that are each fair are not fair together: a tenant whose requests reach all of them has a share
in each, one whose requests reach a single pod has one. So pods tell each other, once in an
interval, what they gave each tenant since (:meth:`PeerService.given`), and each adds to a tenant's
account what it got elsewhere (:meth:`PeerService.count`), as if it had given that itself.

Theory
------
Only *contended* service counts: what was given while another tenant of the tier waited on that pod
(with the corrections that followed). Capacity that nobody there wanted was nobody's loss, and costs
nothing elsewhere: with one pod idle a tenant that spreads over both is served on the busy one as if
it did not spread. And it is counted only for tenants that are active here: one that competes with
nobody here is not given a debt for later.

Burst limit: at most a quantum a tenant (per unit of weight) is counted in an interval. What is
beyond it (a single large request) is carried, up to ``CARRIED_QUANTA``, so that no message,
however late, wrong or large, costs a tenant more than that; the rest is forgotten. A pod that is
new, or was cut off, hears what is given from then on, and has no debts from before.

Bounds
------
Let i and j wait throughout an interval on every pod that they reach, B be the single-pod bound on
their difference (``deficit_round_robin.difference_bound``), and L the most contended service, per
weight, that other pods gave one of them and that is not counted yet: what each of them serves in
an interval, and one request (it is charged whole when it is dispatched). What is given a tenant
elsewhere must not exceed a quantum an interval for long, or the rest is forgotten.

1. *Lead over who is served elsewhere.* Where i is dispatched, its tag was the least. j's tag there
   holds no more than what j truly got, so over what j got on all pods, i leads by less than B.
2. *Lead of who is served elsewhere.* Where j is dispatched on a pod that i reaches, it leads by
   less than B + L: L is what it got elsewhere that was not counted yet. If j is not dispatched
   there any more, i is given all that this pod has, and no order could give it more.
3. *Cut off* (or joining): each pod is fair by itself, so over N pods that both reach they differ by
   less than N x B. Nothing that happened then is repaid.

With requests up to a quantum, and intervals in which a pod serves a quarter of one, the widest gap
in virtual time was 1.1 x B for two pods and 1.3 x B for three (20 s, 12 seeds each; the benchmark
``replicas``).

Costs are in the tier's unit; rows of another unit are not counted. O(tenants named).
Source: the exchange of served work of dmClock (Gulati, Merchant, Varman, OSDI 2010), made
symmetrical; its delay is L.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.ledger import Ledger
from tidegate.scheduling.roster import Roster

CARRIED_QUANTA = 16
"""From one interval to the next."""


class Given(NamedTuple):
    """Contended service of one tenant on one pod since its last report."""

    tenant: str
    unit: FairnessUnit
    cost: float
    """In units; negative where more was refunded than given."""


class PeerService:
    """What one scheduler tells its peers and hears from them."""

    __slots__ = ("_elsewhere", "_ledger", "_roster")

    def __init__(self, ledger: Ledger, roster: Roster) -> None:
        self._ledger = ledger
        self._roster = roster
        self._elsewhere: dict[str, float] = {}
        """Heard of and not counted yet, by tenant."""

    def join(self) -> None:
        """Begin, or begin anew after an outage: from here on, with nothing from before."""
        self._ledger.contended = {}
        self._elsewhere.clear()

    def leave(self) -> None:
        """Nobody listens any more."""
        self._ledger.contended = None
        self._elsewhere.clear()

    def given(self) -> list[Given]:
        """What was given here since the last call; what the peers are to hear."""
        contended = self._ledger.contended
        if not contended:
            return []
        self._ledger.contended = {}
        return [Given(tenant, unit, cost) for (tenant, unit), cost in contended.items() if cost]

    def heard(self, rows: Iterable[Given]) -> None:
        """A peer reported; counted with the next :meth:`count`."""
        for row in rows:
            tenant = self._roster.tenants.get(row.tenant)
            if tenant is not None and tenant.tier.unit is row.unit:
                self._elsewhere[row.tenant] = self._elsewhere.get(row.tenant, 0.0) + row.cost

    def count(self) -> None:
        """Once in an interval: add what was heard of to the accounts, a quantum at most."""
        elsewhere, self._elsewhere = self._elsewhere, {}
        for name, cost in elsewhere.items():
            tenant = self._roster.tenants.get(name)
            if tenant is None or not (tenant.queue.size or tenant.in_flight):
                continue
            robin, most = tenant.tier.robin, tenant.tier.quantum * tenant.account.weight
            counted = min(cost, most)
            if counted > 0:
                robin.charge(tenant.account, counted)
                cost -= counted
            if cost:
                carried = CARRIED_QUANTA * most
                self._elsewhere[name] = max(-carried, min(cost, carried))
