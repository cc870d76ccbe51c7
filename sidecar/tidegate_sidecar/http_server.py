"""aiohttp's server without its own words: broken HTTP is answered in OpenAI's shape, unlogged.

aiohttp logs a request that it cannot parse, and answers it with what it could not parse; both may
hold a key.

Time. aiohttp knows one bound, of the wait for a whole head, since the last answer or the begin of
the connection: long, since connections are kept open unused. A head that has begun has a bound of
its own, from its first byte on however it trickles; of one that came before the answer to the
request before it, from its next byte on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import Answer
from tidegate_sidecar.error_answers import error_answer
from tidegate_sidecar.errors import ApiError

_CLIENT_IDLE_SECONDS = 300.0
"""Idle connections of clients are closed after it; above the usual 60 s of load balancers."""
_MAX_HEADER_BYTES = 32 * 1024


class _Connection(RequestHandler):
    def __init__(self, server: TenantServer, header_seconds: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(logging.Logger, None),  # None is aiohttp's own way to say no log
            keepalive_timeout=_CLIENT_IDLE_SECONDS,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        self._header_seconds = header_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiter = self._waiter
        if waiter is not None and not waiter.done():  # a head is waited for, and has begun
            if self._head_timer is None:
                self._head_timer = self._loop.call_later(self._header_seconds, self._head_is_late)
        elif self._head_timer is not None:
            self._end_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_head_timer()
        super().connection_lost(exc)

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            late = _ErrInfo(status=HTTPStatus.REQUEST_TIMEOUT, exc=TimeoutError(), message="")
            self._messages.append((late, EMPTY_PAYLOAD))
            waiter.set_result(None)

    def close_if_idle(self) -> None:
        """Where it waits for a client's next request; who sends none until then loses nothing."""
        if self._waiter is not None and self.transport is not None:
            self.transport.close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; another one cannot be sent")
        late = status == HTTPStatus.REQUEST_TIMEOUT
        message = "The head did not arrive in time." if late else "The request is not valid HTTP."
        error = ApiError(Outcome.MALFORMED, message, status=status)
        answer = error_answer(error, secrets.token_hex(12), close=True)
        return cast(web.StreamResponse, answer)


class TenantServer(web.Server):
    """The server of the tenants' port."""

    def __init__(
        self,
        handle: Callable[[BaseRequest], Awaitable[Answer]],
        max_connections: int,
        header_seconds: float,
    ) -> None:
        handler = cast(Callable[[BaseRequest], Awaitable[web.StreamResponse]], handle)
        super().__init__(handler, handler_cancellation=True)
        self._max_connections = max_connections
        self._header_seconds = header_seconds

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Beyond the bound a connection is closed at once: those that are there go on."""
        super().connection_made(handler, transport)
        if len(self._connections) > self._max_connections:
            transport.abort()

    def close_idle(self) -> None:
        """Close the connections on which no request is under way."""
        for connection in self.connections:
            if isinstance(connection, _Connection):
                connection.close_if_idle()

    def __call__(self) -> RequestHandler:
        """One connection's handler."""
        return _Connection(self, self._header_seconds)
