"""O5: a stream's headers and times; O12: encodings."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Any

import pytest
from support.faulty_engine import (
    DONE,
    USAGE,
    FaultyEngine,
    chat_answer,
    chat_chunk,
    typed_event,
    usage_event,
)
from support.faulty_upstream import Connection, answer, event_stream, head
from support.sidecar import ALICE, SidecarUnderTest

pytestmark = pytest.mark.integration

GAP_SECONDS = 0.1


DELTAS = [typed_event("response.output_text.delta", delta=str(number)) for number in range(5)]
COMPLETED = typed_event("response.completed", response={"id": "resp_1", "usage": None})
CHUNKS = [chat_chunk(str(number)) for number in range(5)]


@pytest.mark.parametrize(
    ("path", "prompt", "events"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, [*CHUNKS, DONE]),
        ("/v1/completions", {"prompt": "x"}, [*CHUNKS, DONE]),
        ("/v1/responses", {"input": "x"}, [*DELTAS, COMPLETED]),
    ],
    ids=["chat", "completions", "responses"],
)
async def test_o5_each_event_is_sent_on_as_it_comes(
    sidecar: SidecarUnderTest,
    engine: FaultyEngine,
    path: str,
    prompt: dict[str, Any],
    events: list[bytes],
) -> None:
    sent: list[float] = []

    async def between(_: int) -> None:
        await asyncio.sleep(GAP_SECONDS)
        sent.append(time.monotonic())

    engine.script = event_stream(events, between=between)
    late = []
    body = {"model": "test-model", "stream": True, **prompt}
    async with sidecar.request(path, body) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "Content-Length" not in response.headers
        assert response.headers["x-request-id"]
        for number in range(5):
            await response.content.readuntil(b"\n\n")
            late.append(time.monotonic() - sent[number])
        await response.read()
    assert sorted(late)[2] < 0.02
    assert max(late) < GAP_SECONDS  # none waited for the next one, on however busy a machine


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
@pytest.mark.parametrize("max_tokens", [3, 300])
async def test_o12_a_compressed_answer_is_plain_and_billed(
    sidecar: SidecarUnderTest, engine: FaultyEngine, accepted: str, max_tokens: int
) -> None:
    stream = b"".join([chat_chunk("Hel"), chat_chunk("lo!"), usage_event(), DONE])
    if max_tokens == 3:
        engine.script = answer(200, chat_answer(), gzipped=True)
    else:
        engine.script = compressed_stream(stream)
    async with sidecar.chat(
        max_tokens=max_tokens, headers={"Accept-Encoding": accepted}
    ) as response:
        body = await response.json()
        assert "Content-Encoding" not in response.headers
    assert body["choices"][0]["message"]["content"] == "Hello!"
    assert body["usage"] == USAGE
    assert sidecar.outcomes(ALICE) == {"completed": 1}


async def test_o12_a_compressed_stream(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    stream = chat_chunk("x") + DONE
    engine.script = compressed_stream(stream)
    async with sidecar.chat(stream=True) as response:
        assert "Content-Encoding" not in response.headers
        assert await response.read() == stream


async def test_o12_an_encoding_not_known_passes_with_its_header(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = answer(200, b"\x00opaque", {"Content-Encoding": "x-own"})
    async with sidecar.chat(max_tokens=3) as response:
        assert response.headers["Content-Encoding"] == "x-own"
        assert await response.read() == b"\x00opaque"


async def test_o12_a_stream_in_an_encoding_not_known_is_a_failed_engine(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    """No event of it could be read, so it would end in an error amid what a client can't decode."""
    engine.script = answer(200, b"\x00opaque", {"Content-Encoding": "x-own"})
    async with sidecar.chat(stream=True) as response:
        assert response.status == 502
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}


async def test_o12_the_engine_is_asked_for_no_encoding(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat(headers={"Accept-Encoding": "gzip"}) as response:
        await response.read()
    assert "accept-encoding" not in engine.requests[0].headers


def compressed_stream(stream: bytes) -> object:
    """The stream gzipped and cut in three chunks."""
    packed = gzip.compress(stream)
    cut = len(packed) // 3

    async def behave(connection: Connection) -> None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await connection.write(head(200, {**headers, "Content-Encoding": "gzip"}))
        for piece in (packed[:cut], packed[cut : 2 * cut], packed[2 * cut :], b""):
            await connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    return behave
