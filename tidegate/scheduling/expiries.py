"""Who has waited too long: the queued jobs, by when each loses its place.

A request may wait as long as its tier allows, or to its own deadline if that comes first. One in
parts is watched by its first part: once that was dispatched, it is begun.

Invariant: whatever is watched either leaves (``unwatch``) or is given once by ``due``. Cost: as of
``job_heap``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tidegate.scheduling.job import Job
from tidegate.scheduling.job_heap import JobHeap
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request

Ended = list[tuple[Request, Outcome]]


class Expiries:
    """Of one scheduler."""

    __slots__ = ("_ended", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap = JobHeap()
        self._pushes = 0
        self._ended: Ended = []

    def watch(self, job: Job) -> None:
        """It begins to wait."""
        request = job.request
        if not request.leads():
            return
        expires = job.waits_since + job.tenant.queue.limits.max_wait_seconds
        if request.deadline is not None and request.deadline < expires:
            expires = request.deadline
        self._pushes += 1
        self._heap.push((expires, self._pushes, job))

    def unwatch(self, job: Job) -> None:
        """It waits no more, whatever came of it."""
        if job.request.leads():
            self._heap.leave()

    def watch_anew(self, jobs: Iterable[Job]) -> None:
        """Under other limits; O(n)."""
        self._heap.clear()
        for job in jobs:
            if job.waiting:
                self.watch(job)

    def may_be_due(self, now: float) -> bool:
        """Whether to ask :meth:`due`; O(1)."""
        return self._heap.reaches(now)

    def due(self, now: float) -> Job | None:
        """The next that has waited too long, noted as ended; whoever asks takes it out."""
        entry = self._heap.first()
        if entry is None or entry[0] > now:
            return None
        job: Job = entry[-1]
        deadline = job.request.deadline
        by_deadline = deadline is not None and deadline <= entry[0]
        outcome = Outcome.DEADLINE_EXCEEDED if by_deadline else Outcome.QUEUE_WAIT_EXCEEDED
        self._ended.append((job.request, outcome))
        return job

    def take_ended(self) -> Ended:
        """What was due since the last call, and which limit it was."""
        ended, self._ended = self._ended, []
        return ended

    def next(self) -> float | None:
        """When the next is due; in the past where one was not taken yet."""
        if self._ended:
            return -inf
        first = self._heap.first()
        return None if first is None else float(first[0])
