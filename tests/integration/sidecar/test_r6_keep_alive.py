"""R6: a stream that waits is sent comments, so that nobody on its way takes it for dead.

What is sent when is on a fake clock in ``tests/unit/sidecar/test_keep_alive.py``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from support.custom_resources import pool, tenant, tier
from support.fake_engine import until
from support.faulty_engine import DONE, GOOD_STREAM, MODEL, FaultyEngine, event, usage_event
from support.faulty_upstream import Behaviour, Connection, answer, event_stream, reset, stall
from support.router_fleet import SEATS, Fleet
from support.sidecar import ALICE, BOB, KEYS, Json, SidecarUnderTest, policy_document, sha256
from tidegate_operator import api
from tidegate_operator.compile import compile_pool
from tidegate_operator.judge import judge
from tidegate_operator.shards import Previous
from tidegate_sidecar.keep_alive import COMMENT
from tidegate_sidecar.passage import Passage

from tidegate.scheduling.contracts import SloMetric, encode

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

EVERY_SECONDS = 0.02
EVENTS = [*GOOD_STREAM, usage_event(), DONE]
SEEN = b"".join([*GOOD_STREAM, DONE])
"""Of them, by a client that did not ask for usage."""


def policy(every_seconds: float | None = EVERY_SECONDS, **members: Any) -> Json:
    """One seat, so that a second request waits for the first."""
    members = {"engine": {"max_num_seqs": 1}, **members}
    return policy_document(version=2, stream_keep_alive_seconds=every_seconds, **members)


def committed(sidecar: SidecarUnderTest) -> int:
    """Requests whose client has been sent a head."""
    tickets = sidecar.runtime.dispatcher._tickets.values()
    return sum(bool(ticket.stream and ticket.stream.committed) for ticket in tickets)


def queued(sidecar: SidecarUnderTest) -> int:
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert scheduler is not None
    return scheduler.queued()


def after_comments(sidecar: SidecarUnderTest, then: Behaviour) -> Behaviour:
    """What an engine does once the client has been sent a head without it."""

    async def behave(connection: Connection) -> None:
        await until(lambda: committed(sidecar))
        await then(connection)

    return behave


def split(body: bytes) -> tuple[int, bytes]:
    """How many comments a body begins with, and the rest of it."""
    rest = body
    while rest.startswith(COMMENT):
        rest = rest.removeprefix(COMMENT)
    return (len(body) - len(rest)) // len(COMMENT), rest


@asynccontextmanager
async def seat_taken(sidecar: SidecarUnderTest, engine: FaultyEngine) -> AsyncIterator[None]:
    """By Bob, whose stream stays open meanwhile."""
    engine.script = event_stream(EVENTS[:1], then=stall)
    async with sidecar.chat(tenant=BOB, stream=True) as bobs:
        yield
        bobs.close()


async def test_r6_a_stream_that_waits_is_kept_alive_until_its_first_event(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """Through its wait for a turn, and then for the engine."""
    limits = [{"name": "calls", "per": "Minute", "requests": 100}]
    sidecar = await start_sidecar(policy=policy(tier={"rate_limits": limits}))
    release = asyncio.Event()

    async def between(number: int) -> None:
        if number == 0:
            await release.wait()
        elif number == 1:
            await asyncio.sleep(3 * EVERY_SECONDS)  # no comment may come in it

    async with AsyncExitStack() as stack:
        async with seat_taken(sidecar, engine):
            alices = await stack.enter_async_context(sidecar.chat(stream=True))
            assert alices.status == 200
            body = await alices.content.readexactly(3 * len(COMMENT))
            assert queued(sidecar) == 1
            engine.script = event_stream(EVENTS, between=between)
        await until(lambda: len(engine.requests) == 2)
        body += await alices.content.readexactly(2 * len(COMMENT))
        release.set()
        body += await alices.read()
    comments, rest = split(body)
    assert comments >= 5
    assert rest == SEEN
    assert alices.headers["Content-Type"] == "text/event-stream"
    assert alices.headers["Cache-Control"] == "no-cache"
    assert alices.headers["X-Accel-Buffering"] == "no"
    assert alices.headers["x-ratelimit-limit-requests"] == "100"
    assert "Content-Length" not in alices.headers
    await sidecar.settled()
    (record,) = (r for r in sidecar.runtime.reports.recent.records() if r.tenant == ALICE)
    assert record.id == alices.headers["x-request-id"]
    assert record.outcome == "completed"
    assert record.queued_seconds is not None
    assert record.ttft_seconds is not None
    assert record.ttft_seconds >= record.queued_seconds + EVERY_SECONDS  # no comment is a token


async def test_r6_an_answer_that_is_not_streamed_is_not_begun(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy())
    async with seat_taken(sidecar, engine):
        whole = asyncio.create_task(post(sidecar, max_tokens=3))
        joined = asyncio.create_task(post(sidecar, max_tokens=500))
        async with sidecar.chat(stream=True) as streamed:
            await streamed.content.readexactly(2 * len(COMMENT))
        assert not whole.done()
        assert not joined.done()
        engine.script = None
    for status, length, body in await asyncio.gather(whole, joined):
        assert (status, length) == (200, str(len(body)))
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello!"


async def post(sidecar: SidecarUnderTest, **members: Any) -> tuple[int, str | None, bytes]:
    """Status, Content-Length and body of a chat's answer."""
    async with sidecar.chat(**members) as response:
        return response.status, response.headers.get("Content-Length"), await response.read()


