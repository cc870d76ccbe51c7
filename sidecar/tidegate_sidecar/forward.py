"""A request's turn, and its way to the engine: what every kind of relaying begins with."""

from __future__ import annotations

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.endpoints import ENDPOINTS
from tidegate_sidecar.engine import EngineUnreachable, Exchange
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.upstream_errors import MAX_ERROR_BYTES, from_answer, other_task


async def send(
    runtime: Runtime, ticket: Ticket, path: str, sent: bytes, *, opaque: bool
) -> Exchange:
    """Wait for the ticket's turn and the head of the engine's answer.

    ``opaque``: the answer is not streamed. :class:`ApiError` where it has lost its place, or the
    engine broke.
    """
    while True:
        await ticket.turn()
        if opaque:
            runtime.dispatcher.in_flight.mark_opaque(ticket)
        ticket.sent = True
        body = sent
        if runtime.plugin is not None:
            body = runtime.plugin.tagged(sent, ticket.request, runtime.in_force)
        try:
            headers = {"X-Request-Id": ticket.request.id}
            if ticket.trace is not None:
                headers |= ticket.trace.engine_headers()
            return await runtime.engine.post(path, headers, body, ticket.may_be_cut)
        except EngineUnreachable:
            # nothing was sent, so nothing is lost: back to its place until the engine answers
            runtime.dispatcher.set_engine_ready(False)
            ticket.requeue()
        except EngineBroken:
            raise ApiError(Outcome.ENGINE_FAILED) from None


class UsageNotTold(Exception):
    """The engine refuses to be asked for usage in a stream."""


def require_usage_known(error: ApiError) -> None:
    """:class:`UsageNotTold` where an engine complains of ``stream_options``, which are ours."""
    if error.status == 400 and "stream_options" in (error.param or "") + error.message:
        raise UsageNotTold


async def upstream_error(runtime: Runtime, exchange: Exchange, path: str) -> ApiError:
    """The error of an answer other than 200 to a request for the endpoint at ``path``."""
    if exchange.status == 404 and runtime.in_force is not None:
        task = runtime.in_force.model.task
        if ENDPOINTS[path].task not in (task, None):
            return other_task(path, task)
    try:
        body = await exchange.read_all(MAX_ERROR_BYTES)
    except EngineBroken:
        body = b""
    return from_answer(exchange.status, exchange.headers.get("retry-after"), body)
