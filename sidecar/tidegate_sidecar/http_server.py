"""aiohttp's server without its own words: broken HTTP is answered in OpenAI's shape, unlogged.

aiohttp logs a request that it cannot parse, and answers it with what it could not parse; both may
hold a key.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import Answer
from tidegate_sidecar.error_answers import error_answer
from tidegate_sidecar.errors import ApiError

_CLIENT_IDLE_SECONDS = 300.0
"""Idle connections of clients are closed after it; above the usual 60 s of load balancers."""
_MAX_HEADER_BYTES = 32 * 1024


class _Connection(RequestHandler):
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
        error = ApiError(Outcome.MALFORMED, "The request is not valid HTTP.", status=status)
        answer = error_answer(error, secrets.token_hex(12), close=True)
        return cast(web.StreamResponse, answer)


class TenantServer(web.Server):
    """The server of the tenants' port."""

    def __init__(
        self, handle: Callable[[BaseRequest], Awaitable[Answer]], max_connections: int
    ) -> None:
        handler = cast(Callable[[BaseRequest], Awaitable[web.StreamResponse]], handle)
        super().__init__(handler, handler_cancellation=True)
        self._max_connections = max_connections

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
        return _Connection(
            self,
            loop=self._loop,
            access_log=cast(logging.Logger, None),  # None is aiohttp's own way to say no log
            keepalive_timeout=_CLIENT_IDLE_SECONDS,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
