"""A work queue that holds each key once and hands no key to two workers.

Theory of operation: a key put while it waits is dropped (it will be looked at anyway); a key put
while a worker has it is queued again when that worker is done, so no change is missed and no two
workers act on one object. A key that failed comes back after a delay that doubles with each failure
in a row, from ``base`` to ``highest`` seconds, and is forgotten on success. A fresh put of a key
that waits out its back-off, or fails after the put, does not shorten it, unless ``now`` is asked
for: a hot loop of a failing object is impossible however many events it causes.

Keys put ``first`` are taken before the others, also when they come back after a failure, until they
were worked on once; after :data:`FIRST_IN_A_ROW` of them one of the others has its turn, so that
nothing starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_IN_A_ROW = 8


class WorkQueue(Generic[K]):
    """Keys to be worked on; for one event loop."""

    def __init__(self, base_seconds: float = 0.2, highest_seconds: float = 60.0) -> None:
        self._base = base_seconds
        self._highest = highest_seconds
        self._ready: deque[K] = deque()
        self._ready_first: deque[K] = deque()
        self._first_in_a_row = 0
        """Taken while others waited."""
        self._waiting: set[K] = set()
        self._first: set[K] = set()
        """Of those that are not being worked on."""
        self._running: dict[K, bool] = {}
        """With whether they were put first."""
        self._again: dict[K, bool] = {}
        """Put while a worker has them, and whether ``now`` was asked for."""
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backing_off: set[K] = set()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def failures(self, key: K) -> int:
        """Failures of the key in a row."""
        return self._failures.get(key, 0)

    def put(self, key: K, *, now: bool = False, first: bool = False) -> None:
        """Ask for the key to be worked on; ``now`` ends a back-off."""
        if key in self._backing_off and not now:
            return
        self._cancel_timer(key)
        overtakes = first and key not in self._first
        if first:
            self._first.add(key)
        if key in self._running:
            self._again[key] = now or self._again.get(key, False)
        elif key not in self._waiting:
            self._waiting.add(key)
            (self._ready_first if key in self._first else self._ready).append(key)
            self._wake.set()
        elif overtakes:
            self._ready.remove(key)
            self._ready_first.append(key)

    async def take(self) -> K:
        """The next key; the caller owes ``done``, ``goes_on`` or ``failed`` for it."""
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        first = bool(self._ready_first)
        if self._ready and self._first_in_a_row >= FIRST_IN_A_ROW:
            first = False
        self._first_in_a_row = self._first_in_a_row + 1 if first and self._ready else 0
        key = (self._ready_first if first else self._ready).popleft()
        self._waiting.discard(key)
        self._first.discard(key)
        self._running[key] = first
        return key

    def done(self, key: K) -> None:
        """The key was worked on; its failures are forgotten."""
        self._failures.pop(key, None)
        self._finish(key)

    def goes_on(self, key: K) -> None:
        """What was urgent of the key's work is done; the rest comes in its turn."""
        del self._running[key]
        self._again.pop(key, None)
        self.put(key)

    def failed(self, key: K, highest_seconds: float | None = None) -> float:
        """The key's work failed; it comes back after the seconds returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        highest = self._highest if highest_seconds is None else highest_seconds
        delay = min(highest, self._base * 2.0 ** min(count, 30))
        if self._running.pop(key):
            self._first.add(key)
        self._cancel_timer(key)
        if self._again.pop(key, False):
            self.put(key)
            return 0.0
        self._backing_off.add(key)
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self._due, key)
        return delay

    def forget(self, key: K) -> None:
        """The object is gone: nothing of the key is kept."""
        self._failures.pop(key, None)
        if key not in self._waiting:
            self._first.discard(key)
        self._cancel_timer(key)

    def close(self) -> None:
        """Cancel every timer."""
        for key in list(self._timers):
            self._cancel_timer(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._backing_off.discard(key)
        self.put(key)

    def _finish(self, key: K) -> None:
        del self._running[key]
        if self._again.pop(key, None) is not None:
            self.put(key)

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._backing_off.discard(key)
