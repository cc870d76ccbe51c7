"""The admin port: health, metrics, status, policies by PUT and by file, revocation."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fake_engine import until
from support.faulty_engine import FaultyEngine, answer_well
from support.faulty_upstream import stall
from support.sidecar import (
    ALICE,
    BOB,
    KEYS,
    SidecarUnderTest,
    chat_body,
    keys_document,
    policy_document,
    raw_head,
    sha256,
    write,
)

from tidegate.scheduling.contracts import SidecarStatus, loads
from tidegate.scheduling.outcomes import Outcome

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TOKEN = "admin-token"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def guarded(start_sidecar: StartSidecar, tmp_path: Path) -> SidecarUnderTest:
    """A sidecar whose admin port has a token."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    return await start_sidecar(admin_token_file=token_file)


async def put(
    sidecar: SidecarUnderTest, generation: int, headers: Any = AUTHORIZED, **policy: Any
) -> tuple[int, Any]:
    """PUT a bundle; ``keys`` among the members replaces the keys."""
    keys = policy.pop("keys", KEYS)
    bundle = {
        "policy": policy_document(generation, **policy),
        "keys": keys_document(generation, keys),
    }
    url = sidecar.admin_url + "/policy"
    async with sidecar.client.put(url, json=bundle, headers=headers) as response:
        return response.status, await response.json()


def generation(sidecar: SidecarUnderTest) -> int:
    assert sidecar.runtime.in_force is not None
    return sidecar.runtime.in_force.policy.generation


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/status"), ("PUT", "/policy"), ("POST", "/drain"),
     ("GET", "/engine/metrics"), ("GET", "/nothing")],
)  # fmt: skip
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_what_tells_more_than_health_needs_the_token(
    guarded: SidecarUnderTest, method: str, path: str, headers: dict[str, str]
) -> None:
    url = guarded.admin_url + path
    async with guarded.client.request(method, url, headers=headers) as response:
        assert response.status == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/engine/startupz", "/engine/livez"])
async def test_health_needs_none(
    guarded: SidecarUnderTest, engine: FaultyEngine, path: str
) -> None:
    async with guarded.client.get(guarded.admin_url + path) as response:
        assert response.status == 200
    engine.healthy = False
    await until(lambda: not guarded.runtime.ready)
    async with guarded.client.get(guarded.admin_url + path) as response:
        assert response.status == (200 if path == "/healthz" else 503)


async def test_put_policy(guarded: SidecarUnderTest) -> None:
    assert await put(guarded, 3, headers={}) == (401, {"error": "a valid bearer token is needed"})
    assert await put(guarded, 3) == (200, {"generation": 3, "applied": True})
    assert await put(guarded, 3) == (200, {"generation": 3, "applied": False})
    status, answer = await put(guarded, 3, tier={"priority": 9})
    assert (status, answer["error"]) == (409, "generation 3 is in force with another content")
    assert (await put(guarded, 2))[0] == 409
    assert generation(guarded) == 3


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"tenants": [{"name": "a/b", "tier": "gone"}]}, "tenants"),
        ({"tier": {"reserved_percent": 200}}, "policy.tiers[0].reserved_percent"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"pool": "team-a/other"}, "policy.pool"),
    ],
)
async def test_an_invalid_policy_changes_nothing_and_is_named(
    guarded: SidecarUnderTest, policy: dict[str, Any], path: str
) -> None:
    status, answer = await put(guarded, 5, **policy)
    assert status == 422
    assert path in answer["error"]
    assert generation(guarded) == 1
    assert (await metrics(guarded))["tidegate_policy_reload_failures_total", ()] == 1
    assert (await get_status(guarded)).policy_error == answer["error"]
    assert (await put(guarded, 6))[0] == 200
    assert (await get_status(guarded)).policy_error is None


