"""Leaders die, the API server goes away, pods roll: what was accepted is answered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Cluster, Scene, condition
from tidegate.local_cluster.cluster import LocalCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

OPERATOR_NAMESPACE = "tidegate-system"
OPERATOR_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:tidegate-operator"
DEPLOYMENT = "deployment/tidegate-operator"
BACK_OFF = 360.0
"""Seconds until a container that was killed again and again is started once more: 300 at most."""


def operator_processes() -> dict[str, psutil.Process]:
    """The operator's processes by pod name, found as any process of this machine."""
    found = {}
    for process in psutil.process_iter():
        try:
            if "tidegate_operator" in process.cmdline():
                found[process.environ().get("POD_NAME", "")] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def own_operators(cluster: Cluster) -> dict[str, psutil.Process]:
    """Only those of this cluster's pods: another cluster may run beside it."""
    pods = cluster.get("pods", "-n", OPERATOR_NAMESPACE)["items"]
    names = {pod["metadata"]["name"] for pod in pods}
    return {name: process for name, process in operator_processes().items() if name in names}


def lease_holder(cluster: Cluster) -> str:
    lease = cluster.get("lease", "tidegate-operator", "-n", OPERATOR_NAMESPACE)
    return str(lease["spec"].get("holderIdentity") or "")


def status_written(scene: Scene, since_generation: int) -> bool:
    pool = scene.pool_object()
    return bool(pool["status"]["observedGeneration"] > since_generation) and (
        condition(pool, "Ready").get("status") == "True"
    )


def touch(scene: Scene) -> int:
    """A harmless change of the pool's spec; the generation before it."""
    pool = scene.pool_object()
    generation = int(pool["metadata"]["generation"])
    mode = pool["spec"].get("schedulingMode", "Tidegate")
    other = "FirstComeFirstServed" if mode == "Tidegate" else "Tidegate"
    patch = json.dumps({"spec": {"schedulingMode": other}})
    scene.cluster.kubectl(
        "patch", "spool", "pool", "-n", scene.namespace, "--type=merge", "-p", patch
    )
    return generation


async def test_the_operator_and_the_api_server_may_die(
    make_scene: Callable[..., Scene], cluster: Cluster, local_cluster: LocalCluster
) -> None:
    scene = make_scene(
        "e2e-chaos",
        tiers={"t": {}},
        tenants={"a": {"tier": "t"}},
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
    )
    restarts = await asyncio.to_thread(scene.container_restarts)
    stop = asyncio.Event()
    async with TenantClient(scene.endpoint, scene.key("a"), scene.model) as client:

        async def keep_streaming() -> None:
            while not stop.is_set():
                await client.complete(32, 300, stream=True)

        streams = [asyncio.create_task(keep_streaming()) for _ in range(4)]
        await asyncio.to_thread(_kill_the_leader, cluster, scene)
        await asyncio.to_thread(_kill_both, cluster, scene)
        await _without_the_api_server(cluster, local_cluster, scene, seconds=30)
        stop.set()
        await asyncio.gather(*streams)

    assert client.requests
    assert [sent for sent in client.requests if not sent.complete] == []
    assert scene.container_restarts() == restarts


def _kill_the_leader(cluster: Cluster, scene: Scene) -> None:
    holder = lease_holder(cluster)
    processes = own_operators(cluster)
    (leader,) = [name for name in processes if name in holder]
    processes[leader].send_signal(signal.SIGKILL)
    cluster.until("another leader", lambda: lease_holder(cluster) not in ("", holder), 60)
    generation = touch(scene)
    cluster.until("status written", lambda: status_written(scene, generation), 60)


def _kill_both(cluster: Cluster, scene: Scene) -> None:
    cluster.until("two operators", lambda: len(own_operators(cluster)) == 2, BACK_OFF)
    for process in own_operators(cluster).values():
        process.send_signal(signal.SIGKILL)
    generation = touch(scene)
    cluster.until("status written", lambda: status_written(scene, generation), 180)


async def _without_the_api_server(
    cluster: Cluster, local_cluster: LocalCluster, scene: Scene, seconds: float
) -> None:
    plane = local_cluster.control_plane
    await asyncio.to_thread(plane.stop_component, "kube-apiserver", kill=True)
    # The outage itself is the test: nothing to wait for but its end.
    await asyncio.sleep(seconds)
    # From the main thread: the server dies with the thread that started it.
    plane.start_component("kube-apiserver")
    generation = await asyncio.to_thread(touch, scene)
    await asyncio.to_thread(
        cluster.until, "status written", lambda: status_written(scene, generation), 120
    )


