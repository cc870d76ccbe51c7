"""Waiting jobs by key, most of which come in the order of their keys.

Theory of operation: an entry is a tuple of a key, unique in the heap, and a job. As long as each is
greater than all before, as arrivals are, they are appended to a list and taken from its front, and
cost no sifting, however many wait. From the first that comes out of order until nothing is left,
the list is a heap (``heapq``): a sorted list is one already.

A job that does not wait any more is dropped when it comes to the front. So that such jobs cannot
fill the list, they are thrown out when they are more than half: every operation is O(log n)
amortised (O(1) while sorted), and memory stays within twice the live entries. Source: the recipe of
the ``heapq`` documentation, as ``lazy_heap`` follows it for entries that move.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from tidegate.scheduling.job import Job

Entry = tuple[Any, ...]
"""The key, then the job."""
_SLACK = 32
_TAKEN: Entry = ()
"""In the place of an entry that was taken: it must keep no job alive."""


class JobHeap:
    """Jobs by rising key."""

    __slots__ = ("_entries", "_front", "_gone", "_sorted")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._sorted = True
        self._front = 0
        """Where the entries begin, while sorted: those before were taken."""
        self._gone = 0
        """Entries whose job does not wait any more."""

    def __iter__(self) -> Iterator[Job]:
        """The jobs that wait, in no order; O(n)."""
        for entry in self._entries[self._front :]:
            if entry[-1].waiting:
                yield entry[-1]

    def push(self, entry: Entry) -> None:
        """Add a job."""
        entries = self._entries
        if self._sorted:
            if len(entries) == self._front or entries[-1] < entry:
                entries.append(entry)
                return
            self._trim()
            self._sorted = False
        heappush(entries, entry)

    def reaches(self, key: float) -> bool:
        """Whether an entry, of a job that waits or not, has a key that begins at or below this."""
        entries, front = self._entries, self._front
        return front < len(entries) and entries[front][0] <= key

    def first(self) -> Entry | None:
        """The least entry whose job waits, left in place."""
        entries = self._entries
        while self._front < len(entries):
            entry = entries[self._front]
            if entry[-1].waiting:
                return entry
            self._take_first()
            self._gone -= 1
        return None

    def are_alike(self, fields: int) -> bool:
        """Whether all keys are seen to begin with the same ``fields``: O(1), while sorted and not
        empty; else they may all the same."""
        entries = self._entries
        return self._sorted and entries[self._front][:fields] == entries[-1][:fields]

    def pop(self) -> Job | None:
        """Take the first out."""
        entry = self.first()
        if entry is None:
            return None
        self._take_first()
        job: Job = entry[-1]
        return job

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()
        self._sorted = True
        self._front = self._gone = 0

    def leave(self) -> None:
        """Some job of this heap, other than by :meth:`pop`, has ceased to wait."""
        self._gone += 1
        entries = self._entries
        if 2 * self._gone > len(entries) - self._front + _SLACK:
            entries[:] = [e for e in entries[self._front :] if e[-1].waiting]
            self._front = self._gone = 0
            if not self._sorted:
                heapify(entries)

    def _take_first(self) -> None:
        entries = self._entries
        if self._sorted:
            entries[self._front] = _TAKEN
            self._front += 1
            if 2 * self._front > len(entries) + _SLACK:
                self._trim()
        else:
            heappop(entries)
            self._sorted = not entries

    def _trim(self) -> None:
        del self._entries[: self._front]
        self._front = 0
