"""The edge stage: who asks, for what, and which pod serves it.

The way of a request: key -> content type -> body within its bound -> check and measure -> engine
group (:mod:`.groups`) -> pod (:mod:`.balancer`) -> forward with signed identity -> relay, byte for
byte. Limits of rate and prompt are judged by the
pod, where what a request used is known and billed: they are the same for every pod (shared state).

A request goes to a second pod only where nothing of it is lost or done twice: the pod could not be
reached, refused it as draining or without an engine, does not know its key yet, or handed it back
from its queue; never after a byte of the answer reached the client, and never when the engine may
have begun.

What a pod ends, the pod records. The router writes usage records of what it ended itself: what it
refused, what a client gave up before any pod had it, and what a broken pod may have no record of.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp.web_request import BaseRequest

from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome
from tidegate_sidecar.answers import Answer, StreamAnswer, WholeAnswer
from tidegate_sidecar.auth import Identity, authenticate
from tidegate_sidecar.bodies import Body, output_bound, parse_body, require_model
from tidegate_sidecar.client_headers import (
    DEADLINE_HEADER,
    PRIORITY_HEADER,
    own_deadline_ms,
    own_priority,
    require_json,
)
from tidegate_sidecar.departure import Departure
from tidegate_sidecar.endpoints import Endpoint, StreamKind
from tidegate_sidecar.engine import EngineUnreachable, Exchange
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.errors import DROPPED_REASON_HEADER, ApiError
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.identity_keys import (
    IDENTITY_HEADER,
    STAYS_HEADER,
    WAITED_HEADER,
    IdentityKeys,
)
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.parts import MAX_ANSWER_BYTES
from tidegate_sidecar.passage import Passage
from tidegate_sidecar.request_body import read_body
from tidegate_sidecar.router.balancer import choose
from tidegate_sidecar.router.groups import Placement
from tidegate_sidecar.router.pods import PodSet, RoutedPod
from tidegate_sidecar.router.settings import RouterSettings
from tidegate_sidecar.tenants_port import TenantsPort
from tidegate_sidecar.trace_context import trace_headers
from tidegate_sidecar.usage_records import UsageRecords

SESSION_HEADER = "x-tidegate-session"
GROUP_HEADER = "x-tidegate-engine-group"
"""Of an answer: the engine group that served it, where that is not its tier's home."""
AFFINITY_PREFIX_CHARACTERS = 512
MAX_HAND_BACKS = 8
"""Of one request; then it waits where it is."""
_REFUSED_BY_POD = frozenset(
    HTTP_ERRORS[outcome].dropped_reason for outcome in (Outcome.DRAINING, Outcome.NO_ENGINE)
)
"""The pod has no part in it yet, and another one may."""
_HANDED_BACK = HTTP_ERRORS[Outcome.HANDED_BACK].dropped_reason
_PASSED_ON = (
    "content-type",
    "content-encoding",
    "retry-after",
    "cache-control",
    "www-authenticate",
)
_PASSED_ON_PREFIXES = ("x-ratelimit-", "x-tidegate-", "x-accel-")