BAD_SCHEMA = {"error": {"message": "bad schema", "code": "bad_schema"}}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
FAILURES: list[Any] = [
    pytest.param(CHAT, reset, "engine_failed", "engine_failed", id="reset"),
    pytest.param(RESPONSES, reset, "engine_failed", "engine_failed", id="reset, typed"),
    pytest.param(
        CHAT, event_stream([], then=reset), "engine_failed", "engine_failed", id="no event"
    ),
    pytest.param(CHAT, event_stream([]), "engine_failed", "engine_failed", id="an empty stream"),
    pytest.param(CHAT, answer(400, BAD_SCHEMA), "malformed", "bad_schema", id="malformed"),
    pytest.param(CHAT, answer(429, {}), "engine_refused", "engine_overloaded", id="overloaded"),
]


@pytest.mark.parametrize(("path", "failure", "outcome", "code"), FAILURES)
async def test_r6_an_engine_that_fails_after_a_comment_is_an_error_event(
    start_sidecar: StartSidecar,
    engine: FaultyEngine,
    path: str,
    failure: Behaviour,
    outcome: str,
    code: str,
) -> None:
    promise = {"metric": "TimeToFirstToken", "target_seconds": 60.0}
    sidecar = await start_sidecar(policy=policy(tier={"slo_objectives": [promise]}))
    engine.script = after_comments(sidecar, failure)
    body: Json = {"model": MODEL, "stream": True}
    typed = path == RESPONSES
    body |= {"input": "hi"} if typed else {"messages": [{"role": "user", "content": "hi"}]}
    async with sidecar.request(path, body) as response:
        assert response.status == 200
        comments, rest = split(await response.read())
        assert response.connection is None  # closed
    assert comments >= 1
    assert rest.startswith(b"event: error\ndata: " if typed else b"data: ")
    assert rest.count(b"\n\n") == 1
    error = json.loads(rest.partition(b"data: ")[2])["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {outcome: 1}
    assert (
        sidecar.runtime.tally.tiers["standard"].slo.counts[SloMetric.TIME_TO_FIRST_TOKEN].good == 0
    )


@pytest.mark.parametrize("every_seconds", [EVERY_SECONDS, 60.0, None])
async def test_r6_who_waited_too_long_is_told_by_a_status_unless_one_is_sent(
    start_sidecar: StartSidecar, engine: FaultyEngine, every_seconds: float | None
) -> None:
    document = policy(every_seconds, tier={"queue": {"max_wait_seconds": 0.2}})
    sidecar = await start_sidecar(policy=document)
    async with seat_taken(sidecar, engine), sidecar.chat(stream=True) as response:
        comments, rest = split(await response.read())
    assert (response.status, bool(comments)) == (
        (200, True) if every_seconds == EVERY_SECONDS else (504, False)
    )
    error = json.loads(rest.removeprefix(b"data: "))["error"]
    assert error["code"] == "queue_wait_exceeded"
    assert sidecar.outcomes(ALICE) == {"queue_wait_exceeded": 1}
    (record,) = (r for r in sidecar.runtime.reports.recent.records() if r.tenant == ALICE)
    assert record.outcome == "queue_wait_exceeded"


async def test_r6_what_is_not_admitted_is_refused_by_its_status(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy(tier={"queue": {"max_requests": 1}}))
    async with seat_taken(sidecar, engine), sidecar.chat(stream=True) as waiting:
        await waiting.content.readexactly(len(COMMENT))
        async with sidecar.chat(stream=True) as refused:
            assert refused.status == 429
            assert int(refused.headers["Retry-After"]) >= 1
        waiting.close()
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"queue_full": 1, "client_closed": 1}
    assert len(engine.requests) == 1  # Bob's


