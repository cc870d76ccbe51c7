"""Autoscaling by the operator: on a real API server, with sidecars that say how long they wait."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, Pods, eventually
from tidegate_operator.slo import rule_groups

from testbed.prometheus import backfill_burn, prometheus_programs, running_prometheus, until_true
from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy, TierStatus

pytestmark = pytest.mark.integration

PROMISE = {"objectives": [{"metric": "TimeToFirstToken", "target": "500ms", "ratio": "99"}]}


async def replicas(cluster: OperatorCluster, namespace: str) -> int:
    found = await cluster.get("StatefulSet", "chat", namespace)
    return int(found["spec"]["replicas"]) if found else -1


async def becomes(cluster: OperatorCluster, namespace: str, count: int) -> None:
    async def check() -> bool:
        return await replicas(cluster, namespace) == count

    await eventually(check, f"{count} replicas")


def waiting(pods: Pods, name: str, queued: int) -> None:
    """What the sidecars say from now on: so many of the tier wait, and none is dispatched."""
    for sidecar in pods.sidecars.values():
        sidecar.tiers = (TierStatus(name, queued=queued),)


DATA = {
    "whole": ("0", 0.0),
    "not-a-number": ("NaN", 0.0),
    "an-hour-old": ("0", 3600.0),
}
"""Of each path of the played Prometheus: the value of every series, and its age in seconds."""
HELD = {
    "nothing": "Prometheus has no series for TimeToFirstToken",
    "not-a-number": "Prometheus has no number for TimeToFirstToken",
    "an-hour-old": "is too old",
}
"""What is said of what that path has."""


@contextlib.asynccontextmanager
async def played_prometheus(tier_name: str) -> AsyncIterator[str]:
    """Its address; what follows in the path says what it has of the promise, and no alert fires."""
    labels = {"tier": tier_name, "objective": "TimeToFirstToken"}

    async def answer(request: web.Request) -> web.Response:
        asked, data = request.query["query"], request.match_info["data"]
        samples = []
        if data in DATA and not asked.startswith("ALERTS"):
            value, age_seconds = DATA[data]
            if asked.startswith("timestamp("):
                value = str(time.time() - age_seconds)
            samples.append({"metric": labels, "value": [time.time(), value]})
        found = {"resultType": "vector", "result": samples}
        return web.json_response({"status": "success", "data": found})

    app = web.Application()
    app.router.add_get("/{data}/api/v1/query", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_waits_bring_pods_bounds_take_them_and_missing_data_hold_them(
    cluster: OperatorCluster, namespace: str
) -> None:
    """`replicas` says 1 throughout. A new operator goes on from what there is."""
    name = f"scaled-{namespace}"

    async def apply(maximum: int, **more: Any) -> None:
        scaling = {"maxPerGroup": maximum, **more.pop("autoscaling", {})}
        tiers = [{"name": name}]
        await cluster.apply(
            pool(namespace=namespace, tiers=tiers, replicas=1, autoscaling=scaling, **more)
        )

    async def condition(*wanted: str) -> str:
        return await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "Autoscaling", *wanted
        )

    await cluster.apply(tier(name, slo=PROMISE), tenant("a", name, namespace=namespace))
    await apply(3)
    async with cluster.pods(namespace) as pods:
        async with cluster.operator():
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            text = await condition("True", "ScalingActive")
            assert "spec.replicas is ignored; 1 pods are wanted" in text
            assert await replicas(cluster, namespace) == 1
            waiting(pods, name, 5)
            await becomes(cluster, namespace, 2)
            waiting(pods, name, 0)
            obj = await cluster.get("ServingPool", "chat", namespace)
            assert obj is not None
            assert obj["spec"]["replicas"] == 1
            scaling = obj["status"]["scaling"]
            assert scaling["desired"] == 2
            (step,) = scaling["history"]
            assert (step["group"], step["fromReplicas"], step["toReplicas"]) == ("main", 1, 2)
            assert step["reason"] == "QueueWait"
            assert f"tier {name} waits" in step["message"]

            async def both() -> bool:
                found = await cluster.get("ServingPool", "chat", namespace)
                status = (found or {}).get("status") or {}
                counts = [status.get(what) for what in ("desiredReplicas", "readyReplicas")]
                return counts == [2, 2]

            await eventually(both, "both pods to serve")
        async with cluster.operator(), played_prometheus(name) as address:

            async def held(why: str) -> bool:
                found = await cluster.condition("ServingPool", "chat", namespace, "Autoscaling")
                return bool(found and found[:2] == ("False", "ScalingHeld") and why in found[2])

            said = {f"{address}/{data}": why for data, why in HELD.items()}
            for asked, why in {"http://127.0.0.1:9": "does not answer", **said}.items():
                await apply(3, observability={"prometheus": asked})
                await eventually(lambda: held(why), f"a condition that says: {why}")  # noqa: B023
                assert await replicas(cluster, namespace) == 2
                obj = await cluster.get("ServingPool", "chat", namespace)
                assert obj is not None
                assert obj["status"]["scaling"]["history"] == [step]
            await apply(3, observability={"prometheus": f"{address}/whole"})
            await condition("True", "ScalingActive")
            await apply(1)
            await becomes(cluster, namespace, 1)
            await condition("True", "ScalingActive")
            await cluster.quiet()
            await cluster.apply(pool(namespace=namespace, tiers=[{"name": name}], replicas=3))
            await becomes(cluster, namespace, 3)

            async def unscaled() -> bool:
                found = await cluster.get("ServingPool", "chat", namespace)
                status = (found or {}).get("status") or {}
                kinds = [c["type"] for c in status.get("conditions") or ()]
                return "scaling" not in status and "Autoscaling" not in kinds

            await eventually(unscaled, "nothing that tells of scaling")


async def test_an_alert_of_a_real_prometheus_brings_a_pod(
    cluster: OperatorCluster, namespace: str, tmp_path: Path
) -> None:
    """On a history whose last ten minutes burn the budget: the rules page, and the group grows."""
    name = f"paged-{namespace}"
    programs = prometheus_programs()
    labels = {"namespace": namespace, "tidegate_io_pool": "chat", "tier": name}
    backfill_burn(programs, tmp_path, labels, burning_seconds=600.0)
    promise = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.0)
    groups = rule_groups(namespace, "chat", [TierPolicy(name, slo_objectives=(promise,))], "")
    await cluster.apply(tier(name, slo=PROMISE), tenant("a", name, namespace=namespace))
    async with running_prometheus(programs, tmp_path, groups) as prometheus:
        page = 'ALERTS{alertstate="firing",severity="page"}'
        await until_true(lambda: prometheus.query(page), "a page")
        await cluster.apply(
            pool(
                namespace=namespace,
                tiers=[{"name": name}],
                observability={"prometheus": prometheus.address},
                autoscaling={"maxPerGroup": 2, "signals": ["Alerts"]},
            )
        )
        async with cluster.operator(), cluster.pods(namespace):
            await becomes(cluster, namespace, 2)

            async def step() -> Any:
                found = await cluster.get("ServingPool", "chat", namespace)
                scaling = ((found or {}).get("status") or {}).get("scaling") or {}
                return scaling.get("history")

            (told,) = await eventually(step, "a step in the status")
            assert told["reason"] == "Alerts"
            assert f"TidegateErrorBudgetBurn (page) of tier {name}" in told["message"]


async def test_without_autoscaling_a_horizontal_autoscaler_sets_the_pools_scale(
    cluster: OperatorCluster, namespace: str
) -> None:
    """As far as it goes without a metrics API: to its minReplicas."""
    name = f"hpa-{namespace}"
    await cluster.apply(
        tier(name),
        tenant("a", name, namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": name}], replicas=1),
    )
    target = {"apiVersion": "tidegate.io/v1alpha1", "kind": "ServingPool", "name": "chat"}
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        await cluster.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "chat", "namespace": namespace},
                "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3},
            }
        )
        await becomes(cluster, namespace, 2)
        obj = await cluster.get("ServingPool", "chat", namespace)
        assert obj is not None
        assert obj["spec"]["replicas"] == 2
