"""A min-heap whose entries can be withdrawn.

Theory of operation: the recipe of the ``heapq`` documentation. An entry is a list
``[key, order, item]``; to withdraw it, its item becomes None and the heap drops it when it comes to
the top. So that withdrawals cannot fill the heap, it is rebuilt when more than half of it is
withdrawn: every operation is O(log n) amortised, and memory stays within twice the live entries.

``order`` must be unique in a heap: it breaks ties, and items are never compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Entry = list[Any]
_SLACK = 32


class LazyHeap(Generic[T]):
    """Items by rising (key, order)."""

    __slots__ = ("_entries", "size")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.size = 0
        """Live entries (an attribute, because every decision reads several)."""

    def __iter__(self) -> Iterator[T]:
        """The items, in no order; O(n)."""
        return (entry[2] for entry in self._entries if entry[2] is not None)

    def push(self, key: Any, order: int, item: T) -> Entry:
        """Add an item; the entry returned is what withdraws it."""
        entry = [key, order, item]
        heappush(self._entries, entry)
        self.size += 1
        return entry

    def first(self) -> Entry | None:
        """The least live entry, left in place."""
        entries = self._entries
        while entries:
            if entries[0][2] is not None:
                return entries[0]
            heappop(entries)
        return None

    def withdraw(self, entry: Entry) -> None:
        """Take a live entry out."""
        entry[2] = None
        self.size -= 1
        entries = self._entries
        if entries[0] is entry:
            heappop(entries)
        elif len(entries) > 2 * self.size + _SLACK:
            entries[:] = [kept for kept in entries if kept[2] is not None]
            heapify(entries)
