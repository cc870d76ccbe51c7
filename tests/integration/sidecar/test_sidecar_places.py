"""Seats and KV blocks without a plug-in: quotas hold, and who has shown nothing yet makes room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import engine_in_process, until
from support.faulty_engine import MODEL
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document, sidecar_under_test

from tidegate.simulator.fake_engine import FakeEngine

pytestmark = pytest.mark.integration

BLOCKS = 100
"""Of 16 tokens each."""


def policy(seats: int = 64, **members: Any) -> dict[str, Any]:
    """Bob's tier goes first, and Alice's may be preempted for it."""
    high = {"name": "high", "priority": 10}
    evictable = {"evictable": True, "backoff_per_queued_request_seconds": 0.001}
    low = {"name": "low", "preemption": evictable}
    return policy_document(
        tiers=[high, low],
        tenants=[{"name": ALICE, "tier": "low"}, {"name": BOB, "tier": "high"}],
        engine={"max_num_seqs": seats, "max_num_batched_tokens": 512},
        **members,
    )


@asynccontextmanager
async def pair(
    folder: Path, document: dict[str, Any], *flags: str
) -> AsyncIterator[tuple[FakeEngine, SidecarUnderTest]]:
    blocks = ("--num-gpu-blocks-override", str(BLOCKS + 1), "--max-model-len", "1500")
    async with (
        engine_in_process("--fake-ignore-eos", *blocks, *flags) as engine,
        sidecar_under_test(folder, engine, policy=document) as sidecar,
    ):
        places = sidecar.runtime.dispatcher.in_flight.places
        await until(lambda: places.in_force)
        yield engine, sidecar


def send(
    sidecar: SidecarUnderTest, tenant: str, prompt: int, output: int, **extra: Any
) -> asyncio.Task[dict[str, Any]]:
    async def whole() -> dict[str, Any]:
        body = {"model": MODEL, "prompt": [1] * prompt, "max_tokens": output, **extra}
        async with sidecar.request("/v1/completions", body, tenant=tenant) as answer:
            assert answer.status == 200, await answer.text()
            if extra.get("stream"):
                return {"text": await answer.text()}
            parsed: dict[str, Any] = await answer.json()
            return parsed

    return asyncio.create_task(whole())


def running(sidecar: SidecarUnderTest) -> dict[str, int]:
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert scheduler is not None
    return {tier.name: tier.running for tier in scheduler.tier_snapshots()}


async def test_a_pool_holds_no_more_than_its_quota_and_is_in_nobodys_way(tmp_path: Path) -> None:
    pools = [
        {"name": "first", "tiers": ["high"], "percent": 50, "lendable_percent": 0},
        {"name": "rest", "tiers": ["low"], "percent": 50, "borrow_limit_percent": 0},
    ]
    async with pair(tmp_path, policy(kv_pools=pools)) as (_, sidecar):
        places = sidecar.runtime.dispatcher.in_flight.places
        assert [pool.nominal for pool in places.pools()] == [50, 50]
        # 20 blocks each at its end, so two of them may run, or three that do not peak together.
        low = [send(sidecar, ALICE, 160, 160) for _ in range(8)]
        await until(lambda: running(sidecar)["low"] >= 2)
        high = [send(sidecar, BOB, 320, 40) for _ in range(2)]
        most = 0
        while not all(task.done() for task in low):
            by_name = {pool.name: pool for pool in places.pools()}
            assert by_name["rest"].borrowed == 0
            assert running(sidecar)["low"] <= 3
            most = max(most, by_name["first"].held)
            await asyncio.sleep(0.002)
        answers = await asyncio.gather(*low, *high)
        assert [answer["usage"]["completion_tokens"] for answer in answers] == 8 * [160] + 2 * [40]
        assert most >= 20  # the quota of the other kept its blocks free
        assert sum(tier.preemptions for tier in sidecar.runtime.tally.tiers.values()) == 0


async def test_who_has_shown_nothing_makes_room_and_is_served_in_whole(tmp_path: Path) -> None:
    async with pair(tmp_path, policy(seats=2), "--max-num-seqs", "2") as (_, sidecar):
        low = [send(sidecar, ALICE, 20, 400) for _ in range(2)]
        tickets = sidecar.runtime.dispatcher._tickets
        # The token that a prompt's end brings is told with it: with three, some were produced.
        await until(lambda: [t.output_tokens >= 3 for t in tickets.values()] == [True, True])
        await asyncio.wait_for(send(sidecar, BOB, 20, 30), 30)
        assert not any(task.done() for task in low)
        tally = sidecar.runtime.tally.tiers["low"]
        assert tally.preemptions == 1
        assert tally.recomputed_tokens > 20  # its prompt, and what it had produced
        answers = await asyncio.gather(*low)
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {400}
        assert sidecar.outcomes(ALICE) == {"completed": 2}
        await sidecar.settled()


async def test_who_is_being_streamed_is_left_alone(tmp_path: Path) -> None:
    async with pair(tmp_path, policy(seats=1), "--max-num-seqs", "1") as (_, sidecar):
        low = send(sidecar, ALICE, 20, 200, stream=True)
        dispatcher = sidecar.runtime.dispatcher
        await until(lambda: any(t.stream and t.stream.begun for t in dispatcher._tickets.values()))
        high = send(sidecar, BOB, 20, 20)
        assert "[DONE]" in (await low)["text"]
        await high
        assert sidecar.runtime.tally.tiers["low"].preemptions == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_whose_first_token_opens_the_gate_is_not_cut_off_by_it(
    tmp_path: Path, stream: bool
) -> None:
    """Bob's request waits for the end of Alice's prefill, and then for her seat. Cut off while that
    token was on its way to her client, her request was begun anew in the middle of her stream."""
    flags = ("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--fake-time-scale", "40")
    async with pair(tmp_path, policy(seats=1), *flags) as (_, sidecar):
        low = send(sidecar, ALICE, 1_100, 8, stream=stream)
        await until(lambda: running(sidecar)["low"] == 1)
        high = send(sidecar, BOB, 20, 4)
        answer = await asyncio.wait_for(low, 30)
        if stream:
            assert answer["text"].count("[DONE]") == 1
            assert "HTTP/1.1" not in answer["text"]
        else:
            assert answer["usage"]["completion_tokens"] == 8
        await high
        await sidecar.settled()
        assert sidecar.outcomes(ALICE) == {"completed": 1}


async def test_a_lone_request_that_shows_nothing_makes_room_as_it_goes_on(tmp_path: Path) -> None:
    flags = ("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--fake-time-scale", "8")
    async with pair(tmp_path, policy(seats=1), *flags) as (_, sidecar):
        low = send(sidecar, ALICE, 1_100, 100)
        await until(lambda: running(sidecar)["low"] == 1)
        await asyncio.wait_for(send(sidecar, BOB, 20, 4), 30)
        assert not low.done()
        assert sidecar.runtime.tally.tiers["low"].preemptions == 1
        assert (await low)["usage"]["completion_tokens"] == 100
        await sidecar.settled()


@asynccontextmanager
async def backing_off(
    folder: Path,
) -> AsyncIterator[tuple[SidecarUnderTest, asyncio.Task[dict[str, Any]]]]:
    """Alice's request does, for longer than anybody waits."""
    document = policy(seats=1)
    document["tiers"][1]["preemption"] = {
        "evictable": True,
        "backoff_per_queued_request_seconds": 60,
        "backoff_max_seconds": 60,
    }
    async with pair(folder, document, "--max-num-seqs", "1") as (_, sidecar):
        low = send(sidecar, ALICE, 20, 800)
        await until(lambda: running(sidecar)["low"] == 1)
        high = [send(sidecar, BOB, 20, 30) for _ in range(2)]
        await until(lambda: sidecar.runtime.tally.tiers["low"].preemptions == 1)
        yield sidecar, low
        await asyncio.gather(*high)
        await sidecar.settled()


async def test_a_client_that_leaves_while_its_request_backs_off(tmp_path: Path) -> None:
    async with backing_off(tmp_path) as (sidecar, low):
        low.cancel()
        await until(lambda: sidecar.outcomes(ALICE) == {"client_closed": 1})


async def test_a_key_that_is_revoked_while_its_request_backs_off(tmp_path: Path) -> None:
    async with backing_off(tmp_path) as (sidecar, low):
        dispatcher = sidecar.runtime.dispatcher
        assert sidecar.runtime.in_force is not None
        bundle = sidecar.runtime.in_force.bundle
        keys = {digest: who for digest, who in bundle.keys.keys.items() if who != ALICE}
        assert sidecar.runtime.apply(
            replace(
                bundle,
                policy=replace(bundle.policy, generation=2),
                keys=replace(bundle.keys, generation=2, keys=keys),
            )
        )
        with pytest.raises(AssertionError, match="invalid_api_key"):
            await asyncio.wait_for(low, 10)
        assert sidecar.outcomes(ALICE) == {"unauthenticated": 1}
        assert not any(ticket.request.tenant == ALICE for ticket in dispatcher._tickets.values())
