"""How many sequences may be in the engine's queue: dispatched, and not started.

Theory of operation: the window starts at what an engine can start in one feedback delay (the step
that runs and the one begun at its end), plus one; it grows by one after each step that ended with
free seats, free KV and a queue of ours while the window alone was what held us back; it is halved
when more than 5% of recent requests waited over two steps in the engine (their 95th percentile
exceeds 2). Where the seats are known, it is at most their number and what may stand ready for one
(``places``), plus one: no more can start, and half of more would change nothing.

Bound: at least 1, so that something always may start. O(1).
Source: additive increase, multiplicative decrease (Chiu and Jain 1989).
"""

from __future__ import annotations

from collections import deque

from tidegate.scheduling.engine_seats import WAIT_BOUND_STEPS

_WAITS_KEPT = 64
_WAITS_NEEDED = 20


class StartWindow:
    """Of one engine; ``places`` None: its seats are not known."""

    def __init__(self) -> None:
        self._size = 2
        self._late: deque[bool] = deque(maxlen=_WAITS_KEPT)
        """Of each recent start, whether it waited longer than the bound."""

    def begin(self, startable: int) -> None:
        """An engine can start so many in one feedback delay."""
        self._size = max(2, startable + 1)

    def size(self, places: int | None) -> int:
        """Sequences that may be dispatched and not started."""
        return self._size if places is None else min(self._size, max(2, places + 1))

    def grow(self, places: int | None) -> None:
        """It alone held something back."""
        self._size = self.size(places) + 1

    def started(self, waited_steps: int, places: int | None) -> None:
        """One waited so long in the engine's queue."""
        self._late.append(waited_steps > WAIT_BOUND_STEPS)
        if len(self._late) >= _WAITS_NEEDED and sum(self._late) * 20 > len(self._late):
            self._size = max(1, self.size(places) // 2)
            self._late.clear()
