"""One connection to the engine, a Unix socket or TCP, and the exchange on it.

Parsing is httptools (llhttp). Theory of operation:

* A connection carries one exchange at a time.
* The body goes to its reader's sink within the read that brought it, as one piece a read: no task
  wakes up for it and nothing is kept. A sink that is full stops the reading of the socket until
  it has drained: a slow client slows its own stream and costs bounded memory. What comes with the
  head is held for the sink, which its task sets in the next pass of the loop.
* One that was idle and dies at once, before any byte of the answer, was stale.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

_STALE_SECONDS = 0.2
"""A connection that the other side had closed says so in a round trip; later it is a failure."""

Sink = Callable[[bytes], bool]
"""Takes a piece of a body; True: it is full, no more until it has drained."""


class EngineBroken(Exception):
    """The connection ended, or was silent too long, before the answer was complete."""


class EngineCut(Exception):
    """We ended the exchange ourselves (:data:`Cut`)."""


Cut = Callable[[], bool]
"""Ends an exchange for reasons of ours: its reader gets :class:`EngineCut`. False: too late, it has
ended already."""


class StaleConnection(EngineBroken):
    """It had been closed by the engine while idle; no byte of an answer came."""


class Connection(asyncio.Protocol):
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
            self._fail((StaleConnection if stale else EngineBroken)("connection lost"))
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
            await self._news()

    def take_whole(self) -> bytes | None:
        """The body where all of it came with the head, as a small one does; None: it did not."""
        if not self.complete or self._error is not None:
            return None
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def deliver_to(self, sink: Sink) -> None:
        self._sink = sink
        self._deliver()

    async def full_or_complete(self) -> bool:
        """Wait until the body is complete (True) or the sink is full (False)."""
        while not self._paused:
            if self.complete and self._error is None:
                return True
            await self._news()
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

    def _news(self) -> asyncio.Future[None]:
        """Done once anything has changed; raises where it ended in an error."""
        if self._error is not None:
            raise self._error
        if self._transport is None:
            raise EngineBroken("connection lost")
        self._waiter = self._loop.create_future()
        return self._waiter

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
