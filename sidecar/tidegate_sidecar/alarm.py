"""One timer at the earliest of several times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls ``ring`` at the earliest time that it was set to since it rang last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._set: tuple[float, asyncio.Handle] | None = None
        """Loop time, and what rings then: of uvloop's no timer where that is at once."""

    def set(self, when: float) -> None:
        """At this loop time, or before if it was to ring before anyway."""
        if self._set is not None:
            if self._set[0] <= when:
                return
            self._set[1].cancel()
        self._set = when, self._loop.call_at(when, self._rings)

    def cancel(self) -> None:
        """No timer is left."""
        if self._set is not None:
            self._set[1].cancel()
            self._set = None

    def _rings(self) -> None:
        self._set = None
        self._ring()
