"""Answers as bytes: versions, HEAD, connections that stay, and a defect in mid-stream."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.faulty_engine import DONE, FaultyEngine, chat_chunk, usage_event
from support.faulty_upstream import event_stream
from support.sidecar import ALICE, SidecarUnderTest, chat_body, raw_head
from tidegate_sidecar.ticket import Ticket

pytestmark = pytest.mark.integration

EVENTS = [chat_chunk("a"), chat_chunk("b"), DONE]


async def exchange(sidecar: SidecarUnderTest, request: bytes) -> bytes:
    """What comes back until the sidecar closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(request)
    async with asyncio.timeout(10):
        whole = await reader.read()
    writer.close()
    return whole


def post(*lines: str, version: str = "1.1", **extra: object) -> bytes:
    body = json.dumps(chat_body(**extra)).encode()
    head = raw_head(*lines, f"Content-Length: {len(body)}")
    return head.replace(b"HTTP/1.1", f"HTTP/{version}".encode()) + body


@pytest.mark.parametrize("lines", [(), ("Connection: keep-alive",)])
async def test_a_stream_to_http_1_0_is_ended_by_the_connection(
    sidecar: SidecarUnderTest, engine: FaultyEngine, lines: tuple[str, ...]
) -> None:
    engine.script = event_stream(EVENTS)
    answer = await exchange(sidecar, post(*lines, version="1.0", stream=True))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"keep-alive" not in head.lower()
    assert body == b"".join(EVENTS)


async def test_answers_follow_each_other_on_a_connection_that_stays(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream([*EVENTS[:2], usage_event(), DONE])
    head = raw_head("Connection: close", method="HEAD", path="/v1/models")
    answer = await exchange(sidecar, post(stream=True) * 2 + head)
    streams, _, last = answer.rpartition(b"0\r\n\r\n")
    assert streams.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert streams.count(b"[DONE]") == 2
    assert b"Connection: close" not in streams
    headers, _, body = last.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in headers
    assert b"Date: " in headers
    assert int(headers.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]) > 0
    assert body == b""  # the length is that of the answer to a GET


async def test_a_defect_in_mid_stream_ends_it_without_a_second_answer(
    sidecar: SidecarUnderTest, engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Ticket.events_seen

    def events_seen(ticket: Ticket, events: int, before: int) -> int:
        if events > 1:
            raise RuntimeError("a defect")
        return told(ticket, events, before)

    async def between(_: int) -> None:
        await asyncio.sleep(0.02)

    engine.script = event_stream(EVENTS, between=between)
    with monkeypatch.context() as patch:
        patch.setattr(Ticket, "events_seen", events_seen)
        answer = await exchange(sidecar, post(stream=True))
        await sidecar.settled()
    assert answer.count(b"HTTP/1.1") == 1
    assert not answer.endswith(b"0\r\n\r\n")
    assert sum(sidecar.outcomes(ALICE).values()) == 1
