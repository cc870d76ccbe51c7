"""A min-heap whose entries can be withdrawn and moved.

Theory of operation: the recipe of the ``heapq`` documentation. An entry is a tuple
``(key, order, item)``; a withdrawn one is remembered by its order, and the heap drops it when it
comes to the top. So that withdrawals cannot fill the heap, it is rebuilt when more than half of it
is withdrawn: every operation is O(log n) amortised, and memory stays within twice the live entries.

``order`` must be unique in a heap, withdrawn entries included: it breaks ties, and items are never
compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Entry = tuple[Any, int, Any]
_SLACK = 32


class LazyHeap(Generic[T]):
    """Items by rising (key, order)."""

    __slots__ = ("_entries", "_withdrawn", "size")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._withdrawn: set[int] = set()
        """Orders of withdrawn entries."""
        self.size = 0
        """Live entries (an attribute, because every decision reads several)."""

    def __iter__(self) -> Iterator[T]:
        """The items, in no order; O(n)."""
        return (entry[2] for entry in self._entries if entry[1] not in self._withdrawn)

    def push(self, key: Any, order: int, item: T) -> Entry:
        """Add an item; the entry returned is what withdraws it."""
        entry = (key, order, item)
        heappush(self._entries, entry)
        self.size += 1
        return entry

    def first(self) -> Entry | None:
        """The least live entry, left in place."""
        entries, withdrawn = self._entries, self._withdrawn
        while withdrawn and entries[0][1] in withdrawn:
            withdrawn.discard(heappop(entries)[1])
        return entries[0] if entries else None

    def move(self, entry: Entry, key: Any, order: int) -> Entry:
        """Give a live entry's item another place; its new entry."""
        moved = (key, order, entry[2])
        if self._entries[0] is entry:
            heapreplace(self._entries, moved)
            return moved
        self.withdraw(entry)
        return self.push(key, order, entry[2])

    def withdraw(self, entry: Entry) -> None:
        """Take a live entry out."""
        self.size -= 1
        entries, withdrawn = self._entries, self._withdrawn
        if entries[0] is entry:
            heappop(entries)
            return
        withdrawn.add(entry[1])
        if len(entries) > 2 * self.size + _SLACK:
            entries[:] = [kept for kept in entries if kept[1] not in withdrawn]
            heapify(entries)
            withdrawn.clear()
