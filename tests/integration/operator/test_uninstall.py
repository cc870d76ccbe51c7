"""Whatever is removed first, nothing of Tidegate is left, and the operator goes on meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import ROOT, OperatorCluster, eventually

from tidegate.local_cluster.deploy import Source, apply_crds

pytestmark = pytest.mark.integration

CHILDREN = "statefulsets,services,serviceaccounts,secrets,networkpolicies,poddisruptionbudgets,pods"
OWNED = "tidegate.io/pool"
CLUSTER_WIDE = "clusterroles,clusterrolebindings,namespaces,crds"


class Installation:
    """What a user does to it with kubectl."""

    def __init__(self, cluster: OperatorCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def kubectl(self, *arguments: str) -> str:
        done = await asyncio.to_thread(self._cluster.plane.kubectl, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def again(self) -> None:
        """As at first, with a pool that is served."""
        await asyncio.to_thread(apply_crds, self._cluster.plane.kubectl, Source(ROOT))
        await self.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests"))
        await self._cluster.apply(
            tier("leaving0"),
            tenant("a", "leaving0", namespace=self._namespace),
            pool(namespace=self._namespace, tiers=[{"name": "leaving0"}]),
        )

    async def served(self) -> None:
        await self._cluster.condition_becomes("Tenant", "a", self._namespace, "Ready", "True")
        await self._cluster.condition_becomes(
            "ServingPool", "chat", self._namespace, "Ready", "True"
        )

    async def remove(self, *what: str) -> None:
        await self.kubectl("delete", *what, "--wait=true", "--timeout=60s")

    async def children_are_collected(self) -> None:
        async def none() -> bool:
            left = await self.kubectl(
                "get", CHILDREN, "-n", self._namespace, "-l", OWNED, "-o", "name"
            )
            return not left.strip()

        await eventually(none, "the children are gone", 60)

    async def left(self) -> list[str]:
        """Of the installation, cluster-wide."""
        found = json.loads(await self.kubectl("get", CLUSTER_WIDE, "-o", "json"))
        names = [f"{obj['kind']}/{obj['metadata']['name']}" for obj in found["items"]]
        return [name for name in names if "tidegate" in name]


async def test_nothing_is_left_whatever_goes_first(
    cluster: OperatorCluster, namespace: str
) -> None:
    here = Installation(cluster, namespace)
    manifests, crds = ("-k", str(ROOT / "manifests")), ("-k", str(ROOT / "crds"))
    await here.again()
    try:
        # The CRDs first, with all objects in them, while the operator runs; it goes on when they
        # come back.
        async with cluster.pods(namespace), cluster.operator(resync_seconds=2.0):
            await here.served()
            await here.remove(*crds)
            await here.children_are_collected()
            await here.again()
            await here.served()
            # The objects' own namespace first.
            await here.remove("namespace", namespace)
            await cluster.condition_becomes("TenantTier", "leaving0", None, "Ready", "True")
        await here.remove(*manifests)
        await here.remove(*crds)
        assert await here.left() == []
        # The operator first: nobody is left who could take a finalizer away.
        await here.kubectl("create", "namespace", namespace)
        cluster.forget_operator_credentials()
        await here.again()
        async with cluster.pods(namespace), cluster.operator():
            await here.served()
        await here.remove(*manifests)
        await here.remove(*crds)
        await here.children_are_collected()
        assert await here.left() == []
    finally:
        await here.again()
        await here.remove("tenanttier", "leaving0")
