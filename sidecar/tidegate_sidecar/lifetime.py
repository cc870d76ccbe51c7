"""A process of the data plane, from its start to its end.

It runs until a SIGTERM or SIGINT and then drains; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from tidegate_sidecar.collector import Collector
from tidegate_sidecar.logs import log_loop_errors


class Server(Protocol):
    """What runs: a sidecar or a router."""

    @property
    def in_hand(self) -> int:
        """Requests that have not ended."""

    async def start(self) -> None:
        """Listen; OSError where a port is taken."""

    async def drain(self) -> None:
        """Leave; returns when the requests in hand have ended, or were given time to."""

    async def stop(self) -> None:
        """Close everything, however far the start came."""


async def run(server: Server) -> None:
    """Run until a signal, then drain; raises what ``start`` does."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    told_again = asyncio.Event()
    log_loop_errors(loop)

    def on_signal() -> None:
        (told_again if told.is_set() else told).set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)
    try:
        await server.start()
        collector = Collector(lambda: server.in_hand)
        collector.begin(loop.time())
        collecting = asyncio.create_task(collector.follow(), name="collector")
        await told.wait()
        collecting.cancel()
        draining = asyncio.create_task(server.drain())
        quitting = asyncio.create_task(told_again.wait())
        await asyncio.wait((draining, quitting), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, quitting):
            task.cancel()
        await asyncio.gather(draining, quitting, return_exceptions=True)
    finally:
        await server.stop()
