"""O19: the pool's /scale alone says how many; the operator fights nobody over it."""

from __future__ import annotations

import asyncio

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually

pytestmark = pytest.mark.integration


async def test_replicas_follow_scale_and_nothing_else(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("scale0"),
        tenant("a", "scale0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "scale0"}], replicas=1),
    )

    async def kubectl(*arguments: str) -> None:
        done = await asyncio.to_thread(cluster.plane.kubectl, *arguments, "-n", namespace)
        assert done.returncode == 0, done.stderr

    async def replicas() -> int:
        stateful_set = await cluster.get("StatefulSet", "chat", namespace)
        return int(stateful_set["spec"]["replicas"]) if stateful_set else 0

    async def becomes(count: int) -> None:
        async def check() -> bool:
            obj = await cluster.get("ServingPool", "chat", namespace)
            ready = ((obj or {}).get("status") or {}).get("readyReplicas")
            return await replicas() == count == ready

        await eventually(check, f"{count} replicas")

    async with cluster.pods(namespace):
        async with cluster.operator():
            await becomes(1)
            await kubectl("scale", "servingpool/chat", "--replicas=3")
            await becomes(3)
            await kubectl("label", "servingpool/chat", "unrelated=yes")
            await kubectl("scale", "statefulset/chat", "--replicas=5")
            await becomes(3)
        async with cluster.operator():
            await becomes(3)
            await kubectl("scale", "servingpool/chat", "--replicas=0")
            await cluster.condition_becomes(
                "ServingPool", "chat", namespace, "Ready", "Unknown", "ScaledToZero"
            )
    obj = await cluster.get("ServingPool", "chat", namespace)
    assert obj is not None
    assert obj["status"]["selector"] == "tidegate.io/pool=chat,tidegate.io/component=engine"
