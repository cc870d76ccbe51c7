"""An operator that is newer than the sidecars of its pools: edits arrive, nothing restarts."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually

from tidegate.scheduling.contracts import POLICY_VERSION

pytestmark = pytest.mark.integration


async def test_a_tier_edit_reaches_sidecars_of_the_version_before(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("old0"),
        tenant("a", "old0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "old0"}]),
    )

    async def stateful_set() -> tuple[Any, Any]:
        found = (await cluster.get("StatefulSet", "chat", namespace) or {})["metadata"]
        return found["uid"], found["generation"]

    async with cluster.operator(), cluster.pods(namespace) as pods:
        pods.reads_policy = POLICY_VERSION - 1
        await cluster.condition_becomes("ServingPool", "chat", namespace, "PolicyApplied", "True")
        (sidecar,) = pods.sidecars.values()
        assert sidecar.bundle.policy.version == POLICY_VERSION - 1
        before = await stateful_set()
        await cluster.apply(tier("old0", priority=7))
        await eventually(
            lambda: [t.priority for t in sidecar.bundle.policy.tiers] == [7], "the edit"
        )
        assert sidecar.bundle.policy.version == POLICY_VERSION - 1

        sidecar.reads_policy = POLICY_VERSION  # its image was replaced
        await eventually(lambda: sidecar.bundle.policy.version == POLICY_VERSION, "the newest")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "PolicyApplied", "True")
        assert await stateful_set() == before