class Edge(TenantsPort):
    """Handles every request of the router's tenants' port."""

    def __init__(
        self, settings: RouterSettings, keys: IdentityKeys, pods: PodSet, estimator: Estimator
    ) -> None:
        super().__init__(settings.client_stall_seconds)
        self._settings = settings
        self._keys = keys
        self._pods = pods
        self._estimator = estimator
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self.in_force: InForce | None = None
        self.ended: Counter[str] = Counter()
        """Requests by outcome, as far as the router judged it; the rest is ``forwarded``."""
        self.placed: Counter[tuple[str, Placement]] = Counter()
        """Requests that a pod took a part in, by its engine group."""
        self.retries = 0
        self.in_hand = 0
        self._idle = asyncio.Event()
        self.departure = Departure(self._loop, settings.leaving_in_force_seconds)
        self.usage = (
            None if settings.usage_records is None else UsageRecords(settings.usage_records)
        )

    async def handle(self, request: BaseRequest) -> Answer:
        """One request; returns its answer, or raises when nobody is there to take it."""
        stage = Passage(secrets.token_hex(12), self._loop.time(), time.time())
        self.in_hand += 1
        self._idle.clear()
        try:
            return await self._answer(request, stage)
        finally:
            self.in_hand -= 1
            if not self.in_hand:
                self._idle.set()

    async def _route(self, request: BaseRequest, stage: Passage) -> Answer:
        answer = await super()._route(request, stage)
        if stage.outcome is None:
            self.ended["forwarded"] += 1
        else:
            self._end(stage, stage.outcome)
        return answer

    def _drains(self) -> bool:
        return self.departure.told

    def _end(self, stage: Passage, outcome: Outcome) -> None:
        """It ended here: counted, and recorded unless a pod has seen its client go."""
        self.ended[outcome] += 1
        if self.usage is None or (stage.forwarded and outcome is Outcome.CLIENT_CLOSED):
            return
        pool = tier = ""
        if (in_force := self.in_force) is not None:
            pool = in_force.policy.pool
            tenant = in_force.tenant(stage.tenant) if stage.tenant else None
            tier = "" if tenant is None else tenant.tier
        self.usage.put(stage.record(outcome, pool, tier, self._loop.time()))

    async def idle(self) -> None:
        """Returns when no request is in hand."""
        if self.in_hand:
            await self._idle.wait()

    def _identify(self, request: BaseRequest, stage: Passage) -> tuple[InForce, Identity]:
        in_force = self.in_force
        if in_force is None:
            raise ApiError(Outcome.NO_ENGINE)
        if self.departure.over:
            raise ApiError(Outcome.DRAINING)
        identity = authenticate(request.headers.getall("Authorization", ()), in_force.keys)
        stage.tenant = identity.tenant
        return in_force, identity

    async def _models(self, request: BaseRequest, path: str, stage: Passage) -> Answer:
        in_force, identity = self._identify(request, stage)
        tenant = in_force.tenant(identity.tenant)
        tier = "" if tenant is None else tenant.tier
        asked = _Forwarded(stage.id, identity, tier, path, headers={}, raw=None)
        return await self._forward(request, asked, stage)

    async def _serve(self, request: BaseRequest, endpoint: Endpoint, stage: Passage) -> Answer:
        in_force, identity = self._identify(request, stage)
        require_json(request)
        settings = self._settings
        raw = await read_body(request, settings.max_body_bytes, settings.body_seconds)
        if self.in_force is not in_force:
            in_force, identity = self._identify(request, stage)
        tenant = in_force.tenant(identity.tenant)
        if tenant is None:
            raise ApiError(Outcome.FORBIDDEN)
        body = parse_body(endpoint, raw, in_force.model.media_domains)
        require_model(body.model, in_force.model_of(tenant))
        bound = output_bound(body, in_force.tier_of(tenant).output, None, self._estimator)
        deadline_ms = own_deadline_ms(request.headers)
        stage.stream = body.stream
        forwarded = _Forwarded(
            id=stage.id,
            identity=identity,
            tier=tenant.tier,
            path=endpoint.path,
            headers=_own_headers(request),
            raw=raw,
            stream=endpoint.stream if body.stream else None,
            affinity=_affinity(request, body, tenant.name),
            tokens=self._estimator.tokens(body.size) + bound.tokens * body.sequences,
            deadline=None if deadline_ms is None else stage.arrival + deadline_ms / 1000,
        )
        return await self._forward(request, forwarded, stage)

    async def _forward(self, request: BaseRequest, forwarded: _Forwarded, stage: Passage) -> Answer:
        """Send it to one pod after another until one keeps it."""
        while True:
            pod, placement = self._choose(forwarded)
            with pod.carrying(forwarded.tokens):
                try:
                    exchange = await self._sent(pod, forwarded, stage)
                except EngineUnreachable:
                    if not self._goes_on(forwarded, pod, handed_back=False):
                        raise ApiError(Outcome.NO_ENGINE) from None
                    continue
                try:
                    reason = exchange.headers.get(DROPPED_REASON_HEADER)
                    if self._is_disowned(forwarded, pod, exchange.status):
                        if self._goes_on(forwarded, pod, handed_back=False):
                            continue
                        raise ApiError(Outcome.NO_ENGINE)
                    refused = reason in _REFUSED_BY_POD or reason == _HANDED_BACK
                    if refused and self._goes_on(forwarded, pod, reason == _HANDED_BACK):
                        continue
                    self.placed[pod.group, placement] += 1
                    head = _passed_on(exchange, forwarded.id)
                    if placement is not Placement.HOME:
                        head[GROUP_HEADER] = pod.group
                    if forwarded.stream is not None and exchange.status == 200:
                        return await self._relay_stream(request, exchange, head, forwarded, stage)
                    return await _relay_whole(exchange, head)
                finally:
                    exchange.close()

    def _is_disowned(self, forwarded: _Forwarded, pod: RoutedPod, status: int) -> bool:
        """Whether a pod knows nothing of whom it is from; UNAUTHENTICATED: rightly so, since its
        key was revoked meanwhile."""
        in_force, identity = self.in_force, forwarded.identity
        assert in_force is not None  # it was when the request came
        if status == 401 and in_force.keys.get(identity.key_sha256) != identity.tenant:
            raise ApiError(Outcome.UNAUTHENTICATED)
        return pod.disowns(status)

    def _goes_on(self, forwarded: _Forwarded, pod: RoutedPod, handed_back: bool) -> bool:
        """Whether it may be sent to another pod, which is then the next to be chosen."""
        if handed_back:
            forwarded.hand_backs += 1
            forwarded.left_out = pod.name
            return forwarded.hand_backs <= MAX_HAND_BACKS
        if forwarded.retried or self._pods.route(forwarded.tier, {pod.name}) is None:
            return False
        forwarded.retried = True
        forwarded.gone = pod.name
        self.retries += 1
        return True

    def _choose(self, forwarded: _Forwarded) -> tuple[RoutedPod, Placement]:
        self._turn += 1
        route = self._pods.route(forwarded.tier, {forwarded.gone})
        if route is None:
            raise ApiError(Outcome.NO_ENGINE)
        among = [pod for pod in route.pods if pod.name != forwarded.left_out] or route.pods
        pod = choose(among, forwarded.affinity, forwarded.tokens, self._turn)
        assert pod is not None  # a route is never empty
        return pod, route.placement

    async def _sent(self, pod: RoutedPod, forwarded: _Forwarded, stage: Passage) -> Exchange:
        """The head of a pod's answer; its breaker learns of it."""
        now = self._loop.time()
        headers = forwarded.headers_now(now)
        # Signed each time: it may have waited in another pod for longer than a signature lasts.
        headers[IDENTITY_HEADER] = self._keys.sign(
            forwarded.identity, forwarded.id, forwarded.raw or b"", time.time()
        )
        if forwarded.hand_backs:
            headers[WAITED_HEADER] = str(int(1000 * (now - stage.arrival)))
        if forwarded.hand_backs >= MAX_HAND_BACKS:
            headers[STAYS_HEADER] = "1"
        stage.forwarded = True
        trial = pod.breaker.sent(now)
        try:
            if forwarded.raw is None:
                head = await pod.client.get(forwarded.path, headers)
            else:
                head = await pod.client.post(forwarded.path, headers, forwarded.raw)
        except (EngineUnreachable, EngineBroken) as error:
            pod.breaker.failed(self._loop.time(), trial)
            if isinstance(error, EngineUnreachable):
                raise
            raise ApiError(Outcome.ENGINE_FAILED) from None
        pod.breaker.succeeded()
        return head

    async def _relay_stream(
        self,
        request: BaseRequest,
        exchange: Exchange,
        head: Mapping[str, str],
        forwarded: _Forwarded,
        stage: Passage,
    ) -> Answer:
        stall_seconds = self._settings.client_stall_seconds
        answer = StreamAnswer(request, head, close=self._closes(stage))
        try:
            await exchange.pump(answer.write, lambda: answer.drained(stall_seconds))
        except EngineBroken:
            error = ApiError(Outcome.ENGINE_FAILED)
            if not answer.committed:
                raise error from None
            typed = forwarded.stream is StreamKind.TYPED
            stage.outcome = error.outcome
            answer.keep_alive = False
            answer.write(error.typed_event() if typed else error.event())
        answer.end()
        return answer


