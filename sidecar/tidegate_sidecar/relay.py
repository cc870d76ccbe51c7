"""From the engine's answer to the client's: streamed, joined, or whole.

* A stream passes through event by event (:mod:`.sse`), written to the client within the read of
  the engine's socket that brought it; the handler waits for its end only. Its 200 is sent with the
  first event, or with a comment that kept the client waiting (:mod:`.keep_alive`), so that an
  engine that dies before it still becomes an honest 502. After that, a broken stream ends with one
  error event in OpenAI's shape and a closed connection: it never looks like an end.
* A stream has ended with its ``[DONE]``; an engine that then leaves the connection open holds
  nobody's place for longer than :data:`LAST_CHUNK_SECONDS`.
* A client that does not read stops the reading from the engine (:mod:`.engine`) and holds at most
  the buffers of two sockets; after ``client_stall_seconds`` it counts as gone.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import StreamAnswer, WholeAnswer, json_answer
from tidegate_sidecar.content import Inflater
from tidegate_sidecar.engine import Exchange
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.estimate import BYTES_PER_TOKEN_PRIOR
from tidegate_sidecar.join_response import JoinError, StreamJoiner
from tidegate_sidecar.sse import EventStream, usage_of
from tidegate_sidecar.ticket import Ticket

MAX_ANSWER_BYTES = 64 << 20
"""Of an answer that is held whole: one that is not streamed."""
EVENT_STREAM = "text/event-stream"
LAST_CHUNK_SECONDS = 1.0
"""From ``[DONE]`` to the end of the body, which engines send together."""


async def relay_stream(
    request: BaseRequest,
    exchange: Exchange,
    ticket: Ticket,
    *,
    hide_usage: bool,
    typed: bool,
    client_stall_seconds: float,
    close: bool,
) -> StreamAnswer:
    """Pass a stream on; the ticket has its outcome when this returns. :class:`ApiError` where it
    broke (:func:`break_off`). ``close``: the connection is not used again."""
    events = EventStream(hide_usage=hide_usage, typed=typed)
    inflater = Inflater(exchange.headers.get("content-encoding"))
    if inflater.opaque_encoding:
        raise ApiError(Outcome.ENGINE_FAILED)  # no event of it could be told from another
    answer = _client_stream(request, exchange, ticket, close=close)
    seen = 0

    def pass_on(passed: bytes) -> bool:
        nonlocal seen
        if events.events > seen:
            seen = ticket.events_seen(events.events, seen)
        if events.done and not events.error_seen:
            ticket.complete(events.usage)  # many clients hang up on it
        return answer.write(passed) if passed else False

    broken = False
    try:
        await _pump_stream(
            exchange,
            events,
            lambda data: pass_on(events.feed(inflater.feed(data))),
            lambda: answer.drained(client_stall_seconds),
        )
        if pass_on(events.finish()):
            await answer.drained(client_stall_seconds)
    except (EngineBroken, zlib.error):
        broken = True
    ticket.usage = events.usage
    if broken or not events.done:  # or an end that the engine did not announce
        raise ApiError(Outcome.ENGINE_FAILED)
    if events.error_seen:
        ticket.outcome = Outcome.ENGINE_FAILED
    else:
        ticket.complete(events.usage)
    answer.end()
    return answer


def _client_stream(
    request: BaseRequest, exchange: Exchange, ticket: Ticket, *, close: bool
) -> StreamAnswer:
    """What the client is sent: what comments have begun while it waited, or a new stream."""
    answer = ticket.stream
    if answer is None or not answer.committed:
        content_type = exchange.headers.get("content-type", EVENT_STREAM)
        answer = ticket.stream = new_stream(request, ticket, content_type, close=close)
    return answer


def break_off(ticket: Ticket, error: ApiError, *, typed: bool) -> StreamAnswer:
    """End a stream whose status is sent with the error as its last event; else raise the error."""
    answer = ticket.stream
    if answer is None or not answer.committed:
        raise error
    ticket.outcome = error.outcome
    answer.keep_alive = False
    answer.write(error.typed_event() if typed else error.event())
    answer.end()
    return answer


async def _pump_stream(
    exchange: Exchange,
    reader: EventStream | StreamJoiner,
    sink: Callable[[bytes], bool],
    drained: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Give a stream to ``sink``, to the end of the body or shortly after its ``reader`` saw one."""
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(None) as limit:

            def take(data: bytes) -> bool:
                full = sink(data)
                if reader.done and limit.when() is None:
                    limit.reschedule(now() + LAST_CHUNK_SECONDS)
                return full

            await exchange.pump(take, drained)
    except TimeoutError:
        if not reader.done:
            raise


def new_stream(
    request: BaseRequest, ticket: Ticket, content_type: str = EVENT_STREAM, *, close: bool
) -> StreamAnswer:
    """What its client is sent; nothing is, yet."""
    headers = {
        "Content-Type": content_type,
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        "x-request-id": ticket.request.id,
        **ticket.limit_headers(),
    }
    return StreamAnswer(request, headers, close=close)


async def relay_joined(exchange: Exchange, ticket: Ticket, joiner: StreamJoiner) -> WholeAnswer:
    """Collect a stream into the one answer that the client asked for."""
    inflater = Inflater(exchange.headers.get("content-encoding"))
    seen = 0

    def take(data: bytes) -> bool:
        nonlocal seen
        joiner.feed(inflater.feed(data))
        if joiner.events > seen:
            seen = ticket.events_seen(joiner.events, seen)
        if joiner.size_bytes > MAX_ANSWER_BYTES:
            raise EngineBroken("the answer is too large")
        return False

    try:
        await _pump_stream(exchange, joiner, take)
        answer = joiner.answer()
    except (EngineBroken, JoinError, zlib.error):
        ticket.usage = joiner.usage
        raise ApiError(Outcome.ENGINE_FAILED) from None
    ticket.complete(joiner.usage)
    return json_answer(answer, ticket.request.id, headers=ticket.limit_headers())


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ApiError(Outcome.ENGINE_FAILED)
    return answer


async def read_whole(exchange: Exchange) -> tuple[bytes, str | None]:
    """A whole answer, inflated, and its encoding where that is not known: then it is as it came."""
    inflater = Inflater(exchange.headers.get("content-encoding"))
    try:
        body = inflater.feed(await exchange.read_all(MAX_ANSWER_BYTES))
    except (EngineBroken, zlib.error):
        raise ApiError(Outcome.ENGINE_FAILED) from None
    return body, inflater.opaque_encoding


async def relay_whole(exchange: Exchange, ticket: Ticket) -> WholeAnswer:
    """Pass a whole answer on; its usage settles the bill."""
    body, opaque_encoding = await read_whole(exchange)
    if opaque_encoding:
        ticket.complete(None)
    else:
        answer = _json_object(body)
        ticket.complete(usage_of(answer))
        if ticket.usage is None:
            ticket.output_tokens = _counted_tokens(answer)
    headers = {"x-request-id": ticket.request.id, **ticket.limit_headers()}
    if opaque_encoding:
        headers["Content-Encoding"] = opaque_encoding
    headers["Content-Type"] = exchange.headers.get("content-type", "application/json")
    return WholeAnswer(body, headers)


def _counted_tokens(answer: dict[str, Any]) -> int:
    """Output tokens of an answer without usage: its text, at the usual length of a token."""
    choices = answer.get("choices")
    text = 0
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message", choice) if isinstance(choice, dict) else {}
        for value in message.values() if isinstance(message, dict) else ():
            text += len(value) if isinstance(value, str) else 0
    return round(text / BYTES_PER_TOKEN_PRIOR)
