"""O2 on the wire, and clients that read slowly or not at all: bounded memory, nothing lost."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, FaultyEngine, chat_chunk, usage_event
from support.faulty_upstream import Connection, answer, event_stream, head, stall
from support.sidecar import ALICE, SidecarUnderTest, chat_body, raw_head

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

EVENT = chat_chunk("x" * 60_000)
EVENTS = 500  # 30 MB


@pytest.mark.parametrize("size", [1, 7])
async def test_o2_events_cut_anywhere(
    sidecar: SidecarUnderTest, engine: FaultyEngine, size: int
) -> None:
    text = 'data: {"choices":[{"index":0,"delta":{"content":"你好🙂"}}]}\n\n'.encode()
    stream = text + usage_event() + DONE
    engine.script = event_stream([stream[i : i + size] for i in range(0, len(stream), size)])
    async with sidecar.chat(stream=True, stream_options={"include_usage": True}) as response:
        assert await response.read() == stream
    assert sidecar.outcomes(ALICE) == {"completed": 1}


class Flood:
    """Sends 30 MB as fast as it may; ``sent`` counts what was taken off its hands."""

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, connection: Connection) -> None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await connection.write(head(200, headers))
        for _ in range(EVENTS):
            await connection.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            self.sent += len(EVENT)
        await connection.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))


async def open_stream(
    sidecar: SidecarUnderTest,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps(chat_body(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head("Connection: close", f"Content-Length: {len(body)}") + body)
    return reader, writer


async def test_a_slow_client_slows_the_engine_and_gets_everything(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    flood = engine.script = Flood()
    reader, writer = await open_stream(sidecar)
    await until(lambda: flood.sent > 0)
    stopped_at = -1
    while flood.sent != stopped_at:  # until every buffer on the way is full
        stopped_at = flood.sent
        await asyncio.sleep(0.3)
    assert stopped_at < len(EVENT) * EVENTS * 0.8
    whole = await asyncio.wait_for(reader.read(), 30)
    assert whole.count(EVENT) == EVENTS
    assert whole.endswith(b"0\r\n\r\n")
    writer.close()
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"completed": 1}


async def test_a_client_that_never_reads_counts_as_gone(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(client_stall_seconds=0.3)
    engine.script = Flood()
    _, writer = await open_stream(sidecar)
    await until(lambda: sidecar.outcomes(ALICE) == {"client_closed": 1}, 20)
    await until(lambda: engine.busy == 0, 5)
    writer.close()


async def test_a_client_that_never_reads_a_whole_answer_keeps_no_memory(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(client_stall_seconds=0.3)
    engine.script = answer(200, {"choices": [], "padding": "x" * 30_000_000})
    body = json.dumps(chat_body(max_tokens=1)).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head(f"Content-Length: {len(body)}") + body)
    await until(lambda: sidecar.outcomes(ALICE) == {"completed": 1}, 20)
    await until(lambda: sidecar.sidecar.tenant_connections == 0, 20)
    writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_never_ends_a_finished_stream_keeps_no_place(
    sidecar: SidecarUnderTest, engine: FaultyEngine, stream: bool
) -> None:
    engine.script = event_stream([chat_chunk("a"), usage_event(), DONE], then=stall)
    async with sidecar.chat(stream=stream, max_tokens=500) as response:
        assert response.status == 200
        assert b'"a"' in await asyncio.wait_for(response.read(), 20)
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"completed": 1}
