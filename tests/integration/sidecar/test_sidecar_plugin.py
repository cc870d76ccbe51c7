"""A sidecar before an engine with the plug-in: what it tells, what it is told, and when it is not.

The engine's side of the statistics is the plug-in's own reporter; the requests are a faulty
engine's, so that a test says what each step did.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.sidecar.conftest import StartSidecar
from support.fake_engine import socket_folder, until
from support.faulty_engine import MODEL, FaultyEngine
from support.sidecar import ALICE, BOB, KEYS, SidecarUnderTest, chat_body, policy_document

from tidegate.vllm_plugin.step_reporter import StepReporter

pytestmark = pytest.mark.integration

TIERS = [{"name": "high", "priority": 10}, {"name": "low", "draft_tokens": 0}]
TENANTS = [{"name": ALICE, "tier": "high", "weight": 4}, {"name": BOB, "tier": "low"}]


def policy(generation: int = 1, **members: Any) -> dict[str, Any]:
    return policy_document(generation, tiers=TIERS, tenants=TENANTS, **members)


@pytest.fixture
def shared() -> Iterator[Path]:
    """The folder that engine and sidecar share."""
    with socket_folder() as folder:
        yield folder


@pytest.fixture
async def sidecar(start_sidecar: StartSidecar, shared: Path) -> SidecarUnderTest:
    return await start_sidecar(policy=policy(), engine_plugin=shared)


def tell(reporter: StepReporter, step: int, **rest: Any) -> None:
    reporter.tell({"version": 1, "step": step, "planned": True, "seconds": 0.02, **rest})


async def test_requests_carry_their_tags_in_order_of_dispatch(
    engine: FaultyEngine, sidecar: SidecarUnderTest
) -> None:
    for tenant in (ALICE, BOB):
        async with sidecar.chat(tenant=tenant, max_tokens=40) as answer:
            assert answer.status == 200
    first, second = (request.json()["vllm_xargs"] for request in engine.requests)
    assert first["tidegate_tier"] == "high"
    assert first["tidegate_weight"] == 4
    assert second["tidegate_tier"] == "low"
    assert second["tidegate_sequence"] == first["tidegate_sequence"] + 1 < 2**53
    assert first["tidegate_tenant"] != second["tidegate_tenant"]
    assert not any(name in json.dumps(first) + json.dumps(second) for name in KEYS)
    assert 1 <= first["tidegate_expected_tokens"] <= 40


async def test_a_client_sends_no_tags_of_its_own(
    engine: FaultyEngine, sidecar: SidecarUnderTest
) -> None:
    forged = {"vllm_xargs": {"tidegate_tier": "high"}}
    async with sidecar.chat(tenant=BOB, **forged) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "vllm_xargs"
    assert engine.requests == []


async def test_without_a_plug_in_nothing_is_tagged(
    engine: FaultyEngine, start_sidecar: StartSidecar
) -> None:
    sidecar = await start_sidecar(policy=policy())
    async with sidecar.chat() as answer:
        assert answer.status == 200
    assert "vllm_xargs" not in engine.requests[0].json()
    async with sidecar.client.get(sidecar.admin_url + "/metrics") as answer:
        assert "tidegate_engine_steps" not in await answer.text()


async def test_requests_that_pool_carry_no_tags(
    engine: FaultyEngine, start_sidecar: StartSidecar, shared: Path
) -> None:
    served = policy(model={"name": MODEL, "task": "Embed"})
    sidecar = await start_sidecar(policy=served, engine_plugin=shared, check_other=False)
    body = {"model": MODEL, "input": "text"}
    async with sidecar.request("/v1/embeddings", body) as answer:
        assert answer.status == 200
    assert engine.requests[0].json() == body


async def test_the_engine_follows_the_policy_without_its_tenants(
    sidecar: SidecarUnderTest, shared: Path
) -> None:
    path = shared / "policy.json"
    assert json.loads(path.read_text())["generation"] == 1
    document = {
        "policy": policy(2),
        "keys": {"version": 1, "generation": 2, "keys": dict(sidecar.runtime.in_force.keys)},  # type: ignore[union-attr]
    }
    async with sidecar.client.put(sidecar.admin_url + "/policy", json=document) as answer:
        assert answer.status == 200, await answer.text()
    told = json.loads(path.read_text())
    assert (told["generation"], told["tenants"]) == (2, [])
    assert [tier["name"] for tier in told["tiers"]] == ["high", "low"]


async def test_steps_become_bill_and_figures_whatever_is_lost(
    sidecar: SidecarUnderTest, shared: Path
) -> None:
    plugin = sidecar.runtime.plugin
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert plugin is not None
    assert scheduler is not None
    async with sidecar.client.get(sidecar.admin_url + "/metrics") as answer:
        assert 'tidegate_kv_blocks{kv_pool="",state="held"} 0.0' in await answer.text()
    reporter = StepReporter(str(shared / "steps.sock"))
    figures = plugin.steps.figures
    victim = {"sequence": 3, "cause": "growth", "for_sequence": 3, "lost_tokens": 9}
    prefill = {"sequence": 3, "tokens": 300, "recomputed_tokens": 200}
    drafts = {"tier": "high", "drafted_tokens": 10, "accepted_tokens": 7}
    pool = {"name": "", "nominal_blocks": 100, "held_blocks": 130, "cached_blocks": 5}
    tell(reporter, 1, preemptions=[victim], prefills=[prefill], drafts=[drafts], pools=[pool])
    await until(lambda: figures.steps == 1)
    (shared / "steps.sock").unlink()
    tell(reporter, 2)
    assert reporter.dropped == 1
    plugin.close()
    plugin.open()
    for _ in range(2):
        reporter._socket.sendto(b"{ broken", str(shared / "steps.sock"))
    tell(reporter, 3, decodes=[77])
    await until(lambda: figures.steps == 2)
    assert plugin.socket.unreadable == 2
    tell(reporter, 1)  # the engine started anew
    await until(lambda: figures.steps == 3)
    reporter.close()
    async with sidecar.client.get(sidecar.admin_url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    for line in (
        'tidegate_preemptions_total{cause="growth"} 1.0',
        'tidegate_preemptions_total{cause="admission"} 0.0',
        "tidegate_recomputed_tokens_total 200.0",
        "tidegate_engine_steps_lost_total 1.0",
        'tidegate_prefill_tokens_per_step_bucket{le="256"} 2.0',
        'tidegate_prefill_tokens_per_step_bucket{le="512"} 3.0',
        'tidegate_kv_blocks{kv_pool="",state="nominal"} 100.0',
        'tidegate_kv_blocks{kv_pool="",state="held"} 0.0',  # no request of ours is in the engine
        'tidegate_draft_acceptance_ratio{tier="high"} 0.7',
    ):
        assert line in lines
    assert scheduler.pace.is_measured


async def test_a_long_prompt_of_one_tier_keeps_no_other_out(
    engine: FaultyEngine, sidecar: SidecarUnderTest
) -> None:
    """With one gate the prompts of `low`, which the engine never starts, would hold up `high`."""
    release = asyncio.Event()

    async def never_starts(connection: Any) -> None:
        await release.wait()

    engine.script = never_starts
    long = chat_body(messages=[{"role": "user", "content": "word " * 60_000}], stream=True)
    waiting = [asyncio.create_task(_status(sidecar, long, BOB)) for _ in range(6)]
    dispatcher = sidecar.runtime.dispatcher
    await until(lambda: dispatcher.scheduler is not None and dispatcher.scheduler.queued() >= 1)
    engine.script = None
    async with sidecar.chat(tenant=ALICE, max_tokens=40) as answer:
        assert answer.status == 200
    assert dispatcher.scheduler is not None
    assert dispatcher.scheduler.queued() >= 1
    for task in waiting:
        task.cancel()
    release.set()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _status(sidecar: SidecarUnderTest, body: dict[str, Any], tenant: str) -> int:
    async with sidecar.request(body=body, tenant=tenant) as answer:
        await answer.read()
        return int(answer.status)