async def test_evictions_and_a_rolling_restart_lose_no_accepted_request(
    make_scene: Callable[..., Scene],
) -> None:
    """With an engine that aborts on SIGTERM; a refusal that says so is not a loss."""
    scene = make_scene(
        "e2e-roll",
        tiers={"t": {}},
        tenants={"a": {"tier": "t"}},
        engine_args=["--max-num-seqs=16"],
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
        replicas=2,
    )
    stop = asyncio.Event()
    async with TenantClient(scene.endpoint, scene.key("a"), scene.model) as client:

        async def keep_sending(stream: bool) -> None:
            while not stop.is_set():
                sent = await client.complete(32, 150, stream=stream)
                if sent.status != 200:
                    await asyncio.sleep(0.2)

        loops = [asyncio.create_task(keep_sending(bool(i % 2))) for i in range(24)]
        await asyncio.to_thread(_evict_both, scene)
        evicted = len(client.requests)
        await asyncio.to_thread(_restart_both, scene)
        stop.set()
        await asyncio.gather(*loops)

    assert len(client.requests) > evicted > 0
    assert sum(sent.complete for sent in client.requests) > 100
    assert [sent for sent in client.requests if sent.lost] == []


def _evict_both(scene: Scene) -> None:
    """As a drain of their node does: one goes, and until it is back the budget keeps the other."""
    cluster, place = scene.cluster, ("-n", scene.namespace)

    def may_go() -> bool:
        status = cluster.get("pdb", "pool", *place).get("status", {})
        return bool(status.get("disruptionsAllowed") == 1)

    cluster.until("one pod may be away", may_go, 60)
    before = _uids(scene)
    assert scene.evict("pool-0") == ""
    refused = scene.evict("pool-1")
    assert "(TooManyRequests)" in refused
    assert "violate the pod's disruption budget" in refused
    _until_replaced(scene, {before["pool-0"]})
    assert _uids(scene)["pool-1"] == before["pool-1"]


def _restart_both(scene: Scene) -> None:
    cluster, before = scene.cluster, set(_uids(scene).values())
    restart = ("rollout", "restart", "statefulset/pool", "-n", scene.namespace)
    cluster.kubectl(*restart)
    _until_replaced(scene, before)


def _uids(scene: Scene) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.pods()}


def _until_replaced(scene: Scene, gone: set[str]) -> None:
    """Until two pods serve, and none of these."""

    def replaced() -> bool:
        pods = scene.pods()
        serving = [pod for pod in pods if condition(pod, "Ready").get("status") == "True"]
        return len(serving) == 2 and not gone & {pod["metadata"]["uid"] for pod in pods}

    scene.cluster.until("two pods serve, and none of those before", replaced, 240)


def test_a_namespace_goes_while_the_operator_is_down(cluster: Cluster) -> None:
    scene = Scene(cluster, "e2e-gone", tiers={"t": {}}, tenants={"a": {"tier": "t"}})
    scene.up()
    cluster.kubectl("scale", DEPLOYMENT, "-n", OPERATOR_NAMESPACE, "--replicas=0")
    try:
        cluster.until("no operator", lambda: not own_operators(cluster), 60)
        scene.down()
    finally:
        cluster.kubectl("scale", DEPLOYMENT, "-n", OPERATOR_NAMESPACE, "--replicas=2")
        cluster.kubectl("rollout", "status", DEPLOYMENT, "-n", OPERATOR_NAMESPACE, "--timeout=120s")
    assert cluster.try_kubectl("get", "ns", scene.namespace).returncode != 0


def test_a_quiet_cluster_is_written_to_by_nobody(
    cluster: Cluster, local_cluster: LocalCluster
) -> None:
    """From the audit log: in 60 s no write of the operator but its Lease; also after a restart."""
    _settle(cluster)
    assert _writes_in_a_minute(local_cluster) == []
    for process in own_operators(cluster).values():
        os.kill(process.pid, signal.SIGKILL)
    cluster.until("two operators", lambda: len(own_operators(cluster)) == 2, BACK_OFF)
    _settle(cluster)
    assert _writes_in_a_minute(local_cluster) == []


def _settle(cluster: Cluster) -> None:
    """Until a leader works and the figures of earlier tests have had their last write."""
    cluster.kubectl("rollout", "status", DEPLOYMENT, "-n", OPERATOR_NAMESPACE, "--timeout=120s")
    cluster.until("a leader", lambda: lease_holder(cluster), 60)
    versions: dict[str, str] = {}
    since = time.monotonic()

    def quiet() -> bool:
        nonlocal versions, since
        kinds = "servingpools.tidegate.io,tenants.tidegate.io,tenanttiers.tidegate.io"
        items = cluster.get(kinds, "-A")["items"]
        now = {i["metadata"]["uid"]: i["metadata"]["resourceVersion"] for i in items}
        if now != versions:
            versions, since = now, time.monotonic()
        return time.monotonic() - since > 30

    cluster.until("no status changes for 30 s", quiet, 400)


def _writes_in_a_minute(local_cluster: LocalCluster) -> list[str]:
    log = local_cluster.control_plane.audit_log
    start = log.stat().st_size
    time.sleep(60)
    with log.open("rb") as file:
        file.seek(start)
        lines = [json.loads(line) for line in file.read().splitlines() if line]
    return [
        f"{line['verb']} {line['objectRef']}"
        for line in lines
        if line["user"]["username"] == OPERATOR_USER
        and line["verb"] in ("create", "update", "patch", "delete", "deletecollection")
        and line["objectRef"]["resource"] != "leases"
    ]
