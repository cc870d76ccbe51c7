"""The cases of the edge at a router: O2, O5, O8, O10, O11, O13, R1 and R15, as at a sidecar."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.edge_cases import (
    BOUNDS,
    KEY,
    KEYS_SHOWN,
    NO_PROMPTS,
    NO_REQUESTS,
    PRIORITY_HEADERS,
    PROMPTS,
    image_body,
)
from support.faulty_engine import DONE, MODEL, chat_chunk, usage_event
from support.faulty_upstream import event_stream
from support.front import Front, front
from support.sidecar import ALICE, chat_body, policy_document, speak_to

pytestmark = pytest.mark.integration

LIMIT = 4 * 1024 * 1024
GAP_SECONDS = 0.1


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Front]:
    """A router before one pod, of a tier with a priority."""
    policy = policy_document(tier={"priority": 100})
    async with front("router", tmp_path, policy=policy, max_body_bytes=LIMIT) as edge:
        yield edge


def refused(edge: Front, status: int, answer: Any, param: str | None, row: object) -> None:
    """In OpenAI's shape, before an engine had anything."""
    assert 400 <= status < 500, row
    assert set(answer["error"]) == {"message", "type", "param", "code"}, row
    assert answer["error"]["param"] == param, row
    assert not edge.engine.requests, row


async def test_r1_keys(edge: Front) -> None:
    served = 0
    for lines, status in KEYS_SHOWN:
        answered, headers, answer = await speak_to(edge.port, authorization=lines)
        assert answered == status, lines
        if status == 200:
            served += 1
            continue
        assert headers["www-authenticate"] == "Bearer", lines
        assert answer["error"]["code"] == "invalid_api_key", lines
        assert KEY not in str(answer), lines
    assert len(edge.engine.requests) == served
    assert edge.ended() == {"forwarded": served, "unauthenticated": len(KEYS_SHOWN) - served}


async def test_r15_what_is_no_request(edge: Front, caplog: pytest.LogCaptureFixture) -> None:
    for row in NO_REQUESTS:
        body, lines, head, status, param = row
        answered, headers, answer = await speak_to(edge.port, body, *lines, **head)
        assert answered == status, row
        assert headers["x-request-id"], row
        assert headers["content-type"].startswith("application/json"), row
        if head.get("method") != "HEAD":
            refused(edge, answered, answer, param, row)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_o8_bounds_of_the_output(edge: Front, field: str) -> None:
    for value in [value for value in BOUNDS if value is not None and value != 5]:
        async with edge.post("/v1/chat/completions", chat_body(**{field: value})) as answer:
            refused(edge, answer.status, await answer.json(), field, value)
    for value in (None, 5):
        async with edge.post("/v1/chat/completions", chat_body(**{field: value})) as answer:
            assert answer.status == 200
        assert edge.engine.requests[-1].json()[field] == (1024 if value is None else 5)


async def test_o10_shapes_of_a_prompt(edge: Front) -> None:
    for prompt in NO_PROMPTS:
        async with edge.post("/v1/completions", {"model": MODEL, "prompt": prompt}) as answer:
            refused(edge, answer.status, await answer.json(), "prompt", prompt)
    for prompt in PROMPTS:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 3}
        async with edge.post("/v1/completions", body) as answer:
            assert answer.status == 200
        sent = edge.engine.requests[-1].json()
        assert sent.pop("priority") == -100
        assert sent == body


async def test_o11_sizes(edge: Front) -> None:
    too_large = image_body(LIMIT)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(too_large), too_large)
    for body, lines in (
        (too_large, ()),
        (chunks, ("Transfer-Encoding: chunked",)),
        (gzip.compress(too_large), ("Content-Encoding: gzip",)),
    ):
        status, _, answer = await speak_to(edge.port, body, *lines)
        assert (status, answer["error"]["code"]) == (413, "body_too_large"), lines
        assert str(LIMIT) in answer["error"]["message"]
        refused(edge, status, answer, None, lines)
    body = image_body(3 * 1024 * 1024)
    for sent, lines in ((body, ()), (gzip.compress(body), ("Content-Encoding: gzip",))):
        assert (await speak_to(edge.port, sent, *lines))[0] == 200
        assert edge.engine.requests[-1].body.startswith(body[:-1])


async def test_o13_the_engine_gets_its_priority_from_the_tier_alone(edge: Front) -> None:
    for priority in (-1000, 0, None):
        async with edge.post("/v1/chat/completions", chat_body(priority=priority)) as answer:
            refused(edge, answer.status, await answer.json(), "priority", priority)
    twice = b'{"model": "test-model", "temperature": 1, "temperature": 0}'
    status, _, answer = await speak_to(edge.port, twice)
    refused(edge, status, answer, "temperature", twice)
    async with edge.post("/v1/chat/completions", chat_body(), **PRIORITY_HEADERS) as answer:
        assert answer.status == 200
        request_id = answer.headers["x-request-id"]
    (request,) = edge.engine.requests
    assert request.json()["priority"] == -100
    assert request.headers["x-request-id"] == request_id != "mine"
    assert set(request.headers) == {"host", "content-type", "content-length", "x-request-id"}


async def test_o2_events_cut_anywhere(edge: Front) -> None:
    text = 'data: {"choices":[{"index":0,"delta":{"content":"你好🙂"}}]}\n\n'.encode()
    stream = text + usage_event() + DONE
    edge.engine.script = event_stream([bytes([byte]) for byte in stream])
    body = chat_body(stream=True, stream_options={"include_usage": True})
    async with edge.post("/v1/chat/completions", body) as answer:
        assert await answer.read() == stream
    assert edge.pod.outcomes(ALICE) == {"completed": 1}


async def test_o5_each_event_is_sent_on_as_it_comes(edge: Front) -> None:
    sent: list[float] = []

    async def between(_: int) -> None:
        await asyncio.sleep(GAP_SECONDS)
        sent.append(time.monotonic())

    edge.engine.script = event_stream([*[chat_chunk("x")] * 5, DONE], between=between)
    late = []
    async with edge.post("/v1/chat/completions", chat_body(stream=True)) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert "Content-Length" not in answer.headers
        for number in range(5):
            await answer.content.readuntil(b"\n\n")
            late.append(time.monotonic() - sent[number])
        await answer.read()
    assert sorted(late)[2] < 0.02
    assert max(late) < GAP_SECONDS  # none waited for the next one, on however busy a machine


async def test_a_body_that_never_comes_is_408(tmp_path: Path) -> None:
    async with front("router", tmp_path, body_seconds=0.2) as edge:
        status, _, answer = await speak_to(edge.port, b"5\r\n{", "Transfer-Encoding: chunked")
        assert (status, answer["error"]["type"]) == (408, "invalid_request_error")
