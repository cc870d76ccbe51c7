"""The requests of one tenant that wait, in the order in which they are to be dispatched.

Order: priority (higher first, best effort last of all), then deadline (earliest first, none last),
then arrival. The same queue can be put into pure arrival order, for the modes that serve first come
first served. Within a priority that is earliest deadline first (Liu and Layland 1973).

Bounds on requests and bytes are checked before a request enters and given back exactly once, when
it leaves: dispatched, cancelled or expired. A request that comes back after a dispatch (the engine
did no work on it) takes its old place and is let in above the bounds: it was accepted once.
"""

from __future__ import annotations

from math import inf

from tidegate.scheduling.contracts import QueueLimits
from tidegate.scheduling.job import Job
from tidegate.scheduling.job_heap import JobHeap
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request

_BEFORE_ORDER = 2
"""Fields of a key that go before the order of arrival."""


class TenantQueue(JobHeap):
    """Waiting requests of one tenant; O(log n) amortised."""

    __slots__ = ("_in_arrival_order", "bytes", "limits", "requests", "size")

    def __init__(self, limits: QueueLimits, in_arrival_order: bool) -> None:
        super().__init__()
        self.limits = limits
        self.size = 0
        """Requests and parts of requests that wait."""
        self.requests = 0
        """Requests that wait; one in parts does so while its last part waits."""
        self.bytes = 0
        """Bytes that they hold."""
        self._in_arrival_order = in_arrival_order

    def refusal(self, request: Request) -> Outcome | None:
        """Why it may not enter."""
        limits = self.limits
        if self.bytes + request.body_bytes > limits.max_bytes:
            too_large = request.body_bytes > limits.max_bytes
            return Outcome.BODY_TOO_LARGE if too_large else Outcome.QUEUE_FULL
        return Outcome.QUEUE_FULL if self.requests >= limits.max_requests else None

    def enter(self, job: Job) -> None:
        """Let it wait here."""
        self.size += 1
        self.requests += job.request.trails()
        self.bytes += job.request.body_bytes
        self.push((*self._key(job), job))

    def before(self, job: Job) -> list[Job]:
        """Those that go before one that waits here, in no order; O(n)."""
        key = self._key(job)
        return [other for other in self if self._key(other) < key]

    def next(self) -> Job:
        """The next to dispatch; the queue must not be empty."""
        entry = self.first()
        if entry is None:
            raise IndexError("next of an empty queue")
        job: Job = entry[-1]
        return job

    def oldest(self) -> Request | None:
        """The request that came first; None: nothing waits. O(1) where that is the next one: in
        arrival order, or while all wait in it, of one priority and without deadlines. Else O(n)."""
        entry = self.first()
        if entry is None:
            return None
        if self._in_arrival_order or self.are_alike(_BEFORE_ORDER):
            first: Job = entry[-1]
        else:
            first = min(self, key=lambda job: job.order)
        return first.request

    def take(self) -> Job:
        """Take the next to dispatch out; the queue must not be empty."""
        job = self.pop()
        if job is None:
            raise IndexError("take from an empty queue")
        self._left(job)
        return job

    def remove(self, job: Job) -> None:
        """Let one that waits here go."""
        if not job.waiting:
            raise ValueError(f"request {job.request.id!r} does not wait")
        self._left(job)
        self.leave()

    def reorder(self, in_arrival_order: bool) -> None:
        """Change the order for all that wait and all to come; O(n log n)."""
        if in_arrival_order == self._in_arrival_order:
            return
        self._in_arrival_order = in_arrival_order
        jobs = list(self)
        self.clear()
        self.size = self.requests = self.bytes = 0
        for job in jobs:
            self.enter(job)

    def _left(self, job: Job) -> None:
        job.waiting = False
        self.size -= 1
        self.requests -= job.request.trails()
        self.bytes -= job.request.body_bytes

    def _key(self, job: Job) -> tuple[float, float, int]:
        if self._in_arrival_order:
            return 0, inf, job.order
        request = job.request
        place = inf if request.best_effort else -request.priority
        return place, inf if request.deadline is None else request.deadline, job.order
