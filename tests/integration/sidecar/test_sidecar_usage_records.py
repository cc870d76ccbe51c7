"""Usage records over HTTP: one for each request whatever its end, in the file when all is over.

That every proxy test leaves one record for each request is part of the oracle (`settled`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest
from support.fake_engine import until
from support.faulty_engine import USAGE, FaultyEngine, chat_chunk
from support.faulty_upstream import answer, event_stream, stall
from support.sidecar import (
    ALICE,
    BOB,
    SidecarUnderTest,
    chat_body,
    policy_document,
    sidecar_under_test,
    speak,
)

from tidegate.scheduling.contracts import UsageRecord, loads
from tidegate.scheduling.outcomes import Outcome

pytestmark = pytest.mark.integration


def records_in(path: Path) -> list[UsageRecord]:
    return [loads(UsageRecord, line) for line in path.read_bytes().splitlines()]


async def test_every_end_has_its_record(tmp_path: Path, engine: FaultyEngine) -> None:
    path = tmp_path / "usage.jsonl"
    policy = policy_document(tier={"max_in_flight": 1, "queue": {"max_requests": 1}})
    async with sidecar_under_test(
        tmp_path, engine, policy=policy, usage_records=str(path), drain_seconds=0.1
    ) as sidecar:
        async with sidecar.chat(stream=True) as response:
            await response.read()
        async with sidecar.chat(tenant=BOB) as response:
            assert response.status == 200
        for refused in (
            sidecar.chat(no_such_field=1),
            sidecar.request(body=chat_body(), tenant=None),
            sidecar.chat(model="another"),
        ):
            async with refused as response:
                assert response.status in (400, 401, 404)
        engine.script = answer(500, {"error": {"message": "boom"}})
        async with sidecar.chat() as response:
            assert response.status == 502
        engine.script = event_stream([chat_chunk("a"), chat_chunk("b")])  # and no end
        async with sidecar.chat(stream=True) as response:
            await response.read()
        await in_the_engine_and_the_queue(sidecar, engine)
        await sidecar.sidecar.drain()
    records = records_in(path)
    assert len({record.id for record in records}) == len(records)
    assert Counter((record.tenant, record.outcome) for record in records) == {
        (ALICE, "completed"): 1,
        (BOB, "completed"): 1,
        (ALICE, "malformed"): 1,
        ("", "unauthenticated"): 1,
        (ALICE, "model_not_found"): 1,
        (ALICE, "engine_failed"): 2,
        (ALICE, "client_closed"): 1,
        (ALICE, "queue_full"): 1,
        (ALICE, "draining"): 1,
    }
    streamed, whole = (record for record in records if record.outcome == "completed")
    for record in (streamed, whole):
        assert record.prompt_tokens == USAGE["prompt_tokens"]
        assert record.output_tokens == USAGE["completion_tokens"]
        assert record.tokens_reported
        assert (record.pool, record.tier, record.endpoint) == ("team-a/chat", "standard", "chat")
        assert record.queued_seconds is not None
        assert 0 <= record.queued_seconds <= record.duration_seconds
    assert (streamed.stream, whole.stream) == (True, False)
    assert streamed.ttft_seconds is not None
    broken = next(r for r in records if r.outcome == "engine_failed" and r.output_tokens)
    assert not broken.tokens_reported
    (full,) = (record for record in records if record.outcome == "queue_full")
    assert (full.prompt_tokens, full.queued_seconds) == (0, None)
    assert full.retry_after_seconds is not None


async def in_the_engine_and_the_queue(sidecar: SidecarUnderTest, engine: FaultyEngine) -> None:
    """One runs and its client leaves, one waits until the drain, and one finds no place."""
    engine.script = stall
    running = asyncio.create_task(speak(sidecar))
    await until(lambda: engine.busy == 1)
    waiting = asyncio.create_task(speak(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    status, _, _ = await speak(sidecar)
    assert status == 429
    sidecar.runtime.begin_drain()
    sidecar.runtime.dispatcher.refuse_queued(Outcome.DRAINING)
    assert (await waiting)[0] == 503
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 0)
