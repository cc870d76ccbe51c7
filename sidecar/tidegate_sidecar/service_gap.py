"""How far apart tenants drift that all wait: the fairness that a pool shows, as a figure.

A tenant is *continuously backlogged* in a window if at every moment of it something of it waits.
What two such tenants of one tier are given in it, each divided by its weight, differs by no more
than the round robin's bound; the figure is the largest difference, in the tier's fairness unit
(requests, tokens, milliseconds of engine time), of the last window with at least two of them, 0
where there were none. Windows are aligned: ``[30k, 30k + 30)`` seconds of the wall clock, so that
those of several pods can be compared. Source: the measure of VTC (Sheng et al., OSDI 2024).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from tidegate.scheduling.snapshots import Backlog

WINDOW_SECONDS = 30.0


class ServiceGap:
    """Of one scheduler; ``backlogged`` gives the tenants of whom something waits."""

    def __init__(self, backlogged: Callable[[], Iterable[Backlog]]) -> None:
        self._backlogged = backlogged
        self._before: dict[str, Backlog] = {}
        self.by_tier: dict[str, float] = {}
        """Of tiers that had any, in the last window."""

    def window_ended(self) -> None:
        """A window has ended, and the next one begins."""
        now = {one.tenant: one for one in self._backlogged()}
        given: dict[str, list[float]] = {}
        for name, one in now.items():
            before = self._before.get(name)
            # The same row: of the same tier in the same unit, and its queue was never empty.
            if before is not None and before[:5] == one[:5]:
                given.setdefault(one.tier, []).append((one.given - before.given) / one.weight)
        self.by_tier = {
            tier: max(each) - min(each) for tier, each in given.items() if len(each) > 1
        }
        self._before = now

    async def follow(self) -> None:
        """One window after the other."""
        while True:
            await asyncio.sleep(WINDOW_SECONDS - time.time() % WINDOW_SECONDS)
            self.window_ended()