async def test_r6_who_was_sent_comments_alone_still_makes_room(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """Preempted before her first event, Alice sees comments and then one stream."""
    engine.metrics = (
        f'vllm:num_requests_running{{model_name="{MODEL}"}} 0\n'
        'vllm:cache_config_info{num_gpu_blocks="1001",block_size="16"} 1\n'
    )
    evictable = {"evictable": True, "backoff_per_queued_request_seconds": 0.001}
    document = policy(
        tiers=[
            {"name": "high", "priority": 10},
            {"name": "low", "preemption": evictable},
        ],
        tenants=[{"name": ALICE, "tier": "low"}, {"name": BOB, "tier": "high"}],
    )
    sidecar = await start_sidecar(policy=document)
    await until(lambda: sidecar.runtime.dispatcher.in_flight.places.in_force)
    comment = b": an engine may send its own\n\n"
    engine.script = event_stream([comment], then=stall)
    async with sidecar.chat(stream=True) as alices:
        body = await alices.content.readuntil(comment)
        await alices.content.readexactly(len(COMMENT))
        engine.script = None
        async with sidecar.chat(tenant=BOB, max_tokens=3) as bobs:
            assert bobs.status == 200
        body += await alices.read()
    assert sidecar.runtime.tally.tiers["low"].preemptions == 1
    assert body.replace(COMMENT, b"") == comment + SEEN
    assert len(engine.requests) == 3
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"completed": 1}


async def test_r6_the_sdk_reads_past_comments(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy())
    async with openai.AsyncOpenAI(
        api_key=KEYS[ALICE], base_url=sidecar.url + "/v1", max_retries=0
    ) as client:
        engine.script = after_comments(sidecar, event_stream(EVENTS))
        said = [
            chunk.choices[0].delta.content
            async for chunk in await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
            )
        ]
        assert said == ["Hel", "lo!", None]
        delta = {"type": "response.output_text.delta", "delta": "Hel"}
        last = {"type": "response.completed", "response": {"id": "r", "usage": None}}
        typed = [
            b"event: %b\n%b" % (str(each["type"]).encode(), event(each)) for each in (delta, last)
        ]
        engine.script = after_comments(sidecar, event_stream(typed))
        seen = [
            each.type
            async for each in await client.responses.create(model=MODEL, input="hi", stream=True)
        ]
        assert seen == ["response.output_text.delta", "response.completed"]


