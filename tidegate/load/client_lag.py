"""Whether the load generator keeps up with itself."""

from __future__ import annotations

import asyncio
import time

from tidegate.load.percentiles import percentile

_TICK_SECONDS = 0.02


class LoopLag:
    """How late the event loop wakes from short sleeps: the lag of everything the client times."""

    def __init__(self) -> None:
        self._lags: list[float] = []

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.perf_counter() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._lags.append(max(0.0, time.perf_counter() - due))

    @property
    def p99_seconds(self) -> float:
        """0 before the first tick."""
        return percentile(sorted(self._lags), 99) if self._lags else 0.0
