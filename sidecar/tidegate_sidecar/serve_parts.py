"""A request in parts: each waits, is sent and settled by itself; one answer and one outcome.

One task for each part. The first that fails ends all others, which are billed as it is; a client
that goes away ends them too. Whatever happens, each ticket is closed exactly once: also one whose
task was ended before it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request
from tidegate_sidecar.bodies import Body, OutputBound, engine_body
from tidegate_sidecar.engine_connection import EngineCut
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.forward import send, upstream_error
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.parts import PartError, Parts, PartsAnswer, cut
from tidegate_sidecar.relay import read_whole
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.ticket import Ticket, TicketState

DEFAULT_MOST_DOCUMENTS = 256
"""Of a part, where the engine's seats are not configured: vLLM's default."""


def parts_of(runtime: Runtime, in_force: InForce, body: Body, whole: Request) -> Parts | None:
    """The parts to serve a request in, which get their requests; None: it goes as one.

    A part is about one full batch of the engine, and no more than the prompt limit lets pass.
    """
    if body.size.prompts == 1:
        return None
    engine = in_force.policy.engine
    budget_tokens = engine.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
    tenant = in_force.tenant(whole.tenant)
    limit = None if tenant is None else in_force.tier_of(tenant).prompt_limit
    if limit is not None and limit.max_tokens is not None:
        budget_tokens = min(budget_tokens, limit.max_tokens)
    most_documents = engine.max_num_seqs or DEFAULT_MOST_DOCUMENTS
    parts = cut(body, runtime.estimator.of(whole.tenant), budget_tokens, most_documents)
    if parts is None:
        return None
    whole.parts = tuple(
        replace(
            whole,
            id=f"{whole.id}-{number}",
            prompt_tokens=part.prompt_tokens,
            sequences=part.count,
            body_bytes=0,
            whole=whole,
        )
        for number, part in enumerate(parts.slices)
    )
    whole.prompt_tokens = sum([part.prompt_tokens for part in whole.parts])
    whole.parts[-1].body_bytes = whole.body_bytes
    return parts


async def serve_in_parts(
    runtime: Runtime,
    tickets: Sequence[Ticket],
    body: Body,
    parts: Parts,
    cache_salt: bytes | None,
) -> bytes:
    """The joined answer of a request whose parts were submitted; raises what a part did first."""

    def body_of(number: int) -> bytes:
        return engine_body(
            replace(body, raw=parts.raw(parts.slices[number])),
            bound=OutputBound(0, None),
            engine_priority=0,
            ask_stream=False,
            prompt_tokens=tickets[number].request.truncate_to_tokens,
            cache_salt=cache_salt,
        )

    way = _PartsOnTheirWay(runtime, body.endpoint.path, tickets, PartsAnswer(body, parts))
    answer = await way.serve(body_of)
    used = [t.usage.prompt_tokens for t in tickets if t.usage and not t.request.truncate_to_tokens]
    if body.endpoint.usage_is_prompt and len(used) == len(tickets):
        runtime.estimator.of(tickets[0].request.tenant).observe(body.size, sum(used))
    return answer


class _PartsOnTheirWay:
    """The parts of one request; ``tickets``: in their order, all of them submitted."""

    def __init__(
        self, runtime: Runtime, path: str, tickets: Sequence[Ticket], answer: PartsAnswer
    ) -> None:
        self._runtime = runtime
        self._path = path
        self._tickets = tickets
        self._answer = answer
        self._outcome = Outcome.CLIENT_CLOSED
        """Of all; that of the first part that failed."""

    async def serve(self, body_of: Callable[[int], bytes]) -> bytes:
        """The joined answer; raises what the first part to fail did.

        ``body_of``: the engine's body of a part by its number, asked when its turn has come.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(self._tickets)):
                    group.create_task(self._serve_part(number, body_of))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._settle()
        return self._answer.joined()

    async def _serve_part(self, number: int, body_of: Callable[[int], bytes]) -> None:
        ticket = self._tickets[number]
        with ticket:
            try:
                await ticket.turn()
                sent = body_of(number)
                ticket.complete(self._answer.take(number, await self._answered(ticket, sent)))
            except asyncio.CancelledError:
                ticket.outcome = self._outcome
                raise
            except PartError:
                raise self._failed(ApiError(Outcome.ENGINE_FAILED)) from None
            except ApiError as error:
                raise self._failed(error) from None
            except Exception:
                self._failed(ApiError(Outcome.ENGINE_FAILED))
                raise

    def _failed(self, error: ApiError) -> ApiError:
        answered = any(ticket.outcome is Outcome.COMPLETED for ticket in self._tickets)
        if answered and error.outcome is Outcome.NO_ENGINE:
            # Told so, a router would have what was answered, and is billed, done again elsewhere.
            error = ApiError(Outcome.ENGINE_FAILED)
        if self._outcome is Outcome.CLIENT_CLOSED:
            self._outcome = error.outcome
        return error

    async def _answered(self, ticket: Ticket, sent: bytes) -> bytes:
        while True:
            try:
                exchange = await send(self._runtime, ticket, self._path, sent, opaque=True)
                try:
                    if exchange.status != 200:
                        raise await upstream_error(self._runtime, exchange, self._path)
                    body, encoding = await read_whole(exchange)
                finally:
                    exchange.close()
                if encoding is not None:
                    raise PartError("an encoding that is not known")
                return body
            except EngineCut:
                pass  # preempted: once more, when its turn comes

    def _settle(self) -> None:
        if all(ticket.outcome is Outcome.COMPLETED for ticket in self._tickets):
            self._outcome = Outcome.COMPLETED  # though its client may have left in this moment
        for ticket in self._tickets:
            if ticket.outcome is not Outcome.COMPLETED:
                ticket.outcome = self._outcome  # also where two parts failed at once
            if ticket.state is not TicketState.ENDED:
                with ticket:
                    pass
        request = self._tickets[0].request
        duration = asyncio.get_running_loop().time() - request.arrival
        self._runtime.tally.ended(request.tenant, self._outcome, duration)