async def test_r6_as_a_pool_says_it(start_sidecar: StartSidecar, engine: FaultyEngine) -> None:
    """From the object to the bytes."""
    alice = tenant("alice", namespace="team-a")
    alice["spec"]["apiKeys"] = [{"name": "main", "sha256": sha256(KEYS[ALICE])}]
    chat = pool(namespace="team-a", service={"streamKeepAlive": "1s"})
    chat["spec"]["model"]["name"] = MODEL
    read = api.parse(api.ServingPool, chat)
    assert isinstance(read, api.ServingPool)
    compiled = compile_pool(
        read,
        judge([tier("t0")], [alice], {"team-a": {}}, {}),
        Previous(),
        may_share=False,
        now_seconds=1.0,
    )
    sidecar = await start_sidecar(
        policy=encode(compiled.policy), keys=encode(compiled.keys), check_other=False
    )
    engine.script = after_comments(sidecar, event_stream(EVENTS))
    async with sidecar.chat(stream=True) as response:
        comments, rest = split(await response.read())
    assert comments >= 1
    assert rest == SEEN


@asynccontextmanager
async def routed(folder: Path, document: Json) -> AsyncIterator[Fleet]:
    """A router before one pod."""
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(folder, pods, edge, document)
        await fleet.start()
        await fleet.add_pod()
        await fleet.tell(0)
        yield fleet
        await until(lambda: fleet.router.edge.in_hand == 0)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Whose pod keeps streams alive."""
    async with routed(tmp_path, policy()) as fleet:
        yield fleet


async def test_r6_a_request_whose_head_is_sent_stays_in_its_pod(fleet: Fleet) -> None:
    engine, pod = fleet.pods[0]
    release = asyncio.Event()

    async def between(number: int) -> None:
        if number == 0:
            await release.wait()

    engine.script = event_stream(EVENTS, between=between)
    asked = [asyncio.create_task(streamed(fleet)) for _ in range(SEATS + 2)]
    await until(lambda: committed(pod) == SEATS + 2)
    assert queued(pod) == 2
    assert pod.runtime.dispatcher.hand_back(2) == 0
    other, _ = await fleet.add_pod()
    await fleet.tell(0, 1)
    for _ in range(4):
        await fleet.router.pods.look()
    assert queued(pod) == 2
    release.set()
    bodies = await asyncio.wait_for(asyncio.gather(*asked), 20)
    assert [split(body)[1] for body in bodies] == [SEEN] * (SEATS + 2)
    assert not other.requests


async def test_r6_a_pod_that_breaks_after_a_comment_is_not_replaced(fleet: Fleet) -> None:
    engine, pod = fleet.pods[0]
    engine.script = stall
    asked = asyncio.create_task(streamed(fleet))
    await until(lambda: committed(pod))
    other, _ = await fleet.add_pod()
    await fleet.tell(0, 1)
    assert pod.sidecar._tenants is not None
    for connection in pod.sidecar._tenants.connections:
        assert connection.transport is not None
        connection.transport.abort()
    comments, rest = split(await asyncio.wait_for(asked, 20))
    assert comments >= 1
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
    assert not other.requests
    assert fleet.router.edge.ended["engine_failed"] == 1
    await until(lambda: pod.outcomes(ALICE) == {"client_closed": 1})


async def test_r6_what_was_handed_back_has_waited_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request that is handed back again and again would be sent nothing for long."""

    def come_before(id: str, arrival: float, arrived_at: float) -> Passage:
        return Passage(id, arrival - 600.0, arrived_at)

    monkeypatch.setattr("tidegate_sidecar.router.edge.Passage", come_before)
    async with routed(tmp_path, policy(every_seconds=300.0)) as fleet:
        engine, pod = fleet.pods[0]
        engine.script = stall
        asked = [asyncio.create_task(streamed(fleet)) for _ in range(SEATS + 1)]
        await until(lambda: engine.busy == SEATS and queued(pod) == 1)
        assert committed(pod) == 0
        assert pod.runtime.dispatcher.hand_back(1) == 1
        await until(lambda: committed(pod) == 1)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def streamed(fleet: Fleet) -> bytes:
    """The body of a stream through the router."""
    async with fleet.chat(stream=True) as response:
        assert response.status == 200
        return bytes(await response.read())
