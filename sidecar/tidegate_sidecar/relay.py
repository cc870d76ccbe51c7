"""From the engine's answer to the client's: streamed, joined, or whole.

* A stream passes through event by event (:mod:`.sse`). Its 200 is sent with the first event, so
  that an engine that dies before it still becomes an honest 502. After that, a broken stream ends
  with one error event in OpenAI's shape and a closed connection: it never looks like an end.
* A client that does not read stops the reading from the engine (:mod:`.engine`) and holds at most
  the buffers of two sockets; after ``client_stall_seconds`` it counts as gone.
"""

from __future__ import annotations

import asyncio
import zlib

import orjson
from aiohttp import HttpVersion11, web
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.content import Inflater
from tidegate_sidecar.dispatcher import Ticket
from tidegate_sidecar.engine import EngineBroken, Exchange
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.join import Joiner, JoinError
from tidegate_sidecar.sse import EventStream, usage_of

MAX_ANSWER_BYTES = 64 << 20
"""Of an answer that is held whole: one that is not streamed."""
_CLIENT_BUFFER_BYTES = 64 * 1024


class ClientGone(Exception):
    """The client closed or stopped reading while it was answered."""


async def relay_stream(
    request: BaseRequest,
    exchange: Exchange,
    ticket: Ticket,
    *,
    hide_usage: bool,
    client_stall_seconds: float,
) -> web.StreamResponse:
    """Pass a stream on; the ticket has its outcome when this returns."""
    events = EventStream(hide_usage=hide_usage)
    inflater = Inflater(exchange.headers.get("content-encoding"))
    response: web.StreamResponse | None = None
    chunked = False
    seen = 0
    error: ApiError | None = None
    while True:
        try:
            data = await exchange.read()
            passed = events.feed(inflater.feed(data)) if data else events.finish()
        except (EngineBroken, zlib.error):
            error = ApiError(Outcome.ENGINE_FAILED)
            break
        if events.events > seen:
            seen = ticket.events_seen(events.events, seen)
        if passed:
            if chunked:
                await _write_chunk(request, passed, client_stall_seconds)
                continue
            if response is None:
                response = _stream_response(exchange, ticket, inflater)
                if request.version >= HttpVersion11:
                    response.enable_chunked_encoding()
                    chunked = True
                await response.prepare(request)
            await _write(request, response, passed, client_stall_seconds)
        if not data:
            break
    if error is None and not events.done:
        error = ApiError(Outcome.ENGINE_FAILED)  # an end that the engine did not announce
    ticket.usage = events.usage
    if error is not None:
        ticket.outcome = error.outcome
        if response is None:
            raise error
        await _write(request, response, error.event(), client_stall_seconds)
        response.force_close()
    elif events.error_seen:
        ticket.outcome = Outcome.ENGINE_FAILED
    else:
        ticket.complete(events.usage)
    assert response is not None
    await response.write_eof()
    return response


def _stream_response(exchange: Exchange, ticket: Ticket, inflater: Inflater) -> web.StreamResponse:
    headers = {
        "Content-Type": exchange.headers.get("content-type", "text/event-stream"),
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        "x-request-id": ticket.request.id,
    }
    if inflater.opaque_encoding:
        headers["Content-Encoding"] = inflater.opaque_encoding
    return web.StreamResponse(status=200, headers=headers)


async def _write(
    request: BaseRequest, response: web.StreamResponse, data: bytes, stall_seconds: float
) -> None:
    """The first bytes, and all to HTTP/1.0, in aiohttp's way: with the head before them."""
    try:
        async with asyncio.timeout(stall_seconds):
            await response.write(data)
    except (ConnectionError, TimeoutError):
        raise ClientGone from None


async def _write_chunk(request: BaseRequest, data: bytes, stall_seconds: float) -> None:
    """One chunk, put on the socket as it is: a stream's time goes into writing its events."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ClientGone
    transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    if transport.get_write_buffer_size() < _CLIENT_BUFFER_BYTES:
        return
    try:
        async with asyncio.timeout(stall_seconds):
            await request.writer.drain()
    except (ConnectionError, TimeoutError):
        raise ClientGone from None


async def relay_joined(exchange: Exchange, ticket: Ticket, joiner: Joiner) -> web.Response:
    """Collect a stream into the one answer that the client asked for."""
    inflater = Inflater(exchange.headers.get("content-encoding"))
    seen = 0
    try:
        while data := await exchange.read():
            joiner.feed(inflater.feed(data))
            if joiner.events > seen:
                seen = ticket.events_seen(joiner.events, seen)
            if joiner.size_bytes > MAX_ANSWER_BYTES:
                raise EngineBroken("the answer is too large")
        answer = joiner.answer()
    except (EngineBroken, JoinError, zlib.error):
        ticket.usage = joiner.usage
        raise ApiError(Outcome.ENGINE_FAILED) from None
    ticket.complete(joiner.usage)
    return json_response(answer, ticket.request.id)


async def relay_whole(exchange: Exchange, ticket: Ticket) -> web.Response:
    """Pass a whole answer on; its usage settles the bill."""
    inflater = Inflater(exchange.headers.get("content-encoding"))
    try:
        body = inflater.feed(await exchange.read_all(MAX_ANSWER_BYTES))
    except (EngineBroken, zlib.error):
        raise ApiError(Outcome.ENGINE_FAILED) from None
    ticket.complete(None)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if isinstance(answer, dict):
        ticket.usage = usage_of(answer)
    headers = {"x-request-id": ticket.request.id}
    if inflater.opaque_encoding:
        headers["Content-Encoding"] = inflater.opaque_encoding
    headers["Content-Type"] = exchange.headers.get("content-type", "application/json")
    return web.Response(body=body, headers=headers)


def json_response(body: bytes, request_id: str, status: int = 200) -> web.Response:
    """A JSON answer with its request id."""
    return web.Response(
        body=body,
        status=status,
        headers={"Content-Type": "application/json", "x-request-id": request_id},
    )
