"""Heads and framing over a raw socket, at a sidecar and at a router: smuggling, and time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path

import pytest
from support.fake_engine import until
from support.faulty_engine import answer_well
from support.faulty_upstream import Connection
from support.front import FRONTS, Front, front
from support.odd_heads import REFUSED, SERVED, TRAILED, WELL
from support.sidecar import ALICE, KEYS

pytestmark = pytest.mark.integration

both = pytest.mark.parametrize("kind", FRONTS)


@both
async def test_what_may_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(
    kind: str, tmp_path: Path
) -> None:
    async with front(kind, tmp_path) as it:
        for name, request in REFUSED.items():
            told, closed = await it.told(request + WELL)
            assert (statuses(told), closed) == ([400], True), (name, told)
            assert KEYS[ALICE].encode() not in told, name
            error = json.loads(told.partition(b"\r\n\r\n")[2])["error"]
            assert error["type"] == "invalid_request_error", name
        assert not it.engine.requests
        for name, request in SERVED.items():
            told, closed = await it.told(request)
            assert (statuses(told), closed) == ([200], True), (name, told)
        assert len(it.engine.requests) == len(SERVED)


@both
async def test_what_comes_behind_a_request_in_chunks_is_not_read(kind: str, tmp_path: Path) -> None:
    """aiohttp gives the last field of its trailer to the next request of the connection, whose
    client, behind a proxy that shares one, may be another."""
    async with front(kind, tmp_path) as it:
        told, closed = await it.told(TRAILED + WELL)
        assert (statuses(told), closed) == ([200], True)
        assert b"\r\nConnection: close\r\n" in told
        assert len(it.engine.requests) == 1


@both
async def test_a_head_has_a_time_from_its_first_byte_on(kind: str, tmp_path: Path) -> None:
    """However it trickles; not who has sent nothing yet, nor who is served."""
    async with front(kind, tmp_path, header_seconds=1.0) as it:
        go = asyncio.Event()

        async def held(connection: Connection) -> None:
            await go.wait()
            await answer_well(it.engine.requests[-1])(connection)

        it.engine.script = held
        idle = await asyncio.open_connection("127.0.0.1", it.port)
        in_time = await asyncio.open_connection("127.0.0.1", it.port)
        in_time[1].write(WELL[:40])
        await until(lambda: timed(it) == 1)
        in_time[1].write(WELL[40:])
        await until(lambda: it.engine.busy == 1)
        assert timed(it) == 0
        told = await asyncio.to_thread(trickle, it.port)
        assert statuses(told) == [408]
        error = json.loads(told.partition(b"\r\n\r\n")[2])["error"]
        assert error["type"] == "invalid_request_error"
        assert timed(it) == 0
        go.set()
        for reader, writer in (in_time, idle):
            if writer is idle[1]:
                writer.write(WELL)
            async with asyncio.timeout(10):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()


def statuses(told: bytes) -> list[int]:
    """Of all answers."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", told)]


def timed(it: Front) -> int:
    """Connections on which a head has begun."""
    server = (it.pod.sidecar if it.fleet is None else it.fleet.router)._tenants
    assert server is not None
    return sum(connection._head_timer is not None for connection in server.connections)


def trickle(port: int) -> bytes:
    """The answer to a head of which a byte comes now and then, without an end."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-a: ")
        connection.settimeout(0.05)
        told = b""
        for _ in range(400):
            # It may close while a byte is on its way to it: what it said is there all the same.
            with contextlib.suppress(TimeoutError, ConnectionError):
                piece = connection.recv(65_536)
                told += piece
                if not piece:
                    break
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"a")
    return told