async def test_a_model_of_another_kind_waits_for_its_engine_and_the_rest_does_not(
    guarded: SidecarUnderTest,
) -> None:
    model = {"name": "another-model", "task": "Embed"}
    assert (await put(guarded, 5, model=model, tenants=[]))[0] == 200
    async with guarded.chat() as response:
        assert response.status == 403
    assert (await put(guarded, 6, model=model))[0] == 200
    async with guarded.chat() as response:
        assert response.status == 200


async def test_not_json_is_422(guarded: SidecarUnderTest) -> None:
    url = guarded.admin_url + "/policy"
    async with guarded.client.put(url, data=b"{", headers=AUTHORIZED) as response:
        assert response.status == 422


async def test_a_new_tenant_is_served_at_once_and_a_removed_key_is_not(
    guarded: SidecarUnderTest, engine: FaultyEngine
) -> None:
    tenants = [*policy_document()["tenants"], {"name": "team-c/eve", "tier": "standard"}]
    eve = {"Authorization": "Bearer tg-key-of-eve"}
    async with guarded.chat(headers=eve) as response:
        assert response.status == 401
    keys = {BOB: KEYS[BOB], "team-c/eve": "tg-key-of-eve"}
    assert (await put(guarded, 2, tenants=tenants, keys=keys))[0] == 200
    async with guarded.chat(headers=eve) as response:
        assert response.status == 200
    async with guarded.chat(tenant=ALICE) as response:
        assert response.status == 401


