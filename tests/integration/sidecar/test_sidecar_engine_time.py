"""EngineTime over HTTP, without a plug-in: charged while streaming, in full, to who was there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import engine_in_process, until
from support.faulty_engine import MODEL
from support.sidecar import ALICE, BOB, SidecarUnderTest, policy_document, sidecar_under_test

pytestmark = pytest.mark.integration


def completion(tokens: int, prompt: int = 20, **extra: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [1] * prompt, "max_tokens": tokens, **extra}


async def complete(sidecar: SidecarUnderTest, tenant: str, body: dict[str, Any]) -> None:
    async with sidecar.request("/v1/completions", body, tenant=tenant) as answer:
        await answer.read()
        assert answer.status == 200


def engine_ms(sidecar: SidecarUnderTest) -> dict[str, float]:
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert scheduler is not None
    return {one.name: one.engine_ms_total for one in scheduler.tenant_snapshots(0.0)}


async def test_all_engine_time_is_charged_to_who_was_served(tmp_path: Path) -> None:
    async with (
        engine_in_process("--fake-ignore-eos") as engine,
        sidecar_under_test(tmp_path, engine, policy=policy_document()) as sidecar,
    ):
        dispatcher = sidecar.runtime.dispatcher
        reported: list[float] = []
        stepped = dispatcher.in_flight.stepped

        def note(seconds: float, rows: Any, *, learn: bool = True) -> None:
            reported.append(seconds)
            stepped(seconds, rows, learn=learn)

        dispatcher.in_flight.stepped = note  # type: ignore[method-assign]
        long = asyncio.create_task(complete(sidecar, ALICE, completion(300, stream=True)))
        await until(lambda: engine_ms(sidecar)[ALICE] > 0)  # while it streams
        assert not long.done()
        bodies = [completion(40, 300), completion(40, n=3), completion(10), completion(60)]
        await asyncio.gather(long, *(complete(sidecar, BOB, body) for body in bodies))
        await sidecar.settled()
        charged = engine_ms(sidecar)
        assert charged[BOB] > 0
        assert sum(charged.values()) == pytest.approx(1e3 * sum(reported), rel=1e-6)
        scheduler = dispatcher.scheduler
        assert scheduler is not None
        assert scheduler.pace.is_measured
        (tier,) = scheduler.tier_snapshots()
        assert tier.engine_ms_total == pytest.approx(sum(charged.values()))


async def test_finish_times_are_estimated_and_their_skew_counted(tmp_path: Path) -> None:
    async with (
        engine_in_process("--fake-ignore-eos") as engine,
        sidecar_under_test(tmp_path, engine) as sidecar,
    ):
        for _ in range(4):
            await complete(sidecar, ALICE, completion(30))
        tier = sidecar.runtime.tally.tiers["standard"]
        assert sum(tier.skew.counts) == 3  # before the first nothing was measured


async def test_an_engine_that_streams_nothing_is_charged_too(tmp_path: Path) -> None:
    async with (
        engine_in_process("--fake-ignore-eos") as engine,
        sidecar_under_test(tmp_path, engine) as sidecar,
    ):
        await asyncio.gather(*(complete(sidecar, ALICE, completion(10)) for _ in range(5)))
        await sidecar.settled()
        assert engine_ms(sidecar)[ALICE] > 0
        assert engine_ms(sidecar)[BOB] == 0


async def test_embeddings_are_counted_in_tokens(tmp_path: Path) -> None:
    policy = policy_document(model={"name": MODEL, "task": "Embed"})
    policy["tiers"][0]["fairness"] = {"unit": "EngineTime"}
    async with (
        engine_in_process("--runner", "pooling") as engine,
        sidecar_under_test(tmp_path, engine, policy=policy) as sidecar,
    ):
        body = {"model": MODEL, "input": ["one", "two"]}
        async with sidecar.request("/v1/embeddings", body) as answer:
            assert answer.status == 200
        await sidecar.settled()
        scheduler = sidecar.runtime.dispatcher.scheduler
        assert scheduler is not None
        assert scheduler.tenant_snapshots(0.0)[0].service_tokens_total > 0
        assert sidecar.runtime.dispatcher.in_flight.gaps is None
