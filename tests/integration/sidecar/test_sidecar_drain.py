"""R7: drains and signals. Nothing accepted is lost within the bounds, and nothing hangs beyond."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.fake_engine import until
from support.faulty_engine import DONE, FaultyEngine, chat_chunk
from support.faulty_upstream import event_stream, stall
from support.sidecar import (
    ALICE,
    KEYS,
    Json,
    SidecarUnderTest,
    chat_body,
    keys_document,
    policy_document,
    raw_head,
    write,
)

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

ONE = policy_document(tier={"max_in_flight": 1})


def slow_stream(events: int, seconds: float) -> Any:
    async def pause(_: int) -> None:
        await asyncio.sleep(seconds)

    return event_stream([*[chat_chunk("x")] * events, DONE], between=pause)


async def test_a_drain_refuses_the_new_and_serves_the_accepted(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=ONE)
    engine.script = slow_stream(5, 0.05)
    accepted = [asyncio.create_task(_stream(sidecar)) for _ in range(3)]
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 3)
    drained = asyncio.create_task(_get(sidecar, "/drained"))
    async with sidecar.client.post(sidecar.admin_url + "/drain") as response:
        assert (await response.json())["in_hand"] == 3
    assert (await _get(sidecar, "/readyz"))[0] == 503
    async with sidecar.chat() as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["x-tidegate-dropped-reason"] == "rejected-draining"
    assert not drained.done()
    for task in accepted:
        assert (await task).endswith(DONE)
    assert await asyncio.wait_for(drained, 5) == (200, {"draining": True})


async def test_drained_holds_nobody_where_no_drain_begins(sidecar: SidecarUnderTest) -> None:
    assert await _get(sidecar, "/drained?begin_seconds=0.1") == (200, {"draining": False})


async def test_drained_holds_nobody_whose_engine_is_dead(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.healthy = False
    await until(lambda: not sidecar.runtime.ready)
    assert await _get(sidecar, "/drained") == (200, {"draining": False})


async def test_the_end_of_drain_and_grace(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=ONE, drain_seconds=0.2, grace_seconds=0.5)
    engine.script = slow_stream(400, 0.05)
    running = asyncio.create_task(_stream(sidecar))
    await until(lambda: engine.busy == 1)
    queued = asyncio.create_task(_stream(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    await asyncio.wait_for(sidecar.sidecar.drain(), 5)
    assert b'"code":"draining"' in await queued
    assert b'"code":"engine_failed"' in await running
    assert sidecar.outcomes(ALICE) == {"draining": 1, "engine_failed": 1}


@contextlib.asynccontextmanager
async def process(
    folder: Path, engine: FaultyEngine, *flags: str, document: Json = ONE
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """``python -m tidegate_sidecar`` before ``engine``: (process, tenants' URL, admin URL)."""
    policy = write(folder / "policy.json", document)
    keys = write(folder / "keys.json", keys_document())
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_sidecar", f"--policy={policy}", f"--keys={keys}",
        f"--engine={engine.url}", "--port=0", "--admin-port=0", "--leaving-seconds=0", *flags,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "TIDEGATE_ENGINE_POLL_SECONDS": "0.05"},
    )  # fmt: skip
    assert child.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"tenants on" not in (line := await child.stderr.readline()):
                assert line, "it ended before it listened"
        tenants, admin = re.findall(r"127\.0\.0\.1:\d+", line.decode())
        yield child, f"http://{tenants}", f"http://{admin}"
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_r7_sigterm_with_streams_and_a_queue(tmp_path: Path, engine: FaultyEngine) -> None:
    """Three streams and five that wait: all are served in whole, and no other is."""
    go = asyncio.Event()

    async def held(number: int) -> None:
        if number:
            await go.wait()

    async def told(path: str) -> tuple[int, Any]:
        async with client.get(admin + path) as response:
            return response.status, await response.json()

    engine.script = event_stream([*[chat_chunk("x")] * 5, DONE], between=held)
    three = policy_document(tier={"max_in_flight": 3})
    async with (
        process(tmp_path, engine, document=three) as (child, url, admin),
        aiohttp.ClientSession() as client,
    ):
        tasks = [asyncio.create_task(_post(client, url)) for _ in range(8)]
        async with asyncio.timeout(30):
            while (engine.busy, (await told("/load"))[1]["queued"]) != (3, 5):
                pass
            child.send_signal(signal.SIGTERM)
            while (await told("/readyz"))[0] != 503:
                pass
        status, body = await _post(client, url)
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        go.set()
        for status, body in await asyncio.gather(*tasks):
            assert (status, body.endswith(DONE)) == (200, True)
        assert await asyncio.wait_for(child.wait(), 30) == 0
    assert len(engine.requests) == 8


async def test_r7_a_second_sigterm_quits(tmp_path: Path, engine: FaultyEngine) -> None:
    engine.script = stall
    leaves = ("--leaving-seconds=600", "--drain-seconds=3600", "--grace-seconds=3600")
    async with (
        process(tmp_path, engine, *leaves) as (child, url, _),
        aiohttp.ClientSession() as client,
    ):
        task = asyncio.create_task(_post(client, url))
        await until(lambda: engine.busy == 1)
        child.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert child.returncode is None
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 15) == 0
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--policy is required"),
        (["--policy=a", "--keys=b", "--engine=ftp://x"], "expected uds:/path or http://host:port"),
        (["--policy=a", "--keys=b", "--engine=uds:x"], "absolute path"),
        (["--policy=a", "--keys=b", "--engine=uds:/x", "--port=many"], "not a number"),
        (["--policy=a", "--keys=b", "--engine=uds:/x", "--admin-host=0.0.0.0"], "admin_token_file"),
    ],
)
async def test_wrong_settings_end_with_a_message(flags: list[str], message: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_sidecar", *flags, stderr=asyncio.subprocess.PIPE
    )
    _, error = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 2
    assert message in error.decode()
    assert "Traceback" not in error.decode()


