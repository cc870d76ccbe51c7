"""When Python's garbage collector looks at what: never at all that waits while much waits.

Theory. A full pass visits every container that is alive, and stops the event loop while it does:
with 100,000 requests queued (handlers, requests, parsed bodies: some four million objects) for more
than a second. It finds only what refers to itself in a ring; all else is freed at once, by counting
references. So:

* what exists when the process has started is set aside for good (``gc.freeze``);
* young objects are looked at as ever, a few thousand at a time: rings that a request leaves are
  young when it ends in the usual time;
* a full pass is made only when at most :data:`QUIET` requests are in hand, at most every
  :data:`LEAST_SECONDS`, and where it is never that quiet every :data:`MOST_SECONDS` all the same,
  so that no ring lives for ever.

Bound: while it gets quiet now and then, a pause is that of a pass over ``QUIET`` requests or over
:data:`YOUNG` x :data:`MIDDLE` young objects.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

YOUNG = 2_000
"""New containers after which the youngest are looked at."""
MIDDLE = 10
"""Of those passes, after how many the ones that survived are."""
QUIET = 1_000
LEAST_SECONDS = 60.0
MOST_SECONDS = 3_600.0
_LOOK_SECONDS = 1.0
_NEVER = 1_000_000


class Collector:
    """Of one process; ``in_hand``: how many requests it holds."""

    def __init__(self, in_hand: Callable[[], int]) -> None:
        self._in_hand = in_hand
        self._last = 0.0

    def begin(self, now: float) -> None:
        """The process has started: what there is, is there to stay."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, _NEVER)
        self._last = now

    def is_due(self, now: float) -> bool:
        """Whether a full pass may be made now."""
        elapsed = now - self._last
        quiet = self._in_hand() <= QUIET
        return elapsed >= (LEAST_SECONDS if quiet else MOST_SECONDS)

    async def follow(self) -> None:
        """Make the full passes."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.is_due(clock()):
                gc.collect()
                self._last = clock()
