"""O20, R16: of custom resources the operator writes the status alone, whoever else writes there."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import kopf
import pytest
from support.custom_resources import pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually
from tidegate_operator.kube import connection_info, load_configuration

pytestmark = pytest.mark.integration


async def test_applying_the_same_file_again_changes_nothing(
    cluster: OperatorCluster, namespace: str
) -> None:
    engine = {
        "image": "vllm/vllm-openai:v0.32.0",
        "resources": {"requests": {"cpu": "1000m", "memory": "0.5Gi"}},
        "startupTimeout": "60s",
        "drainTimeout": "1m0s",
    }
    objects = [
        tier("mine0", queue={"maxWait": "60s"}),
        tenant("a", "mine0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "mine0"}], engine=engine),
    ]
    await cluster.apply(*objects)
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        await cluster.condition_becomes("Tenant", "a", namespace, "Ready", "True")
        names = [("TenantTier", "mine0", None), ("Tenant", "a", namespace)]
        names.append(("ServingPool", "chat", namespace))
        for given, where in zip(objects, names, strict=True):
            before = await cluster.get(*where)
            assert before is not None
            assert before["spec"] == given["spec"]
            ours = [
                entry
                for entry in before["metadata"]["managedFields"]
                if entry["manager"] == "tidegate-operator"
            ]
            assert {entry.get("subresource") for entry in ours} == {"status"}
            await cluster.apply(given)
            after = await cluster.get(*where)
            assert after is not None
            assert after["metadata"]["generation"] == before["metadata"]["generation"]
            assert after["spec"] == before["spec"]


async def test_a_second_kopf_operator_with_its_defaults_starts_no_war(
    cluster: OperatorCluster, namespace: str
) -> None:
    """R16: it puts its finalizer and annotations on our objects; we leave them alone."""
    await cluster.apply(
        tier("war0"),
        tenant("a", "war0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "war0"}]),
    )
    registry = kopf.OperatorRegistry()
    configuration = await load_configuration(str(cluster.plane.kubeconfig))

    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_info(configuration)

    def seen(**_: Any) -> None:
        return None

    kopf.on.login(registry=registry)(login)
    for decorate in (kopf.on.create, kopf.on.update, kopf.on.delete):
        decorate("tidegate.io", "v1alpha1", "servingpools", registry=registry)(seen)  # type: ignore[operator]
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    stop = threading.Event()

    async def other() -> None:
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            namespaces=[namespace],
            stop_flag=stop,
        )
        await asyncio.sleep(0.25)

    thread = threading.Thread(target=lambda: asyncio.run(other()), daemon=True)
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
        thread.start()

        async def finalizer() -> bool:
            obj = await cluster.get("ServingPool", "chat", namespace)
            return bool(obj and obj["metadata"].get("finalizers"))

        try:
            await eventually(finalizer, "the other operator's finalizer")
            await cluster.quiet()
            audit = cluster.audit()
            await asyncio.sleep(5)
            assert audit.writes() == []
            assert not [w for w in audit.writes("tidegate-admin") if " servingpools " in w]
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, 30)
            freed = await asyncio.to_thread(
                cluster.plane.kubectl,
                "patch",
                "servingpool/chat",
                "-n",
                namespace,
                "--type=merge",
                '-p={"metadata":{"finalizers":null}}',
            )
            assert freed.returncode == 0, freed.stderr