async def test_revocation_ends_what_is_queued_and_not_what_runs(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    tier = {"max_in_flight": 1}
    sidecar = await start_sidecar(policy=policy_document(tier=tier))
    go = asyncio.Event()

    async def answer_when_told(connection: Any) -> None:
        request = engine.requests[-1]
        await go.wait()
        await answer_well(request)(connection)

    engine.script = answer_when_told
    running = asyncio.create_task(_status(sidecar))
    await until(lambda: engine.busy == 1)
    queued = asyncio.create_task(_status(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    assert (await put(sidecar, 2, headers={}, tier=tier, keys={BOB: KEYS[BOB]}))[0] == 200
    assert await asyncio.wait_for(queued, 5) == 401
    go.set()
    assert await running == 200
    assert sidecar.outcomes(ALICE) == {"completed": 1, "unauthenticated": 1}


async def test_a_key_revoked_while_its_body_comes_is_not_served(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar()
    body = json.dumps(chat_body()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.sidecar.port)
    writer.write(raw_head("Expect: 100-continue", f"Content-Length: {len(body)}"))
    await reader.readuntil(b"\r\n\r\n")
    assert (await put(sidecar, 2, headers={}, keys={BOB: KEYS[BOB]}))[0] == 200
    writer.write(body)
    assert (await reader.readline()).split()[1] == b"401"
    writer.close()
    assert not engine.requests


async def test_a_tenant_that_goes_loses_its_place(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    tier = {"max_in_flight": 1}
    sidecar = await start_sidecar(policy=policy_document(tier=tier))
    engine.script = stall
    running = asyncio.create_task(_status(sidecar))
    await until(lambda: engine.busy == 1)
    queued = asyncio.create_task(_status(sidecar))
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 2)
    tenants = [{"name": BOB, "tier": "standard"}]
    assert (await put(sidecar, 2, headers={}, tier=tier, tenants=tenants))[0] == 200
    assert await asyncio.wait_for(queued, 5) == 403
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sidecar.settled()
    assert ALICE not in str(await metrics(sidecar))


# --- files


async def test_files_are_followed_and_the_higher_generation_wins(
    sidecar: SidecarUnderTest, tmp_path: Path
) -> None:
    write(tmp_path / "policy.json", policy_document(4))
    await asyncio.sleep(0.15)
    assert generation(sidecar) == 1  # policy of 4, keys of 1: a mixed set
    assert sidecar.runtime.policy_error is not None
    write(tmp_path / "keys.json", keys_document(4))
    await until(lambda: generation(sidecar) == 4)
    assert sidecar.runtime.policy_error is None
    assert (await put(sidecar, 6, headers={}))[0] == 200
    write(tmp_path / "keys.json", keys_document(5))
    write(tmp_path / "policy.json", policy_document(5))
    await asyncio.sleep(0.2)
    assert generation(sidecar) == 6


async def test_an_unreadable_file_leaves_the_last_good_one(
    sidecar: SidecarUnderTest, tmp_path: Path
) -> None:
    (tmp_path / "policy.json").write_text("{")
    await until(lambda: sidecar.runtime.policy_error)
    await asyncio.sleep(0.2)
    assert sidecar.runtime.policy_reload_failures == 1  # one failure, however often seen
    async with sidecar.chat() as response:
        assert response.status == 200
    (tmp_path / "policy.json").unlink()
    await asyncio.sleep(0.1)
    async with sidecar.chat() as response:
        assert response.status == 200


async def test_the_files_are_followed_on_after_a_defect(
    sidecar: SidecarUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failed = asyncio.Event()

        def fail(*_: object) -> None:
            failed.set()
            raise RuntimeError

        patched.setattr("tidegate_sidecar.policy_files.signature", fail)
        await asyncio.wait_for(failed.wait(), 5)
    write(tmp_path / "keys.json", keys_document(2))
    write(tmp_path / "policy.json", policy_document(2))
    await until(lambda: generation(sidecar) == 2)


async def test_same_generation_with_another_content_is_reported(
    sidecar: SidecarUnderTest, tmp_path: Path
) -> None:
    write(tmp_path / "policy.json", policy_document(1, tier={"priority": 3}))
    await until(lambda: sidecar.runtime.policy_error)
    assert "another content" in str(sidecar.runtime.policy_error)


def swap(volume: Path, name: str, documents: dict[str, Any]) -> None:
    """Replace a projected volume's content as a kubelet does."""
    data = volume / name
    data.mkdir(parents=True)
    for file, document in documents.items():
        (data / file).write_text(json.dumps(document))
    link = volume / "..data_tmp"
    link.symlink_to(name)
    os.replace(link, volume / "..data")
    for file in documents:
        if not (volume / file).is_symlink():
            (volume / file).symlink_to(f"..data/{file}")


def shards(generation: int, counts: tuple[int, int] = (2, 2)) -> dict[str, Any]:
    tenants = policy_document()["tenants"]
    documents: dict[str, Any] = {}
    for index in range(2):
        shard = {"index": index, "count": counts[index]}
        policy = policy_document(generation, tenants=[tenants[index]], shard=shard)
        if index:
            policy["tiers"] = []
        tenant = tenants[index]["name"]
        keys = {**keys_document(generation, {tenant: KEYS[tenant]}), "shard": shard}
        documents[f"policy-{index:02}.json"] = policy
        documents[f"keys-{index:02}.json"] = keys
    return documents


async def test_shards_of_a_projected_volume(start_sidecar: StartSidecar, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    swap(volume, "..1", shards(1))
    sidecar = await start_sidecar(policy_path=volume, keys_path=volume)
    for tenant in (ALICE, BOB):
        async with sidecar.chat(tenant=tenant) as response:
            assert response.status == 200
    mixed = {**shards(2), "keys-01.json": shards(3)["keys-01.json"]}
    swap(volume, "..2", mixed)
    await until(lambda: sidecar.runtime.policy_error)
    assert generation(sidecar) == 1
    swap(volume, "..3", shards(3))
    await until(lambda: generation(sidecar) == 3)
    for tenant in (ALICE, BOB):
        async with sidecar.chat(tenant=tenant) as response:
            assert response.status == 200


# --- metrics and status


async def test_every_series_is_there_at_zero(sidecar: SidecarUnderTest) -> None:
    samples = await metrics(sidecar)
    for outcome in Outcome:
        for tenant in KEYS:
            labels = (("outcome", outcome.value), ("tenant", tenant), ("tier", "standard"))
            assert samples["tidegate_requests_total", labels] == 0
    assert samples["tidegate_queue_size", (("tier", "standard"),)] == 0
    assert samples["tidegate_request_ttft_seconds_count", (("tier", "standard"),)] == 0
    assert samples["tidegate_policy_reload_failures_total", ()] == 0


async def test_what_happened_is_counted_once_for_status_and_metrics(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.metrics = (
        'vllm:num_requests_running{model_name="test-model"} 3\n'
        'vllm:num_requests_waiting{model_name="test-model"} 0\n'
        'vllm:kv_cache_usage_perc{model_name="test-model"} 0.25\n'
    )
    await until(lambda: sidecar.runtime.engine_figures.running == 3)
    async with sidecar.chat() as response:
        await response.read()
    async with sidecar.chat(priority=1) as response:
        assert response.status == 400
    status = await get_status(sidecar)
    samples = await metrics(sidecar)
    (tenant,) = status.tenants
    assert tenant.requests_total == {"completed": 1, "malformed": 1}
    assert tenant.last_refusal is not None
    assert tenant.last_refusal.reason == "malformed"
    assert tenant.service_tokens_total == 9
    assert status.tiers[0].ttft_seconds.counts
    assert sum(status.tiers[0].ttft_seconds.counts) == 1
    assert status.engine is not None
    assert (status.engine.running, status.engine.kv_used_ratio) == (3, 0.25)
    labels = (("outcome", "completed"), ("tenant", ALICE), ("tier", "standard"))
    assert samples["tidegate_requests_total", labels] == 1
    assert samples["tidegate_service_tokens_total", labels[1:]] == 9
    assert samples["tidegate_tenant_ttft_seconds_count", labels[1:]] == 1
    first_token = samples["tidegate_tenant_ttft_seconds_sum", labels[1:]]
    assert first_token == samples["tidegate_request_ttft_seconds_sum", labels[2:]]
    others = (("tenant", BOB), ("tier", "standard"))
    assert samples["tidegate_tenant_ttft_seconds_count", others] == 0
    async with sidecar.client.get(sidecar.admin_url + "/engine/metrics") as response:
        assert await response.text() == engine.metrics


async def test_tenants_beyond_the_bound_are_other(
    start_sidecar: StartSidecar,
) -> None:
    tenants = [{"name": f"n/{number:04}", "tier": "standard"} for number in range(1100)]
    keys = keys_document(keys={"n/0000": "k", "n/1099": "z"})
    sidecar = await start_sidecar(
        policy=policy_document(tenants=tenants), keys=keys, check_other=False
    )
    async with sidecar.chat(headers={"Authorization": "Bearer z"}) as response:
        assert response.status == 200
    samples = await metrics(sidecar)
    labels = (("outcome", "completed"), ("tenant", "other"), ("tier", "standard"))
    assert samples["tidegate_requests_total", labels] == 1
    assert len({dict(labels).get("tenant") for _, labels in samples}) == 1000 + len(
        ("", "other", None)
    )


async def test_no_key_is_exported_or_logged(
    sidecar: SidecarUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    async with sidecar.chat() as response:
        await response.read()
    exported = str(await metrics(sidecar)) + str(await get_status(sidecar)) + caplog.text
    for key in KEYS.values():
        assert key not in exported
        assert sha256(key) not in exported


async def metrics(
    sidecar: SidecarUnderTest,
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    url = sidecar.admin_url + "/metrics"
    async with sidecar.client.get(url, headers=AUTHORIZED) as response:
        assert response.status == 200
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def get_status(sidecar: SidecarUnderTest) -> SidecarStatus:
    url = sidecar.admin_url + "/status"
    async with sidecar.client.get(url, headers=AUTHORIZED) as response:
        return loads(SidecarStatus, await response.read())


async def _status(sidecar: SidecarUnderTest) -> int:
    async with sidecar.chat() as response:
        await response.read()
        return int(response.status)
