"""What a person applies reaches the running sidecar within seconds; nothing restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SECONDS_TO_ACT = 5.0
SLACK = 5


async def until_status(scene: Scene, tenant: str, status: int) -> float:
    """Seconds until a request of the tenant is answered with this status."""
    start = time.monotonic()
    async with TenantClient(scene.endpoint, scene.key(tenant), scene.model) as client:
        while True:
            sent = await client.complete(8, 1)
            if sent.status == status:
                return time.monotonic() - start
            assert time.monotonic() - start < SECONDS_TO_ACT * SLACK, sent
            await asyncio.sleep(0.1)


async def test_tenants_come_change_and_go_without_a_restart(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene(
        "e2e-hot",
        tiers={"t": {"tenantOverrides": {"maxWeight": 10}}},
        tenants={"old": {"tier": "t"}},
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
    )
    cluster = scene.cluster
    restarts = scene.container_restarts()
    scene.tenants["new"] = {"tier": "t", "weight": 2}
    async with TenantClient(scene.endpoint, scene.key("old"), scene.model) as old:
        through_all = asyncio.create_task(old.complete(64, 2_000, stream=True))

        await asyncio.to_thread(cluster.apply, scene.tenant("new"))
        await until_status(scene, "new", 200)

        before = scene.pool_object()["status"]["policyGeneration"]
        await asyncio.to_thread(cluster.apply, scene.tenant("new", weight=7))
        await asyncio.to_thread(
            cluster.until,
            "a new policy generation",
            lambda: scene.pool_object()["status"]["policyGeneration"] > before,
            SECONDS_TO_ACT * SLACK,
        )

        await asyncio.to_thread(cluster.apply, scene.tenant("new", apiKeys=[]))
        await until_status(scene, "new", 401)

        await asyncio.to_thread(cluster.apply, scene.tenant("old", stop="Hold"))
        await until_status(scene, "old", 503)
        sent = await through_all

    assert sent.complete
    assert scene.container_restarts() == restarts


async def test_a_heavier_weight_than_allowed_is_a_condition_and_changes_nothing(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene("e2e-weight", tiers={"t": {}}, tenants={"a": {"tier": "t"}})
    scene.cluster.apply(scene.tenant("a", weight=50))

    def refused() -> dict[str, str] | None:
        found = condition(
            scene.cluster.get("tenants.tidegate.io", "a", "-n", scene.namespace), "Accepted"
        )
        return found if found.get("status") == "False" else None

    said = scene.cluster.until("Accepted=False", refused, SECONDS_TO_ACT * SLACK)
    assert "weight" in said["message"]
    assert await until_status(scene, "a", 200) < SECONDS_TO_ACT


async def test_status_follows_the_load(make_scene: Callable[..., Scene]) -> None:
    """A pool's status shows a burst within about 20 s of its start, and its end."""
    scene = make_scene(
        "e2e-status",
        tiers={"t": {}},
        tenants={"a": {"tier": "t"}},
        engine_args=["--max-num-seqs=2"],
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
    )

    def waiting() -> int:
        tiers = scene.pool_object()["status"].get("tiers", [])
        return tiers[0].get("queued", 0) if tiers else 0

    async with TenantClient(scene.endpoint, scene.key("a"), scene.model) as client:
        until = time.time() + 40
        loops = [asyncio.create_task(client.keep_sending(until, 50, 200)) for _ in range(20)]
        await asyncio.to_thread(
            scene.cluster.until, "status shows who waits", lambda: waiting() >= 10, 20 * 2
        )
        described = scene.cluster.kubectl("describe", "spool", "pool", "-n", scene.namespace)
        assert "Queued:" in described
        await asyncio.gather(*loops)
    await asyncio.to_thread(
        scene.cluster.until, "status shows nobody waits", lambda: waiting() == 0, 20 * 5
    )
