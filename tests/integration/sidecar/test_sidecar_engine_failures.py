"""O4: an engine that dies, goes silent or lies, before and after the first byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, USAGE, FaultyEngine, chat_chunk, event, usage_event
from support.faulty_upstream import (
    Behaviour,
    Connection,
    answer,
    close,
    event_stream,
    raw,
    reset,
    stall,
)
from support.sidecar import (
    ALICE,
    BOB,
    MODEL,
    SidecarUnderTest,
    chat_body,
    policy_document,
    raw_head,
)

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

TWO = [chat_chunk("a"), chat_chunk("b")]
UNFINISHED = b'data: {"choices": [{"index": 0, "del'


@pytest.mark.parametrize(
    "script",
    [
        event_stream(TWO, then=reset),
        event_stream(TWO, then=close),
        event_stream([*TWO, UNFINISHED], then=reset),
        event_stream([*TWO, UNFINISHED]),
        event_stream(TWO),
        event_stream(TWO, then=raw(b"no chunk at all\r\n")),
    ],
    ids=["reset", "close", "reset within an event", "end within an event", "no [DONE]", "garbage"],
)
async def test_o4_after_the_first_byte(
    sidecar: SidecarUnderTest, engine: FaultyEngine, script: Behaviour
) -> None:
    engine.script = script
    async with sidecar.chat(stream=True) as response:
        body = await response.read()
        assert response.status == 200
    *events, error, rest = body.split(b"\n\n")
    assert b"".join(each + b"\n\n" for each in events) == b"".join(TWO)
    assert rest == b""
    members = json.loads(error.removeprefix(b"data: "))["error"]
    assert members["code"] == "engine_failed"
    assert members["type"] == "server_error"
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}
    assert served(sidecar) > 2  # the prompt, estimated, and what was seen of the output


async def test_o4_the_connection_of_a_broken_stream_is_closed(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream(TWO, then=reset)
    async with sidecar.chat(stream=True) as response:
        await response.read()
        assert response.connection is None
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    body = json.dumps(chat_body(stream=True)).encode()
    writer.write(raw_head(f"Content-Length: {len(body)}") + body)
    whole = await asyncio.wait_for(reader.read(), 5)  # to the end of the connection
    assert whole.endswith(b"0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "script", [reset, close, raw(b"hello\r\n\r\n")], ids=["reset", "close", "garbage"]
)
async def test_o4_before_the_first_byte(
    sidecar: SidecarUnderTest, engine: FaultyEngine, script: Behaviour, stream: bool
) -> None:
    engine.script = script
    async with sidecar.chat(stream=stream) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "engine_failed"
        assert response.headers["x-tidegate-dropped-reason"] == "evicted-engine-failed"
        assert response.headers["x-request-id"]
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


async def test_o4_a_stream_that_dies_before_its_first_event_is_an_honest_502(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream([], then=reset)
    async with sidecar.chat(stream=True) as response:
        assert response.status == 502
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


@pytest.mark.parametrize("stream", [True, False])
async def test_o4_silence(start_sidecar: StartSidecar, engine: FaultyEngine, stream: bool) -> None:
    sidecar = await start_sidecar(engine_silence_seconds=0.3)
    engine.script = event_stream(TWO, then=stall)
    async with sidecar.chat(stream=stream) as response:
        body = await asyncio.wait_for(response.read(), 10)
        assert response.status == (200 if stream else 502)
    assert b"engine_failed" in body
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


async def test_o4_an_answer_cut_short(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    engine.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
    async with sidecar.chat(max_tokens=3) as response:
        assert response.status == 502


async def test_an_error_inside_a_stream_is_passed_on_and_counted(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    error = event({"error": {"message": "out of memory", "code": 500}})
    engine.script = event_stream([*TWO, error, DONE])
    async with sidecar.chat(stream=True) as response:
        assert await response.read() == b"".join([*TWO, error, DONE])
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


@pytest.mark.parametrize(
    ("status", "sent", "expected", "message"),
    [
        (400, {"error": {"message": "too long", "param": "x", "code": "c"}}, 400, "too long"),
        (400, {"message": "old shape", "type": "BadRequestError"}, 400, "old shape"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "bad"}]}, 400, "body.n: bad"),
        (422, {"detail": [{"loc": 5}, {"loc": None}]}, 400, None),
        (404, {"error": {"message": "no such model"}}, 404, "no such model"),
        (500, {"error": {"message": "secret trace"}}, 502, None),
        (401, {"error": {"message": "secret"}}, 502, None),
        (200, None, 200, None),
    ],
)
async def test_what_the_engine_says_of_the_request_passes_on_and_of_itself_does_not(
    sidecar: SidecarUnderTest,
    engine: FaultyEngine,
    status: int,
    sent: Any,
    expected: int,
    message: str | None,
) -> None:
    engine.script = None if sent is None else answer(status, sent)
    async with sidecar.chat(max_tokens=3) as response:
        assert response.status == expected
        body = await response.json()
    if message is not None:
        assert body["error"]["message"] == message
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in json.dumps(body)


@pytest.mark.parametrize(
    ("task", "path", "body", "served"),
    [
        ("Embed", "/v1/chat/completions", chat_body(), "/v1/embeddings"),
        ("Generate", "/v1/embeddings", {"input": "x"}, "/v1/chat/completions"),
        ("Generate", "/v1/embeddings", {"input": ["x " * 5000] * 4}, "/v1/chat/completions"),
    ],
    ids=["chat", "an embedding", "a list in parts"],
)
async def test_an_endpoint_of_another_task_is_told_so_with_those_that_are_served(
    start_sidecar: StartSidecar,
    engine: FaultyEngine,
    task: str,
    path: str,
    body: dict[str, Any],
    served: str,
) -> None:
    policy = policy_document(model={"name": MODEL, "task": task})
    sidecar = await start_sidecar(policy=policy)
    engine.script = answer(404, {"detail": "Not Found"})
    async with sidecar.request(path, body={"model": MODEL, **body}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "unknown_url"
    said, served_here = error["message"].split(" It serves ")
    assert said == f"{path} is not served here: this pool's task is {task}."
    assert served in served_here
    assert path not in served_here
    engine.script = None


async def test_a_stale_connection_is_replaced_and_nothing_sent_twice(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat() as response:
        assert response.status == 200
    for task in list(engine._tasks):
        task.cancel()  # idle connections end
    async with sidecar.chat() as response:
        assert response.status == 200
    assert len(engine.requests) == 2


async def test_an_engine_that_is_not_there_costs_no_accepted_request(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy_document(tier={"max_in_flight": 1}))
    engine.script = stall
    first = asyncio.create_task(_status(sidecar))
    await until(lambda: engine.busy == 1)
    queued = asyncio.create_task(_status(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    await asyncio.sleep(0.4)  # longer than a stale connection takes to show
    await engine.stop_listening()
    assert await first == 502  # the engine had worked on it
    await until(lambda: not sidecar.runtime.dispatcher.engine_ready)
    async with sidecar.chat(tenant=BOB) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_engine"
        assert int(response.headers["Retry-After"]) >= 1
    engine.script = None
    await engine.listen_again()
    assert await asyncio.wait_for(queued, 10) == 200
    await until(lambda: sidecar.runtime.ready)


async def test_no_engine_at_start(start_sidecar: StartSidecar, engine: FaultyEngine) -> None:
    engine.healthy = False
    sidecar = await start_sidecar(wait_ready=False)
    async with sidecar.chat() as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
    async with sidecar.client.get(sidecar.admin_url + "/readyz") as response:
        assert response.status == 503
    engine.healthy = True
    await until(lambda: sidecar.runtime.ready)
    async with sidecar.chat() as response:
        assert response.status == 200


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_OF_2 = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00 not HTTP \r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        CHUNKS + b"zz\r\n",
        JSON_OF_2 + JSON_OF_2,
    ],
    ids=["no HTTP", "upgrade", "no JSON", "no object", "broken chunk", "two answers"],
)
async def test_an_answer_that_is_garbage_is_an_honest_502(
    sidecar: SidecarUnderTest, engine: FaultyEngine, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = raw(sent)
    async with sidecar.chat(max_tokens=3) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "engine_failed"
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_defect_of_ours_is_counted_as_a_failure(
    sidecar: SidecarUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_sidecar.proxy.relay_joined", lambda *_: 1 / 0)
    async with sidecar.chat() as response:
        assert response.status == 500
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


@pytest.mark.parametrize("usage", [USAGE, None])
async def test_who_hangs_up_on_done_had_a_whole_answer(
    sidecar: SidecarUnderTest, engine: FaultyEngine, usage: dict[str, int] | None
) -> None:
    """The last chunk of HTTP may come later; an engine may even forget it."""
    events = [*TWO, *([usage_event(usage)] if usage else []), DONE]

    async def without_an_end(connection: Connection) -> None:
        await connection.write(CHUNKS + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events))
        await connection.closed_by_peer()

    engine.script = without_an_end
    async with sidecar.chat(stream=True) as response:
        await response.content.readuntil(DONE)
        response.close()
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"completed": 1}
    assert served(sidecar) >= (9 if usage else 1)


async def test_usage_of_a_stream_settles_the_bill(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    engine.script = event_stream([*TWO, usage_event(usage), DONE])
    async with sidecar.chat(stream=True) as response:
        await response.read()
    assert served(sidecar) == 120


def served(sidecar: SidecarUnderTest) -> int:
    dispatcher = sidecar.runtime.dispatcher
    assert dispatcher.scheduler is not None
    snapshots = dispatcher.scheduler.tenant_snapshots(dispatcher.loop.time())
    return next(each.service_tokens_total for each in snapshots if each.name == ALICE)


async def _status(sidecar: SidecarUnderTest) -> int:
    async with sidecar.chat() as response:
        await response.read()
        return int(response.status)
