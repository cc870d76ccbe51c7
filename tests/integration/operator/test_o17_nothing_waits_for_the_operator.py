"""O17: with the operator gone, everything can be deleted: there is no finalizer to wait for."""

from __future__ import annotations

import asyncio

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually

pytestmark = pytest.mark.integration


async def test_a_namespace_goes_while_the_operator_is_down_and_takes_the_children_along(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("gone0"),
        tenant("a", "gone0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "gone0"}]),
        pool("second", namespace=namespace, tiers=[{"name": "gone0"}]),
    )
    async with cluster.operator(), cluster.pods(namespace):
        for name in ("chat", "second"):
            await cluster.condition_becomes("ServingPool", name, namespace, "Ready", "True")
    for kind, name in (("ServingPool", "chat"), ("Tenant", "a")):
        obj = await cluster.get(kind, name, namespace)
        assert obj is not None
        assert not {"finalizers", "annotations"} & obj["metadata"].keys()

    async def delete(*what: str) -> None:
        done = await asyncio.to_thread(
            cluster.plane.kubectl, "delete", *what, "--timeout=60s", "--wait=true"
        )
        assert done.returncode == 0, done.stderr

    await delete("servingpool", "second", "-n", namespace)

    async def collected() -> bool:
        left = [
            await cluster.get(kind, "second", namespace)
            for kind in ("StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget")
        ]
        return not any(left) and await cluster.get("Secret", "second-policy-0", namespace) is None

    await eventually(collected, "children are collected", 60)
    assert await cluster.get("StatefulSet", "chat", namespace) is not None
    await delete("namespace", namespace)
