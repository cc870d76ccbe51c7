"""Forwards TCP connections, byte for byte, with back-pressure and half-closing both ways."""

import asyncio
import contextlib
import resource
import socket
import struct
from collections.abc import Callable
from typing import cast

Backend = tuple[str, int]
"""(address, port)."""

_CONNECT_SECONDS = 5.0
_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)
_MAX_OPEN_FILES = 1 << 20


def allow_open_files() -> None:
    """Raise the process's soft limit of open files to the hard one.

    A forwarded connection takes two, and most machines begin with 1,024: 500 clients. Containers
    inherit it, as they have a high one from a container runtime.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class TcpProxy:
    """Listens on any number of addresses; `pick` is asked who may take each new connection."""

    def __init__(self, pick: Callable[[], list[Backend]]) -> None:
        self.pick = pick
        self._servers: list[asyncio.Server] = []
        self._open: set[_Side] = set()
        self._turn = 0

    async def listen(self, address: str, port: int) -> None:
        """Raises OSError where the address cannot be bound."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self), address, port, backlog=1024)
        self._servers.append(server)

    async def close(self) -> None:
        """Stops listening and cuts what is still open."""
        for server in self._servers:
            server.close()
        for side in list(self._open):
            side.abort()
        for server in self._servers:
            await server.wait_closed()

    async def connect(self, client: "_Client") -> "_Side | None":
        """A connection to the next backend in turn that accepts one."""
        backends = self.pick()
        self._turn += 1
        loop = asyncio.get_running_loop()
        for offset in range(len(backends)):
            address, port = backends[(self._turn + offset) % len(backends)]
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    _, side = await loop.create_connection(
                        lambda: _Side(self, client), address, port
                    )
                return side
        return None


class _Side(asyncio.Protocol):
    """One of the two connections of a forwarded one; hands what it gets to its peer."""

    def __init__(self, proxy: TcpProxy, peer: "_Side | None" = None) -> None:
        self._proxy = proxy
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._proxy._open.add(self)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """Passes a half-close on and keeps this side open for what still comes back."""
        self._ended = True
        if self.peer is None or self.peer.transport is None:
            return True
        if self.peer._ended:
            # Both have said all: what is still in a buffer is written before it closes.
            self.peer.transport.close()
            return False
        with contextlib.suppress(OSError, RuntimeError):
            self.peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy._open.discard(self)
        peer, self.peer = self.peer, None
        if peer is not None and peer.transport is not None:
            # A reset is passed on as one; after an orderly end the rest is still delivered.
            if error is not None:
                peer.abort()
            else:
                peer.transport.close()

    def abort(self) -> None:
        """Ends with a reset, also where nothing unread makes the kernel send one by itself."""
        if self.transport is None:
            return
        own: socket.socket = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
        self.transport.abort()


class _Client(_Side):
    """The client's side: finds a backend, and keeps what it reads until then.

    It pauses reading meanwhile, but some versions of Python read on when paused in
    `connection_made` (seen on 3.11.2): a read may still come.
    """

    def __init__(self, proxy: TcpProxy) -> None:
        super().__init__(proxy)
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        if self.peer is not None:
            super().data_received(data)
            return
        self._early.append(data)
        if self.transport is not None:
            self.transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        side = await self._proxy.connect(self)
        assert self.transport is not None
        if side is None:
            # As a cluster without endpoints does: reset, not an empty answer.
            self.abort()
        elif self.transport.is_closing():
            side.abort()
        else:
            self.peer = side
            for data in self._early:
                super().data_received(data)
            self._early.clear()
            if self._ended and side.transport is not None:
                side.transport.write_eof()
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        super().connection_lost(error)
