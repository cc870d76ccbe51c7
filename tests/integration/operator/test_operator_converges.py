"""From custom resources to running pools and back: children, policy, conditions, status."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import digest, pool, tenant, tier
from support.operator_cluster import OperatorCluster, decoded, eventually

pytestmark = pytest.mark.integration


async def test_a_pool_comes_up_and_its_sidecars_get_the_policy(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("up0", priority=1),
        tenant("a", "up0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "up0"}], replicas=2),
    )
    async with cluster.operator(), cluster.pods(namespace) as pods:
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "PolicyApplied", "True")
        await cluster.condition_becomes("Tenant", "a", namespace, "Ready", "True", "Ready")
        await cluster.condition_becomes("TenantTier", "up0", None, "Ready", "True", "Ready")
        # Ready and PolicyApplied speak of the pods that serve: the second may still be starting.
        sidecars = await eventually(
            lambda: len(told := [s for s in pods.sidecars.values() if s.bundle]) == 2 and told,
            "both sidecars have the policy",
        )
        uid = (await cluster.get("Tenant", "a", namespace) or {})["metadata"]["uid"]
        for sidecar in sidecars:
            assert sidecar.bundle.keys.keys == {digest(f"demo-{namespace}-a"): f"{namespace}/a"}
            assert sidecar.bundle.policy.tenants[0].cache_scope == f"tenant/{uid}"
        admin = await cluster.get("Secret", "chat-admin", namespace)
        assert admin is not None
        tokens = {token for sidecar in pods.sidecars.values() for token in sidecar.tokens}
        assert tokens == {decoded(admin)["token"]}
        salt = await cluster.get("Secret", "chat-cache-salt", namespace)
        assert salt is not None
        assert len(decoded(salt)["key"]) == 43
        assert decoded(salt)["key"] not in tokens

        async def serving() -> Any:
            found = (await cluster.get("ServingPool", "chat", namespace) or {})["status"]
            return found if (found["replicas"], found["readyReplicas"]) == (2, 2) else None

        status = await eventually(serving, "two pods of two serve")
        assert status["addresses"] == [f"http://chat.{namespace}.svc:8000"]
        assert status["observedGeneration"] == 1
