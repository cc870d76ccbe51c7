"""O11 (sizes), O8 and O10 on the wire, R15 (what is no request)."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.edge_cases import BOUNDS, NO_PROMPTS, NO_REQUESTS, PROMPTS, image_body
from support.faulty_engine import FaultyEngine
from support.front import FRONTS, front
from support.sidecar import ALICE, SidecarUnderTest, chat_body, raw_head, speak, speak_to
from tidegate_sidecar.json_body import MAX_DEPTH

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

LIMIT = 100_000


async def test_o11_a_large_image_passes_byte_by_byte(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    body = image_body(3 * 1024 * 1024)
    status, _, _ = await speak(sidecar, body)
    assert status == 200
    assert engine.requests[0].body.startswith(body[:-1])


async def test_o11_just_at_the_limit_and_one_byte_above(start_sidecar: StartSidecar) -> None:
    body = json.dumps(chat_body(user="u" * 1000)).encode()
    sidecar = await start_sidecar(max_body_bytes=len(body))
    assert (await speak(sidecar, body))[0] == 200
    status, _, answer = await speak(sidecar, body + b" ")
    assert status == 413
    assert answer["error"]["code"] == "body_too_large"
    assert str(len(body)) in answer["error"]["message"]
    assert sidecar.outcomes(ALICE) == {"completed": 1, "body_too_large": 1}


async def test_o11_chunked_above_the_limit(start_sidecar: StartSidecar) -> None:
    sidecar = await start_sidecar(max_body_bytes=LIMIT)
    piece = b"%x\r\n%b\r\n" % (50_000, b"x" * 50_000)
    status, _, answer = await speak(sidecar, piece * 4 + b"0\r\n\r\n", "Transfer-Encoding: chunked")
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_o11_gzip_that_inflates_above_the_limit_costs_bounded_memory(
    start_sidecar: StartSidecar,
) -> None:
    sidecar = await start_sidecar(max_body_bytes=LIMIT)
    bomb = gzip.compress(b" " * 200_000_000)
    tracemalloc.start()
    try:
        status, _, answer = await speak(sidecar, bomb, "Content-Encoding: gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert peak < 20_000_000


async def test_o11_gzip_within_the_limit_passes(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    body = json.dumps(chat_body(max_tokens=3)).encode()
    status, _, _ = await speak(sidecar, gzip.compress(body), "Content-Encoding: gzip")
    assert status == 200
    assert engine.requests[0].body == body
    assert "content-encoding" not in engine.requests[0].headers


async def test_o11_expect_is_answered_before_the_body_is_sent(sidecar: SidecarUnderTest) -> None:
    body = json.dumps(chat_body()).encode()
    head = raw_head("Expect: 100-continue", f"Content-Length: {len(body)}", "Connection: close")
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(head)
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == (
        b"HTTP/1.1 100 Continue\r\n\r\n"
    )
    writer.write(body)
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_o11_expect_of_a_body_too_large_is_refused_unsent(
    start_sidecar: StartSidecar,
) -> None:
    sidecar = await start_sidecar(max_body_bytes=LIMIT)
    head = raw_head("Expect: 100-continue", f"Content-Length: {LIMIT + 1}")
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(head)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert answer.startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_body_that_never_comes_is_408(start_sidecar: StartSidecar) -> None:
    sidecar = await start_sidecar(body_seconds=0.2)
    status, _, answer = await speak(sidecar, b"5\r\n{", "Transfer-Encoding: chunked")
    assert (status, answer["error"]["type"]) == (408, "invalid_request_error")


@pytest.mark.parametrize(("body", "lines", "head", "status", "param"), NO_REQUESTS)
async def test_r15_what_is_no_request(
    sidecar: SidecarUnderTest,
    engine: FaultyEngine,
    body: bytes,
    lines: tuple[str, ...],
    head: dict[str, str],
    status: int,
    param: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered, headers, answer = await speak(sidecar, body, *lines, **head)
    assert answered == status
    assert headers["x-request-id"]
    assert headers["content-type"].startswith("application/json")
    if head.get("method") != "HEAD":
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["param"] == param
    assert sum(sidecar.outcomes().values()) <= 1  # what is no HTTP is no request
    assert not [record for record in caplog.records if record.exc_info]
    if status == 405:
        assert "POST" in headers["allow"] or "GET" in headers["allow"]
    assert not engine.requests


@pytest.mark.parametrize("kind", FRONTS)
async def test_json_as_deep_as_may_be_and_deeper(kind: str, tmp_path: Path) -> None:
    def body(levels: int) -> bytes:
        inner = b'{"a":' * (levels - 1) + b"1" + b"}" * (levels - 1)
        return json.dumps(chat_body()).encode()[:-1] + b',"metadata":' + inner + b"}"

    async with front(kind, tmp_path) as it:
        assert (await speak_to(it.port, body(MAX_DEPTH)))[0] == 200
        for levels in (MAX_DEPTH + 1, 100_000):
            status, _, answer = await speak_to(it.port, body(levels))
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert f"deeper than {MAX_DEPTH} levels" in answer["error"]["message"]
        assert len(it.engine.requests) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_r15_options(sidecar: SidecarUnderTest, path: str) -> None:
    status, headers, _ = await speak(sidecar, b"", method="OPTIONS", path=path)
    assert status == 204
    assert "OPTIONS" in headers["allow"]


@pytest.mark.parametrize("value", BOUNDS)
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_o8_on_the_wire(
    sidecar: SidecarUnderTest, engine: FaultyEngine, field: str, value: Any
) -> None:
    async with sidecar.chat(**{field: value}) as response:
        body = await response.json()
    if value is None or (type(value) is int and value == 5):
        assert response.status == 200
        assert engine.requests[0].json()[field] == (1024 if value is None else 5)
    else:
        assert response.status == 400
        assert body["error"]["param"] == field


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_o10_shapes_pass_unchanged(
    sidecar: SidecarUnderTest, engine: FaultyEngine, prompt: Any
) -> None:
    body = {"model": "test-model", "prompt": prompt, "max_tokens": 3}
    async with sidecar.request("/v1/completions", body) as response:
        assert response.status == 200
    assert engine.requests[0].json() == body


@pytest.mark.parametrize("prompt", NO_PROMPTS)
async def test_o10_malformed_shapes_are_400(sidecar: SidecarUnderTest, prompt: Any) -> None:
    body = {"model": "test-model", "prompt": prompt}
    async with sidecar.request("/v1/completions", body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "prompt"


async def test_a_request_whose_http_is_broken_harms_nobody(sidecar: SidecarUnderTest) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nbad header\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.0 400")
    assert b"bad header" not in answer
    writer.close()
