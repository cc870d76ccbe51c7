"""How a sidecar or a router goes: it says so, serves on for a moment, and then takes no more.

Theory of operation. Those who send requests learn late that a pod goes. Its kubelet tells the pod
at once; EndpointSlices, the rules of each node, and above all a client that keeps its connections
follow seconds later, or never. So a departure has three parts:

* **announced**: the engine's hook waits for the end (``/drained``), so both containers of the pod
  are being told to stop, and this one still is in its own hook. All is served; each answer says
  ``Connection: close``, so that a client's next request goes elsewhere. Should only the engine be
  restarted, that is all that comes of it.
* **begun** (SIGTERM, ``POST /drain``): not ready at once, and for the rest of ``leaving_seconds``
  since the announcement, or else since now, as before.
* **over**: no new request is taken, and connections without one are closed.

What is accepted before that is drained as ever. Zero seconds: over as soon as begun. The engine
outlives all of it, since ``/drained`` does not answer before.

Source: R7 asks for "not ready at once, no new" on SIGTERM. The second part departs from it: a pod
that refuses what it can serve, while nobody knows yet that it goes, made 5 of the requests of a
scale-down fail (docs/benchmarks.md, autoscale); it holds from the end of ``leaving_seconds`` on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

MOST_OF_DRAIN = 0.25
"""Leaving takes at most this part of the time to drain, of which it is a part."""


class Departure:
    """Of one process; ``seconds``: it goes on taking requests for so long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._announcers = 0
        self._announced_at = 0.0
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> bool:
        """It is not ready any more."""
        return self._begun.is_set()

    @property
    def over(self) -> bool:
        """No new request is taken any more."""
        return self._over.is_set()

    @property
    def told(self) -> bool:
        """A client's next request should go elsewhere."""
        return self._begun.is_set() or (self._announcers > 0 and self._seconds > 0)

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """It is expected to begin meanwhile."""
        if not self._announcers:
            self._announced_at = self._loop.time()
        self._announcers += 1
        try:
            yield
        finally:
            self._announcers -= 1

    def begin(self) -> None:
        """From now on; idempotent."""
        if self.begun:
            return
        self._begun.set()
        now = self._loop.time()
        end = (self._announced_at if self._announcers else now) + self._seconds
        if end <= now:
            self._over.set()
        else:
            self._timer = self._loop.call_at(end, self._over.set)

    async def wait_begun(self) -> None:
        """Returns once it is not ready any more."""
        await self._begun.wait()

    async def wait_over(self) -> None:
        """Returns once no new request is taken any more."""
        await self._over.wait()

    def close(self) -> None:
        """No timer is left behind."""
        if self._timer is not None:
            self._timer.cancel()
