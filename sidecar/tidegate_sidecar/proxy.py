"""The tenants' port: OpenAI's routes, from authentication to the end of the answer.

The way of a request: key -> content type -> body within its bound -> check and measure -> ticket
(queue, gate) -> engine -> relay -> settle. Errors and routes: :mod:`.tenants_port`. A client that
goes away cancels the handler: the ticket and the exchange are context managers, so wherever that
strikes, the queue entry or the engine's slot is given back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from aiohttp.web_request import BaseRequest

from tidegate.scheduling.contracts import TenantPolicy
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request
from tidegate_sidecar.answers import Answer, json_answer
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.bodies import (
    Body,
    OutputBound,
    engine_body,
    output_bound,
    parse_body,
    require_model,
)
from tidegate_sidecar.client_headers import own_deadline_ms, own_priority, require_json
from tidegate_sidecar.endpoints import CHAT, Endpoint, StreamKind
from tidegate_sidecar.engine_connection import EngineCut
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.exact_size import decided
from tidegate_sidecar.forward import UsageNotTold, require_usage_known, send, upstream_error
from tidegate_sidecar.identity_keys import STAYS_HEADER, require_body
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.join import JOIN_MIN_OUTPUT_TOKENS, joinable, new_joiner
from tidegate_sidecar.keep_alive import KeepAlive, waited_seconds
from tidegate_sidecar.models_route import MODELS_PATH, models_answer
from tidegate_sidecar.parts import Parts
from tidegate_sidecar.passage import Passage
from tidegate_sidecar.relay import (
    break_off,
    new_stream,
    relay_joined,
    relay_stream,
    relay_whole,
)
from tidegate_sidecar.request_body import read_body
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.serve_parts import parts_of, serve_in_parts
from tidegate_sidecar.tenants_port import TenantsPort
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.token_counter import TokenCounter
from tidegate_sidecar.tokenizing import ask_tokenizer


class Proxy(TenantsPort):
    """Handles every request of the tenants' port."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.settings.client_stall_seconds)
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: BaseRequest) -> Answer:
        """One request; returns its answer, or raises when nobody is there to take it."""
        stage = self._runtime.reports.begin(request.headers)
        try:
            return await self._answer(request, stage)
        finally:
            self._runtime.reports.ended(stage)

    def _drains(self) -> bool:
        return self._runtime.dispatcher.departure.told

    def _error_headers(self, stage: Passage) -> Mapping[str, str]:
        return self._limit_headers(stage) if stage.tenant else {}

    def _limit_headers(self, stage: Passage) -> dict[str, str]:
        return self._runtime.dispatcher.limit_headers(stage.tenant, stage.endpoint)

    def _end(self, stage: Passage, outcome: Outcome) -> None:
        stage.outcome = outcome
        if not stage.ticketed:
            duration = self._loop.time() - stage.arrival
            limit = stage.refused_by_limit
            self._runtime.tally.ended(stage.tenant, outcome, duration, limit=limit)

    def _identify(self, request: BaseRequest, stage: Passage) -> tuple[InForce, Identity]:
        in_force = self._runtime.in_force
        if in_force is None:
            raise self._runtime.dispatcher.refusal(Outcome.NO_ENGINE, "")
        caller = self._runtime.callers.identify(request, in_force, self._loop.time(), time.time())
        if caller.request_id is not None:
            stage.id = caller.request_id
        stage.closes_connection |= caller.goes_elsewhere
        stage.tenant = caller.identity.tenant
        return in_force, caller.identity

    async def _models(self, request: BaseRequest, path: str, stage: Passage) -> Answer:
        in_force, identity = self._identify(request, stage)
        usable = in_force.model_of(_tenant(in_force, identity))
        wanted = path.removeprefix(MODELS_PATH)[1:]
        bound = in_force.model.max_model_len_tokens
        body = models_answer(self._runtime.engine_models, usable, wanted, bound)
        self._end(stage, Outcome.COMPLETED)
        return json_answer(body, stage.id, headers=self._limit_headers(stage))

    async def _serve(self, request: BaseRequest, endpoint: Endpoint, stage: Passage) -> Answer:
        runtime, settings = self._runtime, self._runtime.settings
        in_force, identity = self._identify(request, stage)
        require_json(request)
        raw = await read_body(request, settings.max_body_bytes, settings.body_seconds)
        if runtime.in_force is not in_force:
            # a body may take a minute, and its key be revoked meanwhile
            in_force, identity = self._identify(request, stage)
        require_body(identity, raw)
        tenant = _tenant(in_force, identity)
        body = parse_body(endpoint, raw, in_force.model.media_domains)
        require_model(body.model, in_force.model_of(tenant))
        if not endpoint.scheduled:
            answer = await ask_tokenizer(runtime, tenant, body, stage.id)
            self._end(stage, Outcome.COMPLETED)
            return answer
        call = _Call(request, stage, in_force, identity, tenant, body)
        self._estimate(call)
        if runtime.token_counter is not None:
            await self._count(call, runtime.token_counter)
        if (parts := parts_of(runtime, call.in_force, call.body, call.scheduled)) is not None:
            return await self._serve_parts(call, parts)
        return await self._serve_whole(call)

    async def _count(self, call: _Call, counter: TokenCounter) -> None:
        """Measure it again by a count of its prompt, where an estimate does not decide."""
        runtime, tier = self._runtime, call.in_force.tier_of(call.tenant)
        counted = await decided(runtime, counter, call.body, tier, call.scheduled)
        if counted is not None:
            call.body = counted
            if runtime.in_force is not call.in_force:
                call.in_force, call.identity = self._identify(call.request, call.stage)
                call.tenant = _tenant(call.in_force, call.identity)
            self._estimate(call)

    def _estimate(self, call: _Call) -> None:
        """How much it may become."""
        runtime, body, headers = self._runtime, call.body, call.request.headers
        stage, tenant = call.stage, call.tenant.name
        estimator = runtime.estimator.of(tenant)
        limits = call.in_force.tier_of(call.tenant).output
        call.bound = bound = output_bound(body, limits, runtime.max_model_len, estimator)
        deadline_ms = own_deadline_ms(headers)
        call.scheduled = Request(
            stage.id,
            tenant,
            estimator.tokens(body.size),
            bound.tokens * body.sequences,
            len(body.raw),
            body.sequences,
            priority=own_priority(headers),
            deadline=None if deadline_ms is None else stage.arrival + deadline_ms / 1000,
            endpoint=stage.endpoint,
            model=body.model,
        )

    async def _submit(self, call: _Call) -> list[Ticket]:
        """Queue it, after the pods' common counts have let it pass."""
        runtime = self._runtime
        call.stage.request = call.scheduled
        await runtime.shared_state.reserve(call.scheduled)
        try:
            if runtime.in_force is not call.in_force:  # its key may have been revoked meanwhile
                self._identify(call.request, call.stage)
            tickets = runtime.dispatcher.submit(call.scheduled, call.identity.key_sha256)
        except Exception:  # whatever it is: nobody else would
            runtime.shared_state.give_back(call.scheduled)
            raise
        call.stage.tickets += tickets
        return tickets

    async def _serve_parts(self, call: _Call, parts: Parts) -> Answer:
        stage, salt = call.stage, self._runtime.cache_salts.of(call.tenant)
        tickets = await self._submit(call)
        for ticket in tickets:
            ticket.trace = stage.trace
        answer = await serve_in_parts(self._runtime, tickets, call.body, parts, salt)
        return json_answer(answer, stage.id, headers=self._limit_headers(stage))

    async def _serve_whole(self, call: _Call) -> Answer:
        stage, body, endpoint = call.stage, call.body, call.body.endpoint
        joins = self._runtime.engine_tells_usage and call.bound.tokens >= JOIN_MIN_OUTPUT_TOKENS
        call.streams = body.stream or (joins and joinable(body))
        stage.stream = body.stream
        (ticket,) = await self._submit(call)
        ticket.trace = stage.trace
        ticket.role_event = endpoint is CHAT
        signed = call.identity.body_sha256 is not None  # else no router takes it back
        ticket.stays = not signed or STAYS_HEADER in call.request.headers
        with ticket:
            if call.scheduled.truncate_to_tokens is not None and not endpoint.truncates:
                raise ApiError(Outcome.PROMPT_TOO_LONG)
            keep_alive_seconds = call.in_force.policy.stream_keep_alive_seconds
            if keep_alive_seconds is None or not body.stream:
                return await self._dispatch(call, ticket)
            with KeepAlive(
                self._loop,
                ticket,
                lambda: new_stream(call.request, ticket, close=self._closes(stage)),
                keep_alive_seconds,
                self._runtime.settings.client_stall_seconds,
                waited_seconds(call.request.headers) if signed else 0.0,
            ):
                return await self._dispatch(call, ticket)

    async def _dispatch(self, call: _Call, ticket: Ticket) -> Answer:
        while True:
            try:
                return await self._relay(call, ticket, self._engine_body(call))
            except EngineCut:
                pass  # preempted before its client saw anything: once more, when its turn comes
            except UsageNotTold:
                self._runtime.engine_tells_usage = False  # once more, and counted as it streams
            except ApiError as error:
                return break_off(ticket, error, typed=call.typed)

    def _engine_body(self, call: _Call) -> bytes:
        body, kept = call.body, call.scheduled.truncate_to_tokens
        generates = body.endpoint.generates
        return engine_body(
            body,
            bound=call.bound,
            engine_priority=call.in_force.engine_priority_of(call.tenant) if generates else 0,
            ask_stream=call.streams,
            ask_usage=self._runtime.engine_tells_usage,
            prompt_tokens=None if kept is None else max(1, kept // body.size.prompts),
            cache_salt=self._runtime.cache_salts.of(call.tenant),
        )

    async def _relay(self, call: _Call, ticket: Ticket, sent: bytes) -> Answer:
        runtime, body, streams = self._runtime, call.body, call.streams
        endpoint = body.endpoint
        exchange = await send(runtime, ticket, endpoint.path, sent, opaque=not streams)
        try:
            if exchange.status != 200:
                error = await upstream_error(runtime, exchange, endpoint.path)
                if streams and not body.wants_usage and runtime.engine_tells_usage:
                    require_usage_known(error)
                raise error
            if body.stream:
                answer: Answer = await relay_stream(
                    call.request,
                    exchange,
                    ticket,
                    hide_usage=not body.wants_usage,
                    typed=call.typed,
                    client_stall_seconds=runtime.settings.client_stall_seconds,
                    close=self._closes(call.stage),
                )
            elif streams:
                answer = await relay_joined(exchange, ticket, new_joiner(body))
            else:
                answer = await relay_whole(exchange, ticket)
        finally:
            exchange.close()
        asked, usage = ticket.request, ticket.usage
        if usage is not None and asked.truncate_to_tokens is None and endpoint.usage_is_prompt:
            runtime.estimator.of(asked.tenant).observe(body.size, usage.prompt_tokens)
        return answer


class _Call:
    """A checked request that is to be scheduled, and who asks."""

    __slots__ = (
        "body",
        "bound",
        "identity",
        "in_force",
        "request",
        "scheduled",
        "stage",
        "streams",
        "tenant",
    )

    bound: OutputBound
    scheduled: Request
    streams: bool
    """Between engine and sidecar."""

    def __init__(
        self,
        request: BaseRequest,
        stage: Passage,
        in_force: InForce,
        identity: Identity,
        tenant: TenantPolicy,
        body: Body,
    ) -> None:
        self.request = request
        self.stage = stage
        self.in_force = in_force
        """As of when its tenant was looked up."""
        self.identity = identity
        self.tenant = tenant
        self.body = body

    @property
    def typed(self) -> bool:
        """Whether its client reads the events of the Responses API."""
        return self.body.endpoint.stream is StreamKind.TYPED


def _tenant(in_force: InForce, identity: Identity) -> TenantPolicy:
    tenant = in_force.tenant(identity.tenant)
    if tenant is None:
        raise ApiError(Outcome.FORBIDDEN)
    return tenant