@dataclass(slots=True)
class _Forwarded:
    """A request on its way to the pod that keeps it."""

    id: str
    identity: Identity
    tier: str
    path: str
    headers: dict[str, str]
    """The client's own that its pod reads, but the deadline."""
    raw: bytes | None
    """Its body; unset: it is a GET."""
    stream: StreamKind | None = None
    """Asked for; unset: a whole answer."""
    affinity: bytes | None = None
    tokens: int = 0
    """Its work: prompt and expected output."""
    deadline: float | None = None
    left_out: str = ""
    """Name of the pod that shall not be the next."""
    gone: str = ""
    """Name of the pod that had no part in it and would have none."""
    retried: bool = False
    hand_backs: int = 0

    def headers_now(self, now: float) -> dict[str, str]:
        """With what is left of its deadline; DEADLINE_EXCEEDED where nothing is."""
        if self.deadline is None:
            return dict(self.headers)
        left_ms = int(1000 * (self.deadline - now))
        if left_ms <= 0:
            raise ApiError(Outcome.DEADLINE_EXCEEDED)
        return self.headers | {DEADLINE_HEADER: str(left_ms)}


def _own_headers(request: BaseRequest) -> dict[str, str]:
    """Those of the client's that its pod reads."""
    own = own_priority(request.headers)
    return trace_headers(request.headers) | ({PRIORITY_HEADER: str(own)} if own else {})


def _affinity(request: BaseRequest, body: Body, tenant: str) -> bytes | None:
    """What a pod's prefix cache may know of it: its session, or how its prompt begins."""
    if not body.endpoint.generates:
        return None
    session = request.headers.get(SESSION_HEADER) or body.members.get("prompt_cache_key")
    if session is None and body.size.texts:
        session = body.size.texts[0][:AFFINITY_PREFIX_CHARACTERS]
    if not session:
        return None
    return f"{tenant}\0{session}".encode("utf-8", "surrogatepass")


def _passed_on(exchange: Exchange, request_id: str) -> dict[str, str]:
    headers = {
        name: value
        for name, value in exchange.headers.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    return headers | {"x-request-id": request_id}


async def _relay_whole(exchange: Exchange, head: Mapping[str, str]) -> WholeAnswer:
    try:
        body = await exchange.read_all(MAX_ANSWER_BYTES)
    except EngineBroken:
        raise ApiError(Outcome.ENGINE_FAILED) from None
    close = exchange.status in (408, 413)
    return WholeAnswer(body, head, exchange.status, close=close)
