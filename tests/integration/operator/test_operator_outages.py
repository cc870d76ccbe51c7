"""Leaders that die, an API server that goes away, ghosts, and rights in some namespaces only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from support.custom_resources import digest, pool, tenant, tier
from support.operator_cluster import QUICK, OperatorCluster, eventually
from tidegate_operator.kube import Kube, load_configuration
from tidegate_operator.metrics import Metrics
from tidegate_operator.process import Process
from tidegate_operator.settings import Settings

from tidegate.local_cluster.control_plane import APISERVER

pytestmark = pytest.mark.integration


async def test_the_second_takes_over_from_a_leader_that_died(
    cluster: OperatorCluster, namespace: str
) -> None:
    timing = {
        "leader_election": True,
        "lease_duration_seconds": 6.0,
        "lease_renew_deadline_seconds": 4.0,
        "lease_retry_seconds": 0.5,
    }
    configuration = await load_configuration(str(cluster.kubeconfig_of_operator()))
    settings = Settings(**(QUICK | timing | {"identity": "first"}))
    first = Process(settings, configuration, Metrics())
    async with Kube(configuration) as kube:
        dying = asyncio.create_task(first.run(kube, asyncio.Event()))
        await eventually(lambda: first.controller, "the first leads")
        async with cluster.operator(**timing, identity="second") as second:
            await asyncio.sleep(2)
            assert second.controller is None
            # As by SIGKILL: nothing of it runs any more, and the Lease was not given up.
            kube.replace = _refuse  # type: ignore[method-assign]
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
            lease = await cluster.get("Lease", "tidegate-operator", "tidegate-system")
            assert lease is not None
            assert lease["spec"]["holderIdentity"].startswith("first_")
            await eventually(lambda: second.controller, "the second leads", 40)
            await cluster.apply(
                tier("lease0"),
                tenant("a", "lease0", namespace=namespace),
                pool(namespace=namespace, tiers=[{"name": "lease0"}]),
            )
            await cluster.condition_becomes("Tenant", "a", namespace, "Ready", "True")
    lease = await cluster.get("Lease", "tidegate-operator", "tidegate-system")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "", "given up at a clean end"


async def _refuse(*_: object) -> None:
    raise RuntimeError("this process is dead")


async def test_an_api_server_that_was_away_and_a_tenant_deleted_unseen(
    cluster: OperatorCluster, namespace: str
) -> None:
    await cluster.apply(
        tier("away0"),
        tenant("a", "away0", namespace=namespace),
        tenant("ghost", "away0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "away0"}]),
    )
    async with cluster.operator(), cluster.pods(namespace) as pods:
        await cluster.condition_becomes("ServingPool", "chat", namespace, "PolicyApplied", "True")
        sidecar = next(iter(pods.sidecars.values()))
        assert sidecar.bundle is not None
        assert len(sidecar.bundle.keys.keys) == 2
        uids = set(pods.sidecars)
        await asyncio.to_thread(cluster.plane.stop_component, APISERVER)
        await asyncio.sleep(30)
        # In this thread: the process ends with the thread that started it.
        cluster.plane.start_component(APISERVER)
        # Before the watches are back: they never hear of it.
        gone = await asyncio.to_thread(
            cluster.plane.kubectl, "delete", "tgt", "ghost", "-n", namespace
        )
        assert gone.returncode == 0, gone.stderr

        def forgotten() -> bool:
            assert sidecar.bundle is not None
            return sidecar.bundle.keys.keys == {digest(f"demo-{namespace}-a"): f"{namespace}/a"}

        await eventually(forgotten, "the deleted tenant's key is gone", 60)
        await cluster.apply(tenant("late", "away0", namespace=namespace))
        await eventually(
            lambda: sidecar.bundle and len(sidecar.bundle.keys.keys) == 2, "the new one", 60
        )
        assert set(pods.sidecars) == uids


async def test_rights_in_one_namespace_are_enough_for_that_one(
    cluster: OperatorCluster, namespace: str, tmp_path: Path
) -> None:
    """Namespaced mode: a RoleBinding in each namespace; one without stops no other."""

    async def kubectl(*arguments: str) -> str:
        done = await asyncio.to_thread(cluster.plane.kubectl, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    account = "tidegate-system:narrow"
    await kubectl("create", "serviceaccount", "narrow", "-n", "tidegate-system")
    try:
        await kubectl(
            "create",
            "clusterrolebinding",
            "narrow",
            "--clusterrole=tidegate-operator-cluster",
            f"--serviceaccount={account}",
        )
        await kubectl(
            "create",
            "rolebinding",
            "narrow",
            "-n",
            namespace,
            "--clusterrole=tidegate-operator-namespaced",
            f"--serviceaccount={account}",
        )
        token = await kubectl("create", "token", "narrow", "-n", "tidegate-system")
        content = yaml.safe_load(cluster.plane.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": token}
        kubeconfig = tmp_path / "narrow.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(content))
        cluster.kubeconfig_of_operator = lambda: kubeconfig  # type: ignore[method-assign]
        await cluster.apply(
            tier("narrow0"),
            tenant("a", "narrow0", namespace=namespace),
            pool(namespace=namespace, tiers=[{"name": "narrow0"}]),
            pool("outside", namespace="default", tiers=[{"name": "narrow0"}]),
        )
        served = (namespace, "default")
        async with cluster.operator(namespaces=served), cluster.pods(namespace):
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            await cluster.apply(tenant("b", "narrow0", namespace=namespace))
            await cluster.condition_becomes("Tenant", "b", namespace, "Ready", "True")
        assert await cluster.get("StatefulSet", "outside", "default") is None
    finally:
        await kubectl("delete", "spool", "outside", "-n", "default", "--ignore-not-found")
        await kubectl("delete", "clusterrolebinding", "narrow", "--ignore-not-found")
        await kubectl("delete", "serviceaccount", "narrow", "-n", "tidegate-system")
