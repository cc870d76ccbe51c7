"""Start-time fair queueing between tenants: the reference that others are measured against.

Theory of operation (Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996): each tenant has
a tag, the start of its next request in virtual time; the waiting tenant with the least goes next,
and its tag moves on by ``cost / weight``. Virtual time ``v`` is the tag last served. A tenant that
begins to wait starts at ``max(tag, v - credit)``: with credit 0, what it did not use is lost.

Sizes need not be known before: a host that learns the cost bit by bit calls :meth:`charge` as it
does. With true costs charged at dispatch it is the reference of figure 4 (issue 4); its own bound
on two tenants that wait throughout, ``c_i/w_i + c_j/w_j`` with c the greatest cost of one request,
holds however the server's speed changes, which a batching engine's does.

Kept apart from ``tidegate.scheduling`` on purpose: a reference that shared code with what it checks
would share its faults.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class StartTimeFairQueueing(Generic[T]):
    """Items of tenants in the order they are to be served; O(waiting tenants) a decision."""

    def __init__(self, credit: float = 0.0) -> None:
        self._queues: dict[str, deque[T]] = {}
        self._tags: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._credit = credit
        self.virtual_time = 0.0

    def set_weight(self, tenant: str, weight: float) -> None:
        """Its share against the others' from now on; 1 unless said."""
        self._weights[tenant] = weight

    def push(self, tenant: str, item: T) -> None:
        """It waits, behind those of its tenant."""
        queue = self._queues.setdefault(tenant, deque())
        if not queue:
            least = self.virtual_time - self._credit
            self._tags[tenant] = max(self._tags.get(tenant, least), least)
        queue.append(item)

    def first(self) -> T | None:
        """The next to be served, left in its place."""
        tenant = self._first_tenant()
        return None if tenant is None else self._queues[tenant][0]

    def pop(self, cost: float = 0.0) -> T:
        """Serve it, at this cost or one that :meth:`charge` completes; IndexError: none waits."""
        tenant = self._first_tenant()
        if tenant is None:
            raise IndexError("nothing waits")
        self.virtual_time = max(self.virtual_time, self._tags[tenant])
        item = self._queues[tenant].popleft()
        self.charge(tenant, cost)
        return item

    def charge(self, tenant: str, cost: float) -> None:
        """What was served cost so much more than charged so far (negative: less)."""
        self._tags[tenant] += cost / self._weights.get(tenant, 1.0)

    def tag(self, tenant: str) -> float:
        """Where it stands in virtual time; KeyError: never seen."""
        return self._tags[tenant]

    def _first_tenant(self) -> str | None:
        waiting = [tenant for tenant, queue in self._queues.items() if queue]
        return min(waiting, key=self._tags.__getitem__) if waiting else None
