"""An upstream that misbehaves on the wire, for what no well-kept HTTP server will do.

A script: the n-th request is answered by the n-th behaviour, all later ones by the last. Behaviours
are coroutines over a raw connection; the usual ones are made by the functions below. Requests and
the ends of connections are recorded.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came in; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One client's connection, while a behaviour answers on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """RST: the client sees ECONNRESET, not an orderly end."""
        sock = self.writer.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def closed_by_peer(self) -> None:
        """Return once the client has closed."""
        while await self._reader.read(65_536):
            pass

    async def request(self) -> ReceivedRequest | None:
        """The next request; None: the client closed."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.rstrip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        return ReceivedRequest(method, path, headers, await self._body(headers))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return body


Behaviour = Callable[[Connection], Awaitable[None]]


class FaultyUpstream:
    """``async with FaultyUpstream(behaviour, ...) as upstream``; listens on loopback or ``uds``."""

    def __init__(self, *behaviours: Behaviour, uds: str | None = None) -> None:
        if not behaviours:
            raise ValueError("at least one behaviour")
        self._behaviours = behaviours
        self._uds = uds
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.open_connections = 0
        self.url = "http://engine"

    async def __aenter__(self) -> FaultyUpstream:
        if self._uds is not None:
            self._server = await asyncio.start_unix_server(self._serve, self._uds)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        connection = Connection(reader, writer)
        try:
            while (request := await connection.request()) is not None:
                index = min(len(self.requests), len(self._behaviours) - 1)
                self.requests.append(request)
                await self._behaviours[index](connection)
                if writer.is_closing():
                    break
        except (asyncio.CancelledError, ConnectionError):
            pass  # the test is over, or the client left
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """A status line and headers."""
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answer(
    status: int,
    body: Any,
    headers: Mapping[str, str] | None = None,
    *,
    gzipped: bool = False,
    after: asyncio.Event | None = None,
) -> Behaviour:
    """A whole answer, JSON unless ``body`` is bytes; ``after``: only once that event is set."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    data = gzip.compress(data) if gzipped else data
    own = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    if gzipped:
        own["Content-Encoding"] = "gzip"

    async def behave(connection: Connection) -> None:
        if after is not None:
            await after.wait()
        await connection.write(head(status, {**own, **(headers or {})}) + data)

    return behave


def raw(data: bytes, *, then: Behaviour | None = None) -> Behaviour:
    """Exactly these bytes, then ``then`` (unset: the connection is closed)."""

    async def behave(connection: Connection) -> None:
        if data:
            await connection.write(data)
        await (then or close)(connection)

    return behave


def event_stream(
    pieces: Sequence[bytes],
    *,
    between: Callable[[int], Awaitable[None]] | None = None,
    then: Behaviour | None = None,
) -> Behaviour:
    """A chunked 200 of server-sent events, one chunk and one write for each piece.

    ``between(n)`` is awaited before piece n. ``then`` takes over after the last piece, before the
    terminating chunk (unset: the stream ends in order).
    """

    async def behave(connection: Connection) -> None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await connection.write(head(200, headers))
        for number, piece in enumerate(pieces):
            if between is not None:
                await between(number)
            await connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if then is not None:
            await then(connection)
        else:
            await connection.write(b"0\r\n\r\n")

    return behave


async def close(connection: Connection) -> None:
    """End the connection in order, with nothing more said."""
    connection.writer.close()


async def reset(connection: Connection) -> None:
    """Break the connection."""
    connection.reset()


async def stall(connection: Connection) -> None:
    """Say nothing more until the client gives up."""
    await connection.closed_by_peer()
