"""The misbehaving upstream does misbehave: a client sees each fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from support.fake_engine import until
from support.faulty_upstream import (
    Behaviour,
    FaultyUpstream,
    answer,
    close,
    event_stream,
    raw,
    reset,
    stall,
)

pytestmark = pytest.mark.integration


async def fetch(upstream: FaultyUpstream, uds: str | None = None) -> tuple[int, bytes]:
    connector = aiohttp.UnixConnector(uds) if uds else aiohttp.TCPConnector()
    async with (
        aiohttp.ClientSession(upstream.url, connector=connector) as session,
        session.post("/v1/x", json={"a": 1}) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize(
    ("behaviour", "status", "body"),
    [
        (answer(429, {"error": 1}, {"Retry-After": "7"}), 429, b'{"error": 1}'),
        (answer(200, b"plain", gzipped=True), 200, b"plain"),
        (event_stream([b"data: 1\n\n", b"data: 2\n\n"]), 200, b"data: 1\n\ndata: 2\n\n"),
    ],
)
async def test_answers(behaviour: Behaviour, status: int, body: bytes) -> None:
    async with FaultyUpstream(behaviour) as upstream:
        assert await fetch(upstream) == (status, body)
        assert upstream.requests[0].json() == {"a": 1}
        assert upstream.requests[0].path == "/v1/x"


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (close, aiohttp.ServerDisconnectedError),
        (reset, (ConnectionResetError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)),
        (raw(b"this is not HTTP\r\n\r\n"), aiohttp.ClientResponseError),
        (event_stream([b"data: 1\n\n"], then=close), aiohttp.ClientPayloadError),
        (
            event_stream([b"data: 1\n\n"], then=reset),
            (aiohttp.ClientPayloadError, ConnectionResetError, aiohttp.ClientOSError),
        ),
    ],
    ids=["close", "reset", "garbage", "cut off", "reset in a stream"],
)
@pytest.mark.parametrize("over", ["tcp", "uds"])
async def test_faults(
    sockets: Path, behaviour: Behaviour, error: type[Exception], over: str
) -> None:
    uds = str(sockets / "upstream.sock") if over == "uds" else None
    async with FaultyUpstream(behaviour, uds=uds) as upstream:
        with pytest.raises(error):
            await fetch(upstream, uds)


async def test_a_script_in_order_on_one_connection() -> None:
    script = [answer(200, 1), answer(503, 2), answer(200, 3)]
    async with FaultyUpstream(*script) as upstream, aiohttp.ClientSession(upstream.url) as session:
        seen = []
        for _ in range(4):
            async with session.get("/") as response:
                seen.append((response.status, await response.json()))
        assert seen == [(200, 1), (503, 2), (200, 3), (200, 3)]
        assert upstream.connections == 1


async def test_a_stall_lasts_until_the_client_leaves() -> None:
    async with FaultyUpstream(stall) as upstream:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fetch(upstream), 0.1)
        await until(lambda: upstream.open_connections == 0)


async def test_an_answer_waits_for_its_event() -> None:
    go = asyncio.Event()
    async with FaultyUpstream(answer(200, 1, after=go)) as upstream:
        task = asyncio.create_task(fetch(upstream))
        await until(lambda: upstream.requests)
        assert not task.done()
        go.set()
        assert await task == (200, b"1")
