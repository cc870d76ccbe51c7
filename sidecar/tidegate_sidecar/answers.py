"""What leaves the tenants' port: the bytes of an answer, as HTTP/1.1 (or 1.0) has them.

aiohttp reads the requests and keeps the connections; it asks of an answer no more than ``prepare``,
``write_eof`` and ``keep_alive``. Its own responses build a dictionary of headers, look again at
each of them and pass through three coroutines for every write, which costs more than all of the
scheduling, so the answers here are their own: a head made of one string, a body, one write.

Header values come from this program, or from a header that a parser of HTTP has accepted; none can
hold a line end.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from aiohttp import HttpVersion11
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from tidegate_sidecar.sse import is_comment

_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class ClientGone(Exception):
    """The client closed or stopped reading while it was answered."""


class WholeAnswer:
    """An answer in one piece, sent when aiohttp asks for it."""

    __slots__ = ("_body", "_headers", "_request", "keep_alive", "stall_seconds", "status")

    def __init__(
        self, body: bytes, headers: Mapping[str, str], status: int = 200, *, close: bool = False
    ) -> None:
        self._body = body
        self._headers = headers
        self._request: BaseRequest | None = None
        self.status = status
        self.keep_alive = not close
        self.stall_seconds: float | None = None
        """How long a client may take no byte of it; unset: without end."""

    async def prepare(self, request: BaseRequest) -> None:
        """Write it; ConnectionError where nobody is there to take it."""
        self._request = request
        self.keep_alive = self.keep_alive and request.keep_alive
        no_content = self.status == HTTPStatus.NO_CONTENT
        length = "" if no_content else f"Content-Length: {len(self._body)}\r\n"
        head = _head(request, self.status, self._headers, length, self.keep_alive)
        try:
            whole = head if request.method == "HEAD" else head + self._body
            _write(request.protocol, request.writer, whole)
        except ClientGone:
            raise ConnectionResetError from None

    async def write_eof(self) -> None:
        """Wait until a slow client has taken most of it; ConnectionError where it stalls."""
        request = self._request
        assert request is not None
        if not request.protocol.writing_paused:
            return
        # One wait, looked at now and then: aiohttp's does not bear to be cancelled and begun anew.
        taken = asyncio.ensure_future(request.writer.drain())
        try:
            left = -1
            while not (await asyncio.wait([taken], timeout=self.stall_seconds))[0]:
                waiting = _unread_bytes(request)
                if waiting == left:
                    if (transport := request.transport) is not None:
                        transport.abort()
                    raise ConnectionResetError("the client does not read")
                left = waiting
            await taken
        finally:
            taken.cancel()


class StreamAnswer:
    """An answer of server-sent events that is written piece by piece; its head goes with the
    first one."""

    __slots__ = (
        "_chunked",
        "_headers",
        "_protocol",
        "_request",
        "_writer",
        "begun",
        "committed",
        "keep_alive",
    )

    def __init__(
        self, request: BaseRequest, headers: Mapping[str, str], *, close: bool = False
    ) -> None:
        self._request = request
        self._protocol = request.protocol
        self._writer = request.writer
        self._headers = headers
        self._chunked = request.version >= HttpVersion11
        self.committed = False
        """Something was written: the status is 200."""
        self.begun = False
        """Something besides comments, of which a client sees nothing, was written."""
        self.keep_alive = self._chunked and request.keep_alive and not close

    def write(self, data: bytes) -> bool:
        """Write a piece, at least one byte; True: the client does not keep up."""
        piece = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if not self.begun:
            self.begun = not is_comment(data)
            if not self.committed:
                self.committed = True
                framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
                head = _head(self._request, 200, self._headers, framing, self.keep_alive)
                piece = head + piece
        _write(self._protocol, self._writer, piece)
        return self._protocol.writing_paused

    @property
    def full(self) -> bool:
        """The client does not keep up."""
        return self._protocol.writing_paused

    @property
    def unread_bytes(self) -> int:
        """Written, and not taken by the client's side of the connection."""
        return _unread_bytes(self._request)

    def abort(self) -> None:
        """End the connection, and with it the request."""
        if (transport := self._request.transport) is not None:
            transport.abort()

    async def drained(self, within_seconds: float) -> None:
        """Wait for a client that does not keep up; :class:`ClientGone` where it takes too long."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._writer.drain()
        except (ConnectionError, TimeoutError):
            raise ClientGone from None

    def end(self) -> None:
        """Nothing follows."""
        if self._chunked:
            _write(self._protocol, self._writer, b"0\r\n\r\n")

    async def prepare(self, request: BaseRequest) -> None:
        """It was written before."""

    async def write_eof(self) -> None:
        """It has ended before."""


Answer = WholeAnswer | StreamAnswer


def _write(protocol: RequestHandler, writer: AbstractStreamWriter, data: bytes) -> None:
    transport = protocol.transport
    if transport is None or transport.is_closing():
        raise ClientGone
    transport.write(data)
    writer.output_size += len(data)


def _unread_bytes(request: BaseRequest) -> int:
    transport = request.transport
    return 0 if transport is None else transport.get_write_buffer_size()


def _head(
    request: BaseRequest, status: int, headers: Mapping[str, str], framing: str, keep_alive: bool
) -> bytes:
    """``framing``: the line that says where the body ends; empty: its connection does."""
    connection = ""
    if request.version >= HttpVersion11:
        version = "1.1"
        if not keep_alive:
            connection = "Connection: close\r\n"
    else:
        version = "1.0"
        if keep_alive:
            connection = "Connection: keep-alive\r\n"
    head = f"HTTP/{version} {status} {_PHRASES.get(status, '')}\r\n"
    head += f"Date: {_date(int(time.time()))}\r\n"
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return f"{head}{framing}{connection}\r\n".encode("latin-1")


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def json_answer(
    body: bytes,
    request_id: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    close: bool = False,
) -> WholeAnswer:
    """A JSON answer with its request id."""
    own = {"Content-Type": "application/json", "x-request-id": request_id}
    return WholeAnswer(body, {**own, **headers} if headers else own, status, close=close)
