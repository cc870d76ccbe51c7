"""The tenants' port: OpenAI's routes, from authentication to the end of the answer.

The way of a request: key -> content type -> body within its bound -> check and measure -> ticket
(queue, gate) -> engine -> relay -> settle. Errors and routes: :mod:`.tenants_port`. A client that
goes away cancels the handler: the ticket and the exchange are context managers, so wherever that
strikes, the queue entry or the engine's slot is given back.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping

from aiohttp.web_request import BaseRequest

from tidegate.scheduling.contracts import TenantPolicy
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request
from tidegate_sidecar.answers import Answer, json_answer
from tidegate_sidecar.auth import Identity
from tidegate_sidecar.bodies import Body, engine_body, output_bound, parse_body, require_model
from tidegate_sidecar.client_headers import own_deadline_ms, own_priority, require_json
from tidegate_sidecar.endpoints import CHAT, Endpoint, StreamKind
from tidegate_sidecar.engine_connection import EngineCut
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.exact_size import decided
from tidegate_sidecar.forward import UsageNotTold, require_usage_known, send, upstream_error
from tidegate_sidecar.identity_keys import STAYS_HEADER, require_body
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.join import JOIN_MIN_OUTPUT_TOKENS, joinable, new_joiner
from tidegate_sidecar.keep_alive import KeepAlive
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
        stage.goes_elsewhere = caller.goes_elsewhere
        stage.tenant = caller.identity.tenant
        return in_force, caller.identity

    async def _models(self, request: BaseRequest, path: str, stage: Passage) -> Answer:
        in_force, identity = self._identify(request, stage)
        usable = in_force.model_of(_tenant(in_force, identity))
        wanted = path.removeprefix(MODELS_PATH)[1:]
        body = models_answer(self._runtime.engine_models, usable, wanted)
        self._end(stage, Outcome.COMPLETED)
        return json_answer(body, stage.id, headers=self._limit_headers(stage))

    async def _serve(self, request: BaseRequest, endpoint: Endpoint, stage: Passage) -> Answer:
        runtime = self._runtime
        in_force, identity = self._identify(request, stage)
        require_json(request)
        settings = runtime.settings
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
        tier = in_force.tier_of(tenant)
        estimator = runtime.estimator.of(identity.tenant)
        bound = output_bound(body, tier.output, runtime.max_model_len, estimator)
        scheduled = self._scheduled(request, stage, identity, body, bound.tokens)
        if (counted := await decided(runtime, body, tier, scheduled)) is not None:
            body = counted
            if runtime.in_force is not in_force:
                in_force, identity = self._identify(request, stage)
                tenant = _tenant(in_force, identity)
                tier = in_force.tier_of(tenant)
            bound = output_bound(body, tier.output, runtime.max_model_len, estimator)
            scheduled = self._scheduled(request, stage, identity, body, bound.tokens)
        if (parts := parts_of(runtime, in_force, body, scheduled)) is not None:
            salt = runtime.cache_salts.of(tenant)
            stage.request = scheduled
            await self._submit(request, stage, in_force, identity, scheduled)
            return await self._serve_parts(stage, body, parts, salt)
        joins = runtime.engine_tells_usage and bound.tokens >= JOIN_MIN_OUTPUT_TOKENS
        stream = body.stream or (joins and joinable(body))
        stage.request, stage.stream = scheduled, body.stream
        (ticket,) = await self._submit(request, stage, in_force, identity, scheduled)
        ticket.trace = stage.trace
        ticket.role_event = endpoint is CHAT
        signed = identity.body_sha256 is not None  # else no router takes it back
        ticket.stays = not signed or STAYS_HEADER in request.headers
        with ticket:
            kept = scheduled.truncate_to_tokens
            if kept is not None and not endpoint.truncates:
                raise ApiError(Outcome.PROMPT_TOO_LONG)
            write = functools.partial(
                engine_body,
                body,
                bound=bound,
                engine_priority=in_force.engine_priority_of(tenant) if endpoint.generates else 0,
                ask_stream=stream,
                prompt_tokens=None if kept is None else max(1, kept // body.size.prompts),
                cache_salt=runtime.cache_salts.of(tenant),
            )
            keep_alive_seconds = in_force.policy.stream_keep_alive_seconds
            if keep_alive_seconds is None or not body.stream:
                return await self._dispatch(request, ticket, body, write, stream, stage)
            with KeepAlive(
                self._loop,
                ticket,
                lambda: new_stream(request, ticket, close=self._goes_elsewhere(stage)),
                keep_alive_seconds,
                settings.client_stall_seconds,
            ):
                return await self._dispatch(request, ticket, body, write, stream, stage)

    async def _submit(
        self,
        request: BaseRequest,
        stage: Passage,
        in_force: InForce,
        identity: Identity,
        scheduled: Request,
    ) -> list[Ticket]:
        """Queue it, after the pods' common counts have let it pass."""
        runtime = self._runtime
        await runtime.shared_state.reserve(scheduled)
        try:
            if runtime.in_force is not in_force:  # its key may have been revoked meanwhile
                self._identify(request, stage)
            tickets = runtime.dispatcher.submit(scheduled, identity.key_sha256)
        except Exception:  # whatever it is: nobody else would
            runtime.shared_state.give_back(scheduled)
            raise
        stage.tickets += tickets
        return tickets

    async def _serve_parts(
        self,
        stage: Passage,
        body: Body,
        parts: Parts,
        cache_salt: bytes | None,
    ) -> Answer:
        tickets = stage.tickets
        for ticket in tickets:
            ticket.trace = stage.trace
        answer = await serve_in_parts(self._runtime, tickets, body, parts, cache_salt)
        return json_answer(answer, stage.id, headers=self._limit_headers(stage))

    def _scheduled(
        self,
        request: BaseRequest,
        stage: Passage,
        identity: Identity,
        body: Body,
        output_tokens: int,
    ) -> Request:
        deadline_ms = own_deadline_ms(request.headers)
        return Request(
            id=stage.id,
            tenant=identity.tenant,
            prompt_tokens=self._runtime.estimator.of(identity.tenant).tokens(body.size),
            max_output_tokens=output_tokens * body.sequences,
            body_bytes=len(body.raw),
            sequences=body.sequences,
            priority=own_priority(request.headers),
            deadline=None if deadline_ms is None else stage.arrival + deadline_ms / 1000,
            endpoint=stage.endpoint,
            model=body.model,
        )

    async def _dispatch(
        self,
        request: BaseRequest,
        ticket: Ticket,
        body: Body,
        write: Callable[..., bytes],
        stream: bool,
        stage: Passage,
    ) -> Answer:
        while True:
            sent = write(ask_usage=self._runtime.engine_tells_usage)
            try:
                return await self._relay(request, ticket, body, sent, stream, stage)
            except EngineCut:
                pass  # preempted before its client saw anything: once more, when its turn comes
            except UsageNotTold:
                self._runtime.engine_tells_usage = False  # once more, and counted as it streams
            except ApiError as error:
                return break_off(ticket, error, typed=body.endpoint.stream is StreamKind.TYPED)

    async def _relay(
        self,
        request: BaseRequest,
        ticket: Ticket,
        body: Body,
        sent: bytes,
        stream: bool,
        stage: Passage,
    ) -> Answer:
        exchange = await send(self._runtime, ticket, body.endpoint.path, sent, opaque=not stream)
        try:
            if exchange.status != 200:
                error = await upstream_error(exchange)
                if stream and not body.wants_usage and self._runtime.engine_tells_usage:
                    require_usage_known(error)
                raise error
            if body.stream:
                answer: Answer = await relay_stream(
                    request,
                    exchange,
                    ticket,
                    hide_usage=not body.wants_usage,
                    typed=body.endpoint.stream is StreamKind.TYPED,
                    client_stall_seconds=self._runtime.settings.client_stall_seconds,
                    close=self._goes_elsewhere(stage),
                )
            elif stream:
                answer = await relay_joined(exchange, ticket, new_joiner(body))
            else:
                answer = await relay_whole(exchange, ticket)
        finally:
            exchange.close()
        asked, usage = ticket.request, ticket.usage
        if usage is not None and asked.truncate_to_tokens is None and body.endpoint.usage_is_prompt:
            self._runtime.estimator.of(asked.tenant).observe(body.size, usage.prompt_tokens)
        return answer


def _tenant(in_force: InForce, identity: Identity) -> TenantPolicy:
    tenant = in_force.tenant(identity.tenant)
    if tenant is None:
        raise ApiError(Outcome.FORBIDDEN)
    return tenant
