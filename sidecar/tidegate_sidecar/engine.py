"""HTTP/1.1 to the engine: a pool of connections, one exchange on each, bytes as they come.

A client of its own, since the whole data plane's speed hangs on it and it needs little: POST and
GET, keep-alive, chunked answers, back-pressure (:mod:`.engine_connection`). Theory of operation:

* A connection returns to the pool only when the answer ended and both sides keep it alive, and is
  not used again after :data:`KEEP_ALIVE_SECONDS`, below the 5 s after which uvicorn closes its
  side.
* ``Exchange.close`` before the end closes the connection: that is how an engine learns that
  nobody waits any more.
* A connection from the pool that was stale has the exchange tried once more, on a new connection.
  Nothing else is ever sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from tidegate_sidecar.engine_address import EngineAddress
from tidegate_sidecar.engine_connection import (
    Connection,
    Cut,
    EngineBroken,
    Sink,
    StaleConnection,
)

KEEP_ALIVE_SECONDS = 3.0
CONNECT_SECONDS = 5.0
_POOL_SIZE = 256


class EngineUnreachable(Exception):
    """No connection could be made: the engine did no work."""


class Exchange:
    """An answer whose head has come. Close it in every case; ``close`` is idempotent."""

    __slots__ = ("_client", "_connection", "headers", "status")

    def __init__(self, client: EngineClient, connection: Connection) -> None:
        self._client = client
        self._connection: Connection | None = connection
        self.status = connection.status
        self.headers = connection.headers

    async def pump(self, sink: Sink, drained: Callable[[], Awaitable[None]] | None = None) -> None:
        """Give the body to ``sink`` as it comes, to its end; raises what the sink raises.

        Where the sink is full, nothing is read until ``drained()`` has returned.
        """
        connection = self._connection
        assert connection is not None
        connection.deliver_to(sink)
        while not await connection.full_or_complete():
            if drained is not None:
                await drained()
            connection.resume()

    async def read_all(self, limit: int) -> bytes:
        """The whole body; :class:`EngineBroken` above ``limit`` bytes."""
        connection = self._connection
        assert connection is not None
        if (body := connection.take_whole()) is not None:
            if len(body) > limit:
                raise EngineBroken("the answer is too large")
            return body
        parts: list[bytes] = []
        room = limit

        def take(piece: bytes) -> bool:
            nonlocal room
            room -= len(piece)
            if room < 0:
                raise EngineBroken("the answer is too large")
            parts.append(piece)
            return False

        await self.pump(take)
        return b"".join(parts)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client._put_back(connection)


class EngineClient:
    """A pool of connections to one engine."""

    def __init__(self, address: EngineAddress, *, silence_seconds: float = 600.0) -> None:
        self._address = address
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._host = f"Host: {address.authority}\r\n"

    @property
    def open_exchanges(self) -> int:
        """Exchanges whose connection is taken from the pool."""
        return len(self._busy)

    def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        on_sent: Callable[[Cut], None] | None = None,
    ) -> Coroutine[Any, Any, Exchange]:
        """Send a JSON body; returns when the answer's head is there.

        ``on_sent`` is given what ends the exchange, as soon as there is one.
        """
        head = f"POST {path} HTTP/1.1\r\n{self._host}Content-Type: application/json\r\n"
        for name, value in headers.items():
            head += f"{name}: {value}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        return self._exchange(head.encode("latin-1"), body, on_sent)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, Exchange]:
        """Send a GET; returns when the answer's head is there."""
        head = f"GET {path} HTTP/1.1\r\n{self._host}"
        for name, value in (headers or {}).items():
            head += f"{name}: {value}\r\n"
        return self._exchange(f"{head}\r\n".encode("latin-1"), b"")

    def sweep(self, now: float) -> None:
        """Close what was idle or silent for too long; the host calls it every second or so."""
        for connection in [c for c in self._idle if now - c.last_byte > KEEP_ALIVE_SECONDS]:
            self._idle.remove(connection)
            connection.abort()
        for connection in list(self._busy):
            if connection.silent_since(now) > self._silence_seconds:
                connection.stalled()

    def abort_exchanges(self) -> None:
        """End every exchange now, as if the engine had gone."""
        for connection in list(self._busy):
            connection.stalled()

    def close(self) -> None:
        """Close every connection."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()

    async def _exchange(
        self, head: bytes, body: bytes, on_sent: Callable[[Cut], None] | None = None
    ) -> Exchange:
        connection = self._take_idle() or await self._connect()
        while True:
            self._busy.add(connection)
            try:
                connection.send(head, body)
                if on_sent is not None:
                    on_sent(connection.cut)
                await connection.wait_head()
            except StaleConnection:
                self._busy.discard(connection)
                connection = await self._connect()
            except BaseException:
                self._busy.discard(connection)
                connection.abort()
                raise
            else:
                return Exchange(self, connection)

    def _take_idle(self) -> Connection | None:
        oldest = self._loop.time() - KEEP_ALIVE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.last_byte >= oldest:
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if address.path is not None:
                    _, connection = await self._loop.create_unix_connection(
                        lambda: Connection(self._loop), address.path
                    )
                else:
                    _, connection = await self._loop.create_connection(
                        lambda: Connection(self._loop), address.host, address.port
                    )
        except (OSError, TimeoutError) as error:
            raise EngineUnreachable(type(error).__name__) from None
        return connection

    def _put_back(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection.release() and len(self._idle) < _POOL_SIZE:
            self._idle.append(connection)
        else:
            connection.abort()
