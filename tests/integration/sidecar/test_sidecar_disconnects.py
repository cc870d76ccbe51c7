"""O1: a client that goes away, in whatever phase, frees what it held within a second."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import FaultyEngine, answer_well, chat_chunk
from support.faulty_upstream import Connection, event_stream, stall
from support.sidecar import ALICE, BOB, SidecarUnderTest, chat_body, policy_document, raw_head

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat_body()),
    ("/v1/completions", {"model": "test-model", "prompt": "Say hello."}),
]
ONE_IN_FLIGHT = policy_document(tier={"max_in_flight": 1})


def endless(gone: asyncio.Event) -> Any:
    """Events for 20 seconds, or until the connection ends; ``gone`` says that it did."""

    async def behave(connection: Connection) -> None:
        async def pause(_: int) -> None:
            await asyncio.sleep(0.05)

        watch = asyncio.create_task(connection.closed_by_peer())
        stream = asyncio.create_task(
            event_stream([chat_chunk("x")] * 400, between=pause)(connection)
        )
        await asyncio.wait((watch, stream), return_when=asyncio.FIRST_COMPLETED)
        gone.set()
        for task in (watch, stream):
            task.cancel()
        await asyncio.gather(watch, stream, return_exceptions=True)
        connection.writer.close()

    return behave


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_o1_in_mid_stream(
    sidecar: SidecarUnderTest, engine: FaultyEngine, path: str, body: dict[str, Any]
) -> None:
    gone = asyncio.Event()
    engine.script = endless(gone)
    async with sidecar.request(path, {**body, "stream": True}) as answer:
        for _ in range(3):
            await answer.content.readuntil(b"\n\n")
        left = time.monotonic()
        answer.close()
    await asyncio.wait_for(gone.wait(), 5)
    assert time.monotonic() - left < 1.0
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"client_closed": 1}


@pytest.mark.parametrize("stream", [True, False])
async def test_o1_before_the_first_byte(
    sidecar: SidecarUnderTest, engine: FaultyEngine, stream: bool
) -> None:
    engine.script = stall
    await give_up(sidecar, engine, stream=stream)
    await until(lambda: engine.busy == 0, 1.0)
    assert sidecar.outcomes(ALICE) == {"client_closed": 1}


async def test_o1_while_an_answer_is_joined(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    gone = asyncio.Event()
    engine.script = endless(gone)
    await give_up(sidecar, engine)
    await asyncio.wait_for(gone.wait(), 1)
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"client_closed": 1}


async def test_o1_in_the_queue(start_sidecar: StartSidecar, engine: FaultyEngine) -> None:
    sidecar = await start_sidecar(policy=ONE_IN_FLIGHT)
    engine.script = stall
    first = asyncio.create_task(_read(sidecar))
    await until(lambda: engine.busy == 1)
    second = asyncio.create_task(_read(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 1, 1.0)
    assert len(engine.requests) == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"client_closed": 2}


async def test_o1_the_next_in_the_queue_goes(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=ONE_IN_FLIGHT)
    engine.script = stall
    first = asyncio.create_task(_read(sidecar))
    await until(lambda: engine.busy == 1)
    second = asyncio.create_task(_read(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    engine.script = None
    first.cancel()
    assert await asyncio.wait_for(second, 5) == 200
    await asyncio.gather(first, return_exceptions=True)


async def test_whoever_hangs_up_before_the_first_token_gains_no_share(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """The engine prefilled for it: billed nothing, a tenant that does so always went first."""
    fairness = {"unit": "Requests", "quantum": 1}
    sidecar = await start_sidecar(
        policy=policy_document(tier={"fairness": fairness}, engine={"max_num_seqs": 1})
    )

    async def answer_bob(connection: Connection) -> None:
        request = engine.requests[-1]
        await (answer_well(request) if request.json()["user"] == BOB else stall)(connection)

    engine.script = answer_bob
    alices = [asyncio.create_task(_read(sidecar, user=ALICE)) for _ in range(12)]
    await until(lambda: engine.busy == 1)
    bobs = [asyncio.create_task(_read(sidecar, tenant=BOB, user=BOB)) for _ in range(3)]
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 15)
    for gone, alice in enumerate(alices, start=1):
        alice.cancel()
        await until(lambda gone=gone: sidecar.outcomes(ALICE) == {"client_closed": gone})  # type: ignore[misc]
        await until(lambda: engine.busy == 1 or sidecar.runtime.dispatcher.in_hand == 0)
    await asyncio.gather(*alices, *bobs, return_exceptions=True)
    users = [request.json()["user"] for request in engine.requests]
    assert users[:6].count(BOB) >= 2


async def test_o1_while_the_body_is_sent(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head("Content-Length: 1000") + b'{"model"')
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await until(lambda: sidecar.outcomes(ALICE) == {"client_closed": 1})
    assert not engine.requests


async def test_idle_connections_leave_files_for_the_rest(
    start_sidecar: StartSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound of their number they keep the probes and the engine out."""
    monkeypatch.setattr("tidegate_sidecar.server.client_connections", lambda: 3)
    sidecar = await start_sidecar()
    port = sidecar.sidecar.port
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    await asyncio.sleep(0.05)
    reader, extra = await asyncio.open_connection("127.0.0.1", port)
    assert await _ended(reader)
    extra.close()
    idle[0][1].close()
    await asyncio.sleep(0.05)
    async with sidecar.chat() as answer:
        assert answer.status == 200
    for _, writer in idle:
        writer.close()
    await until(lambda: sidecar.sidecar.tenant_connections == 1)  # the client's


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionResetError:
        return True


async def give_up(sidecar: SidecarUnderTest, engine: FaultyEngine, **extra: Any) -> None:
    """Send a request and go away once the engine has it."""
    task = asyncio.create_task(_read(sidecar, **extra))
    await until(lambda: engine.requests and engine.busy)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _read(sidecar: SidecarUnderTest, **extra: Any) -> int:
    async with sidecar.chat(**extra) as answer:
        await answer.read()
        return int(answer.status)
