"""O16: every written field survives the schema; quiet is quiet, also after a restart."""

from __future__ import annotations

import asyncio

import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, Pods, eventually
from tidegate_operator.kube import Json

from tidegate.scheduling.contracts import (
    Histogram,
    KvPoolStatus,
    LimitUse,
    LimitWindow,
    Refusal,
    SloMetric,
    SloStatus,
    TenantStatus,
    TierStatus,
)

pytestmark = pytest.mark.integration

SLO = {"objectives": [{"metric": "TimeToFirstToken", "target": "2s", "ratio": "99.5"}]}
QUIET_SECONDS = 8.0
"""More than a resync and many scrapes of the test's operator."""


OBJECTIVE = {
    "metric": "TimeToFirstToken",
    "requests": 1000,
    "keptPercent": 98,
    "refused": 9,
    "late": 4,
    "targetMs": 2000,
    "promisedPercent": "99.5",
    "attainedPercent": "98.7",
    "budgetLeftPercent": -160,
    "measured": "SidecarStart",
}
LIMIT = {
    "name": "rpm",
    "per": "Minute",
    "usedPercent": 97,
    "requests": 10,
    "requestsUsed": 9,
    "tokens": 1_000,
    "tokensUsed": 970,
}


def serve_some(pods: Pods, namespace: str) -> None:
    """Each sidecar has served and refused requests, broken a promise, and goes on holding some."""
    slow = Histogram((0.1, 1.0), (50, 40, 10))
    for sidecar in pods.sidecars.values():
        sidecar.started_at += 3600
        sidecar.kv_pools = (KvPoolStatus("", 100, 120, 20),)
        sidecar.tiers = (
            TierStatus(
                "quiet0",
                queued=2,
                running=3,
                service_tokens_total=900,
                requests_total={"completed": 90, "queue_full": 4},
                queue_seconds=slow,
                ttft_seconds=slow,
                duration_seconds=slow,
                inter_token_seconds=slow,
                slo=(SloStatus(SloMetric.TIME_TO_FIRST_TOKEN, 1000, 987, 9),),
                preemptions_total=3,
                vft_skew_flagged_total=2,
                drafted_tokens_total=100,
                accepted_tokens_total=64,
                kv_held_blocks=120,
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
                last_refusal=Refusal("rate_limited", 1_700_000_000.0, "rpm"),
                ttft_seconds=slow,
                limits=(LimitUse("rpm", LimitWindow.MINUTE, 10, 9, 1_000, 970),),
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
        tier("quiet0", slo=SLO),
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
            assert of_tenant["lastRefusal"]["reason"] == "rate_limited"
            assert of_tenant["lastRefusal"]["limit"] == "rpm"
            assert of_tenant["limitSummary"] == "rpm 97%"
            assert of_tenant["limits"] == [LIMIT]
            (refused,) = of_pool["refusedTenants"]
            assert (refused["refused"], refused["why"]) == (4, "4 queue_full")
            for row, pools in ((of_pool["tiers"][0], {}), (of_tier, {"pool": f"{namespace}/chat"})):
                assert row["objectives"] == [OBJECTIVE | pools]
                assert row["kv"] == {"heldBlocks": 120, "quotaBlocks": 100, "borrowedBlocks": 20}
                told = (row["draftAcceptancePercent"], row["preemptions"], row["vftSkewFlagged"])
                assert told == (64, 3, 2)
                assert row["endToEnd"] == row["interToken"] == {"p50Ms": 100, "p99Ms": 1000}
            for kind, name, where in (
                ("ServingPool", "chat", namespace),
                ("TenantTier", "quiet0", None),
            ):
                missed = await cluster.condition_becomes(
                    kind, name, where, "SLOMet", "False", "ObjectiveMissed"
                )
                assert "98.7 percent within 2 s" in missed
                await cluster.condition_becomes(kind, name, where, "Ready", "True")
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
        await nor_does_a_restart_before_a_whole_window_was_seen(cluster, namespace)


async def nor_does_a_restart_before_a_whole_window_was_seen(
    cluster: OperatorCluster, namespace: str
) -> None:
    """Of sidecars that have run, and done nothing, for longer than figures look back."""
    short = {"figures_window_seconds": 3.0}

    async def idle() -> bool:
        of_pool, _, of_tier = await statuses(cluster, namespace)
        rows = (*(of_pool.get("tiers") or ()), of_tier)
        return all(row.get("busyPercent") == 0 and "ttft" not in row for row in rows)

    async with cluster.operator(**short):
        await eventually(idle, "figures of a quiet window")
        await cluster.quiet()
    before, audit = await statuses(cluster, namespace), cluster.audit()
    async with cluster.operator(**short):
        await asyncio.sleep(QUIET_SECONDS)
    assert audit.writes() == []
    assert await statuses(cluster, namespace) == before
