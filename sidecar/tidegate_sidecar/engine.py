"""HTTP/1.1 to the engine over a Unix socket or TCP: one exchange, bytes as they come.

A client of its own, since the whole data plane's speed hangs on it and it needs little: POST and
GET, keep-alive, chunked answers, back-pressure. Parsing is httptools (llhttp). Theory of operation:

* A connection carries one exchange at a time. It returns to the pool only when the answer ended
  and both sides keep it alive, and is not used again after :data:`KEEP_ALIVE_SECONDS`, below the
  5 s after which uvicorn closes its side.
* ``Exchange.close`` before the end closes the connection: that is how an engine learns that
  nobody waits any more.
* The body goes to its reader's sink within the read that brought it, as one piece a read: no task
  wakes up for it and nothing is kept. A sink that is full stops the reading of the socket until
  it has drained: a slow client slows its own stream and costs bounded memory. What comes with the
  head is held for the sink, which its task sets in the next pass of the loop.
* A connection from the pool that dies at once, before any byte of the answer, was stale: the
  exchange is tried once more, on a new connection. Nothing else is ever sent twice.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import httptools

from tidegate_sidecar.engine_address import EngineAddress

KEEP_ALIVE_SECONDS = 3.0
CONNECT_SECONDS = 5.0
_POOL_SIZE = 256
_STALE_SECONDS = 0.2
"""A connection that the other side had closed says so in a round trip; later it is a failure."""


Sink = Callable[[bytes], bool]
"""Takes a piece of a body; True: it is full, no more until it has drained."""


class EngineUnreachable(Exception):
    """No connection could be made: the engine did no work."""


class EngineBroken(Exception):
    """The connection ended, or was silent too long, before the answer was complete."""


class EngineCut(Exception):
    """We ended the exchange ourselves (:data:`Cut`)."""


Cut = Callable[[], bool]
"""Ends an exchange for reasons of ours: its reader gets :class:`EngineCut`. False: too late, it has
ended already."""


class _StaleConnection(EngineBroken):
    """It had been closed by the engine while idle; no byte of an answer came."""


class _Connection(asyncio.Protocol):
    """One socket and the exchange on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # a chunk of the body costs no call of Python code
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._paused = False
        self._error: Exception | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_complete = False
        self.complete = False
        self.keep_alive = False
        self.busy = False
        self.reused = False
        self.byte_seen = False
        self.last_byte = 0.0
        """Loop time of the last byte either way; of the return to the pool while idle."""

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.byte_seen = True
        self.last_byte = self._loop.time()
        if not self.busy:
            self.abort()  # an answer that nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._deliver()
            self._fail(EngineBroken("the engine did not answer in HTTP"))
            self.abort()
            return
        self._deliver()
        if self._sink is None or self.complete:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.head_complete and exc is None and self._ends_with_connection():
            self.complete = True
        if self.busy and not self.complete:
            at_once = self._loop.time() - self.last_byte < _STALE_SECONDS
            stale = self.reused and not self.byte_seen and at_once
            self._fail((_StaleConnection if stale else EngineBroken)("connection lost"))
        else:
            self._wake()

    # --- httptools

    def on_message_begin(self) -> None:
        if self.complete:
            raise EngineBroken("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.head_complete = True
        else:
            self.headers = {}

    def on_message_complete(self) -> None:
        if self.head_complete:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()

    # --- one exchange

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self.busy = True
        self.complete = self.head_complete = self.byte_seen = False
        self.headers = {}
        self._error = None
        self.last_byte = self._loop.time()
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def wait_head(self) -> None:
        while not self.head_complete:
            await self._wait()

    def deliver_to(self, sink: Sink) -> None:
        self._sink = sink
        self._deliver()

    async def full_or_complete(self) -> bool:
        """Wait until the body is complete (True) or the sink is full (False)."""
        while not self._paused:
            if self.complete and self._error is None:
                return True
            await self._wait()
        return False

    def resume(self) -> None:
        self._paused = False
        self.last_byte = self._loop.time()
        if self._transport is not None and self.open:
            self._transport.resume_reading()

    def _deliver(self) -> None:
        """What one read held goes to the sink in one piece."""
        pieces = self._pieces
        if self._sink is None or not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        try:
            full = self._sink(data)
        except Exception as error:
            self._sink = None
            self._fail(error)
            return
        if full and not self.complete and self._transport is not None and self.open:
            self._paused = True
            self._transport.pause_reading()
            self._wake()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        if self._transport is None:
            raise EngineBroken("connection lost")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def release(self) -> bool:
        """Let go of the exchange; whether the connection can carry another one."""
        reusable = self.complete and self.keep_alive and self.open and not self._pieces
        self.busy = False
        self._sink = None
        self._pieces.clear()
        self.last_byte = self._loop.time()
        return reusable

    def silent_since(self, now: float) -> float:
        """Seconds without a byte; 0 while it is us who do not read."""
        return 0.0 if self._paused else now - self.last_byte

    def stalled(self) -> None:
        """End the exchange: nothing came for too long."""
        self._fail(EngineBroken("no byte from the engine for too long"))
        self.abort()

    def cut(self) -> bool:
        """See :data:`Cut`; what has come and was not taken is dropped."""
        if not self.busy or self.complete or self._error is not None:
            return False
        self._pieces.clear()
        self._fail(EngineCut())
        self.abort()
        return True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Exchange:
    """An answer whose head has come. Close it in every case; ``close`` is idempotent."""

    __slots__ = ("_client", "_connection", "headers", "status")

    def __init__(self, client: EngineClient, connection: _Connection) -> None:
        self._client = client
        self._connection: _Connection | None = connection
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
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._host = f"Host: {address.authority}\r\n".encode()

    @property
    def open_exchanges(self) -> int:
        """Exchanges whose connection is taken from the pool."""
        return len(self._busy)

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        on_sent: Callable[[Cut], None] | None = None,
    ) -> Exchange:
        """Send a JSON body; returns when the answer's head is there.

        ``on_sent`` is given what ends the exchange, as soon as there is one.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
        )
        return await self._exchange(
            head % (path.encode(), self._host, lines.encode("latin-1"), len(body)), body, on_sent
        )

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Exchange:
        """Send a GET; returns when the answer's head is there."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = b"GET %b HTTP/1.1\r\n%b%b\r\n"
        return await self._exchange(
            head % (path.encode(), self._host, lines.encode("latin-1")), b""
        )

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
            except _StaleConnection:
                self._busy.discard(connection)
                connection = await self._connect()
            except BaseException:
                self._busy.discard(connection)
                connection.abort()
                raise
            else:
                return Exchange(self, connection)

    def _take_idle(self) -> _Connection | None:
        oldest = self._loop.time() - KEEP_ALIVE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.last_byte >= oldest:
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if address.path is not None:
                    _, connection = await self._loop.create_unix_connection(
                        lambda: _Connection(self._loop), address.path
                    )
                else:
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self._loop), address.host, address.port
                    )
        except (OSError, TimeoutError) as error:
            raise EngineUnreachable(type(error).__name__) from None
        return connection

    def _put_back(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        if connection.release() and len(self._idle) < _POOL_SIZE:
            self._idle.append(connection)
        else:
            connection.abort()
