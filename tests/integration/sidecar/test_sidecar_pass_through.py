"""The plain way: a request in, its answer out, its bill settled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.faulty_engine import DONE, GOOD_STREAM, USAGE, FaultyEngine, chat_answer
from support.sidecar import ALICE, SidecarUnderTest

pytestmark = pytest.mark.integration


async def test_a_whole_answer_comes_from_a_joined_stream(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat() as answer:
        assert answer.status == 200
        body = await answer.json()
    assert engine.requests[0].json()["stream"] is True
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello!"}
    assert body["usage"] == USAGE
    assert sidecar.outcomes(ALICE) == {"completed": 1}


async def test_a_short_answer_is_not_streamed(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat(max_tokens=5) as answer:
        assert await answer.json() == chat_answer()
    assert "stream" not in engine.requests[0].json()


async def test_a_stream_without_the_usage_that_the_client_did_not_ask_for(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    async with sidecar.chat(stream=True) as answer:
        body = await answer.read()
    assert body == b"".join(GOOD_STREAM) + DONE
    assert engine.requests[0].json()["stream_options"] == {"include_usage": True}
    (tenant,) = [t for t in _tenants(sidecar) if t.name == ALICE]
    assert tenant.service_tokens_total == USAGE["total_tokens"]


async def test_a_stream_with_the_usage_that_the_client_asked_for(
    sidecar: SidecarUnderTest,
) -> None:
    async with sidecar.chat(stream=True, stream_options={"include_usage": True}) as answer:
        body = await answer.read()
    last = body.split(b"\n\n")[-3]
    assert json.loads(last.removeprefix(b"data: "))["usage"] == USAGE


def _tenants(sidecar: SidecarUnderTest) -> Any:
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert scheduler is not None
    return scheduler.tenant_snapshots(sidecar.runtime.dispatcher.loop.time())