async def _stream(sidecar: SidecarUnderTest) -> bytes:
    async with sidecar.chat(stream=True) as response:
        return bytes(await response.read())


async def _get(sidecar: SidecarUnderTest, path: str) -> tuple[int, Any]:
    async with sidecar.client.get(sidecar.admin_url + path) as response:
        return response.status, await response.json()


async def _post(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    body = json.dumps(chat_body(stream=True))
    headers = {"Authorization": f"Bearer {KEYS[ALICE]}", "Content-Type": "application/json"}
    url += "/v1/chat/completions"
    async with client.post(url, data=body, headers=headers) as response:
        return response.status, await response.read()


async def test_a_draining_pod_lets_its_clients_connections_go(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """A client that kept its connection would send its next request to a pod that ends."""
    sidecar = await start_sidecar(policy=ONE)
    engine.script = slow_stream(5, 0.05)
    body = json.dumps(chat_body(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head(f"Content-Length: {len(body)}") + body)
    async with asyncio.timeout(5):
        assert b"Connection" not in await reader.readuntil(b"\r\n\r\n")
    sidecar.runtime.begin_drain()
    async with sidecar.chat() as response:
        assert response.status == 503
        assert response.headers["Connection"] == "close"
    async with asyncio.timeout(5):
        stream = await reader.readuntil(b"0\r\n\r\n")
        writer.write(raw_head(f"Content-Length: {len(body)}") + body)
        after = await reader.read()
    writer.close()
    assert DONE in stream
    assert after.startswith(b"HTTP/1.1 503 ")
    assert b"Connection: close" in after


async def test_the_end_waits_a_moment_for_those_whose_stream_just_ended(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """Such a client may send at once on the connection it kept: an answer, not a reset."""
    sidecar = await start_sidecar(policy=ONE)
    engine.script = slow_stream(5, 0.05)
    body = json.dumps(chat_body(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head(f"Content-Length: {len(body)}") + body)
    async with asyncio.timeout(10):
        assert b"Connection" not in await reader.readuntil(b"\r\n\r\n")
    drain = asyncio.create_task(sidecar.sidecar.drain())
    async with asyncio.timeout(10):
        await reader.readuntil(b"0\r\n\r\n")
        await until(lambda: sidecar.runtime.dispatcher.in_hand == 0)
        assert not drain.done()
        writer.write(raw_head(f"Content-Length: {len(body)}") + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        await drain


LONG: dict[str, Any] = {"leaving_seconds": 600.0, "drain_seconds": 3_600.0}
"""No test ends by it."""


async def test_who_has_not_heard_that_a_pod_goes_is_still_served(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    """Not ready at once; what comes over kept connections is served, and closes them."""
    sidecar = await start_sidecar(policy=ONE, **LONG)
    body = json.dumps(chat_body(stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    drained = asyncio.create_task(_get(sidecar, "/drained"))
    sidecar.runtime.begin_drain()
    assert (await _get(sidecar, "/readyz"))[0] == 503
    writer.write(raw_head(f"Content-Length: {len(body)}") + body)
    async with asyncio.timeout(10):
        answer = await reader.read()  # to the connection's end
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert DONE in answer
    async with sidecar.chat() as response:
        assert (response.status, response.headers["Connection"]) == (200, "close")
    assert not drained.done(), "the engine is needed"
    drained.cancel()
    await asyncio.gather(drained, return_exceptions=True)


async def test_after_that_nothing_is_taken_and_idle_connections_go(
    start_sidecar: StartSidecar,
) -> None:
    sidecar = await start_sidecar(policy=ONE, leaving_seconds=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    await until(lambda: sidecar.sidecar.tenant_connections == 1)
    drained = asyncio.create_task(_get(sidecar, "/drained"))
    drain = asyncio.create_task(sidecar.sidecar.drain())
    async with asyncio.timeout(10):
        assert await reader.read() == b"", "it sent nothing, and goes elsewhere from now on"
        assert await drained == (200, {"draining": True})
        await drain
    writer.close()
    async with sidecar.chat() as response:
        assert response.headers["x-tidegate-dropped-reason"] == "rejected-draining"


async def test_the_engines_hook_tells_clients_before_the_sidecar_is_told(
    start_sidecar: StartSidecar,
) -> None:
    """Both hooks of a pod begin together; the sidecar's own is a pause before its SIGTERM."""
    sidecar = await start_sidecar(policy=ONE, **LONG)
    departure = sidecar.runtime.dispatcher.departure
    hook = asyncio.create_task(_get(sidecar, "/drained?begin_seconds=600"))
    await until(lambda: departure.told)
    async with sidecar.chat() as response:
        assert (response.status, response.headers["Connection"]) == (200, "close")
    assert sidecar.runtime.ready, "the engine alone may be restarted"
    hook.cancel()
    await until(lambda: not departure.told)
    async with sidecar.chat() as response:
        assert "Connection" not in response.headers


async def test_a_request_after_the_engine_has_gone_is_told_that_the_pod_drains(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=ONE)
    sidecar.runtime.begin_drain()
    engine.healthy = False
    await until(lambda: not sidecar.runtime.dispatcher.engine_ready)
    async with sidecar.chat() as response:
        assert response.headers["x-tidegate-dropped-reason"] == "rejected-draining"
