"""The plug-in's step statistics, read from a Unix datagram socket.

Theory of operation: the engine sends a datagram a step to a path and never waits. Here the socket
is read whenever it has something, without blocking, and a bounded number at a time, so that it
never starves tenants. A kernel keeps few datagrams and the plug-in some more for a while: what is
lost beyond that the numbers of steps tell, and everything that follows bears it. The path is bound
anew at each start; an engine that goes on finds the new socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from tidegate.scheduling.contracts import ContractError, StepStatistics, loads

log = logging.getLogger("tidegate.sidecar")

_MOST_AT_ONCE = 64
_MOST_BYTES = 1 << 18
"""Beyond what Linux lets a datagram have by default."""


class StepSocket:
    """Gives each step to ``take``."""

    def __init__(self, path: Path, take: Callable[[StepStatistics], None]) -> None:
        self._path = path
        self._take = take
        self._socket: socket.socket | None = None
        self._buffer = bytearray(_MOST_BYTES)
        self.unreadable = 0
        """Datagrams that were none of the contract's."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen; OSError where the path cannot be bound."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.bind(str(self._path))
        except OSError:
            receiver.close()
            raise
        receiver.setblocking(False)
        self._socket = receiver
        loop.add_reader(receiver, self._read)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """No more steps."""
        if self._socket is not None:
            loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if self._socket is None:
                return
            try:
                size = self._socket.recv_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                return
            self._give(bytes(memoryview(self._buffer)[:size]))

    def _give(self, datagram: bytes) -> None:
        try:
            told = loads(StepStatistics, datagram)
        except ContractError as error:
            self.unreadable += 1
            if self.unreadable & (self.unreadable - 1) == 0:
                log.warning("step statistics not read (%d so far): %s", self.unreadable, error)
            return
        try:
            self._take(told)
        except Exception:
            log.exception("step statistics not merged")
