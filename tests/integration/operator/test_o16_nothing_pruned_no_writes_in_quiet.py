"""O16: every written field survives the schema; quiet is quiet, also after a restart."""

from __future__ import annotations

import asyncio

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, Pods, eventually
from tidegate_operator.kube import Json

from tidegate.scheduling.contracts import Histogram, Refusal, TenantStatus, TierStatus

pytestmark = pytest.mark.integration

QUIET_SECONDS = 8.0
"""More than a resync and many scrapes of the test's operator."""


def serve_some(pods: Pods, namespace: str) -> None:
    """Each sidecar has served and refused requests, and goes on holding some."""
    slow = Histogram((0.1, 1.0), (50, 40, 10))
    for sidecar in pods.sidecars.values():
        sidecar.started_at += 3600
        sidecar.tiers = (
            TierStatus(
                "quiet0",
                queued=2,
                running=3,
                service_tokens_total=900,
                requests_total={"completed": 90, "queue_full": 4},
                queue_seconds=slow,
                ttft_seconds=slow,
            ),
        )
        sidecar.tenants = (
            TenantStatus(
                f"{namespace}/a",
                "quiet0",
                queued=2,
                running=3,
                service_tokens_total=900,
                requests_total={"queue_full": 4},
                last_refusal=Refusal("queue_full", 1_700_000_000.0),
                ttft_seconds=slow,
            ),
        )


async def statuses(cluster: OperatorCluster, namespace: str) -> list[Json]:
    found = [
        await cluster.get("ServingPool", "chat", namespace),
        await cluster.get("Tenant", "a", namespace),
        await cluster.get("TenantTier", "quiet0"),
    ]
    return [(obj or {}).get("status", {}) for obj in found]


async def test_every_field_survives_and_neither_quiet_nor_a_restart_writes(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("quiet0"),
        tenant("a", "quiet0", namespace=namespace),
        pool(
            namespace=namespace,
            tiers=[{"name": "quiet0"}],
            engine={
                "image": "vllm/vllm-openai:v0.32.0",
                "resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}},
                "env": [{"name": "A", "value": "1"}],
            },
        ),
    )
    async with cluster.pods(namespace) as pods:
        async with cluster.operator(figures_window_seconds=100_000.0):
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            serve_some(pods, namespace)

            async def written() -> bool:
                of_pool, of_tenant, of_tier = await statuses(cluster, namespace)
                return all("ttft" in status for status in (of_tenant, of_tier)) and bool(
                    of_pool.get("tenants")
                )

            await eventually(written, "figures in all three")
            of_pool, of_tenant, of_tier = await statuses(cluster, namespace)
            assert of_pool["tierSummary"] == "quiet0 2/3"
            assert of_pool["tiers"][0]["ttft"] == {"p50Ms": 100, "p99Ms": 1000}
            assert of_pool["tenants"][0]["sharePercent"] == 100
            assert of_tenant["refusedSummary"] == "4 queue_full"
            assert of_tenant["lastRefusal"]["reason"] == "queue_full"
            assert of_tenant["pools"] == [f"{namespace}/chat"]
            assert (of_tier["queued"], of_tier["worstPool"]) == (2, f"{namespace}/chat")
            await cluster.quiet()
            before = await statuses(cluster, namespace)
            audit = cluster.audit()
            await asyncio.sleep(QUIET_SECONDS)
            assert audit.writes() == []
        async with cluster.operator(figures_window_seconds=100_000.0):
            await asyncio.sleep(QUIET_SECONDS)
            assert audit.writes() == []
        assert await statuses(cluster, namespace) == before
