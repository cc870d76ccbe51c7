"""Waiting jobs by key, most of which come in the order of their keys.

Theory of operation: an entry is a tuple of a key, unique in the heap, and a job. One that is
greater than all in the *run*, a double-ended queue, is appended to it; the others go into a heap
(``heapq``). The least entry is the lesser of the two heads. Arrivals in order, which is what most
of them are, so cost no sifting, however many wait.

A job that does not wait any more is dropped when it comes to a head. So that such jobs cannot fill
the lanes, they are thrown out when they are more than half: every operation is O(log n) amortised
(O(1) in the run), and memory stays within twice the live entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from tidegate.scheduling.job import Job

Entry = tuple[Any, ...]
"""The key, then the job."""
_SLACK = 32


class JobHeap:
    """Jobs by rising key."""

    __slots__ = ("_gone", "_heap", "_run")

    def __init__(self) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._gone = 0
        """Entries whose job does not wait any more."""

    def __iter__(self) -> Iterator[Job]:
        """The jobs that wait, in no order; O(n)."""
        for lane in (self._run, self._heap):
            for entry in lane:
                if entry[-1].waiting:
                    yield entry[-1]

    def push(self, entry: Entry) -> None:
        """Add a job."""
        run = self._run
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heap, entry)

    def reaches(self, key: float) -> bool:
        """Whether an entry, of a job that waits or not, has a key that begins at or below this."""
        run, heap = self._run, self._heap
        return bool((run and run[0][0] <= key) or (heap and heap[0][0] <= key))

    def first(self) -> Entry | None:
        """The least entry whose job waits, left in place."""
        run, heap = self._run, self._heap
        while run and not run[0][-1].waiting:
            run.popleft()
            self._gone -= 1
        while heap and not heap[0][-1].waiting:
            heappop(heap)
            self._gone -= 1
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None

    def pop(self) -> Job | None:
        """Take the first out."""
        entry = self.first()
        if entry is None:
            return None
        run = self._run
        if run and run[0] is entry:
            run.popleft()
        else:
            heappop(self._heap)
        job: Job = entry[-1]
        return job

    def clear(self) -> None:
        """Forget all entries."""
        self._run.clear()
        self._heap.clear()
        self._gone = 0

    def leave(self) -> None:
        """Some job of this heap, other than by :meth:`pop`, has ceased to wait."""
        self._gone += 1
        run, heap = self._run, self._heap
        if 2 * self._gone > len(run) + len(heap) + _SLACK:
            self._run = deque([entry for entry in run if entry[-1].waiting])
            heap[:] = [entry for entry in heap if entry[-1].waiting]
            heapify(heap)
            self._gone = 0
