"""The requests of one tenant that wait, in the order in which they are to be dispatched.

Order: priority (higher first), then deadline (earliest first, none last), then arrival. The same
queue can be put into pure arrival order, for the mode that serves first come first served.

Bounds on requests and bytes are checked before a request enters and given back exactly once, when
it leaves: dispatched, cancelled or expired. A request that comes back after a dispatch (the engine
did no work on it) takes its old place and is let in above the bounds: it was accepted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Generic, TypeVar

from tidegate.scheduling.contracts import QueueLimits
from tidegate.scheduling.lazy_heap import Entry, LazyHeap
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request

T = TypeVar("T")


class Waiting(Generic[T]):
    """One request in a queue; ``owner`` is the host's object for its tenant."""

    __slots__ = ("entry", "expires", "expiry", "order", "owner", "request")

    def __init__(self, request: Request, owner: T, order: int) -> None:
        self.request = request
        self.owner = owner
        self.order = order
        """Rises with arrival, over all tenants."""
        self.entry: Entry | None = None
        """Its place in the tenant's queue; unset: it does not wait."""
        self.expiry: Entry | None = None
        """Its place in the heap of expiries."""
        self.expires = inf
        """When it has waited too long."""


class TenantQueue(Generic[T]):
    """Waiting requests of one tenant; O(log n) amortised."""

    __slots__ = ("_heap", "_in_arrival_order", "bytes", "limits", "size")

    def __init__(self, limits: QueueLimits, in_arrival_order: bool) -> None:
        self.limits = limits
        self.size = 0
        """Requests that wait."""
        self.bytes = 0
        """Bytes that they hold."""
        self._heap: LazyHeap[Waiting[T]] = LazyHeap()
        self._in_arrival_order = in_arrival_order

    def __iter__(self) -> Iterator[Waiting[T]]:
        """In no order; O(n)."""
        return iter(self._heap)

    def refusal(self, request: Request) -> Outcome | None:
        """Why it may not enter."""
        limits = self.limits
        if request.body_bytes > limits.max_bytes:
            return Outcome.BODY_TOO_LARGE
        if self.size >= limits.max_requests or self.bytes + request.body_bytes > limits.max_bytes:
            return Outcome.QUEUE_FULL
        return None

    def push(self, waiting: Waiting[T]) -> None:
        """Let it in."""
        waiting.entry = self._heap.push(self._key(waiting.request), waiting.order, waiting)
        self.size += 1
        self.bytes += waiting.request.body_bytes

    def first(self) -> Waiting[T]:
        """The next to dispatch; the queue must not be empty."""
        entry = self._heap.first()
        if entry is None:
            raise IndexError("first of an empty queue")
        first: Waiting[T] = entry[2]
        return first

    def remove(self, waiting: Waiting[T]) -> None:
        """Let one that waits here go."""
        if waiting.entry is None:
            raise ValueError(f"request {waiting.request.id!r} does not wait")
        self._heap.withdraw(waiting.entry)
        waiting.entry = None
        self.size -= 1
        self.bytes -= waiting.request.body_bytes

    def reorder(self, in_arrival_order: bool) -> None:
        """Change the order for all that wait and all to come; O(n log n)."""
        if in_arrival_order == self._in_arrival_order:
            return
        self._in_arrival_order = in_arrival_order
        waiting = list(self._heap)
        self._heap = LazyHeap()
        for each in waiting:
            each.entry = self._heap.push(self._key(each.request), each.order, each)

    def _key(self, request: Request) -> tuple[int, float]:
        if self._in_arrival_order:
            return (0, 0.0)
        return (-request.priority, inf if request.deadline is None else request.deadline)
