"""Pods run where and as their pool says; an upgraded operator restarts none of them.

One pool acts out what a cluster without GPUs, a registry or a CNI can act out: the scheduler's
fields, priority, overhead, claims, variables, podTemplate. Three more never start (no taint is
tolerated, or no node fits): their pods show what the other sources and caches become, and what is
different where nothing is said.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.placed_pools import (
    ANNOTATIONS,
    ANSWER_TOKENS,
    BALANCER_CLASS,
    CONTEXT_TOKENS,
    DISK,
    ENGINE_RESOURCES,
    NAME,
    NAMESPACE,
    OTHER_SIDECAR,
    PASSING,
    POD_MONITORS,
    SIDECAR_RESOURCES,
    TAINT,
    ZONE,
    affinity,
    cluster_objects,
    namespace_objects,
    placed_pool,
    waiting_pools,
)
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import NAMESPACE_LABEL, Cluster, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

NODE = "tidegate-node"
OWN = ("tidegate.io/pool", "tidegate.io/component", "tidegate.io/engine-group")
ACT_SECONDS = 25.0
START_SECONDS = 90.0
OPERATOR = ("deployment/tidegate-operator", "-n", "tidegate-system")
NEWER_SIDECAR = "ghcr.io/tidegate/sidecar:99.0.0"


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """All pools applied at once; nothing is waited for."""
    scene = Scene(cluster, NAMESPACE, tiers={"t": {}}, tenants={"a": {"tier": "t"}})
    others = [obj for obj in scene.objects() if obj["kind"] != "ServingPool"]
    try:
        cluster.kubectl("label", "node", NODE, f"{DISK}=fast")
        cluster.kubectl("taint", "node", NODE, f"{TAINT}=placed:NoSchedule")
        cluster.apply(scene.namespace_object(), *cluster_objects())
        cluster.apply(*namespace_objects(), *others)
        cluster.apply(placed_pool(scene), *waiting_pools(scene))
        yield scene
    finally:
        cluster.kubectl("label", "node", NODE, f"{DISK}-", f"{ZONE}-")
        cluster.try_kubectl("taint", "node", NODE, f"{TAINT}-")
        # One by one, as a namespace whose pods have to end is looked at again only after half of
        # their grace.
        cluster.kubectl("delete", "spool", "--all", "-n", NAMESPACE)
        engines = ("pod", "-l", OWN[0], "-n", NAMESPACE)
        cluster.kubectl("wait", "--for=delete", *engines, "--timeout=90s")
        cluster.kubectl("delete", "pvc,pod", "--all", "-n", NAMESPACE)
        scene.down()
        cluster.kubectl("rollout", "status", *OPERATOR, "--timeout=120s")
        names = [f"priorityclass/{NAME}", f"runtimeclass/{NAME}", f"crd/{POD_MONITORS}"]
        cluster.kubectl("delete", "--ignore-not-found", *names)


def pod_of(scene: Scene, name: str) -> dict[str, Any]:
    """The pod, as soon as it is there."""

    def found() -> dict[str, Any] | None:
        said = scene.cluster.try_kubectl("get", "pod", name, "-n", NAMESPACE, "-o", "json")
        return json.loads(said.stdout) if said.returncode == 0 else None

    pod: dict[str, Any] = scene.cluster.until(f"pod {name}", found, ACT_SECONDS)
    return pod


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == name)
    return found


def engine_of(pod: dict[str, Any]) -> dict[str, Any]:
    return container(pod, "engine")


def until_unscheduled(scene: Scene, name: str, why: str) -> None:
    """The scheduler says of the pod why no node takes it."""

    def told() -> bool:
        scheduled = condition(pod_of(scene, name), "PodScheduled")
        return scheduled.get("status") == "False" and why in scheduled.get("message", "")

    scene.cluster.until(f"{name}: {why}", told, ACT_SECONDS)


def patch_pool(scene: Scene, spec: dict[str, Any]) -> None:
    patch = json.dumps({"spec": spec})
    scene.cluster.kubectl(
        "patch", "spool", "pool", "-n", NAMESPACE, "--type=merge", f"--patch={patch}"
    )


def until_condition(scene: Scene, kind: str, status: str, reason: str = "") -> dict[str, Any]:
    def told() -> dict[str, Any] | None:
        found = condition(scene.pool_object(), kind)
        same = found.get("status") == status and reason in found.get("reason", "")
        return found if same else None

    wanted = f"{kind}={status} {reason}"
    found: dict[str, Any] = scene.cluster.until(wanted, told, ACT_SECONDS)
    return found


def until_ready(scene: Scene) -> None:
    scene.cluster.until("the placed pool is Ready", scene.ready, START_SECONDS)


def asked(scene: Scene, prompt_tokens: int, output_tokens: int, tenant: str = "a") -> Sent:
    async def ask() -> Sent:
        async with TenantClient(scene.endpoint, scene.key(tenant), scene.model) as client:
            return await client.complete(prompt_tokens, output_tokens)

    return asyncio.run(ask())


def answered(scene: Scene, tenant: str = "a") -> int | None:
    return asked(scene, 8, 1, tenant).status


def starts_noted(scene: Scene) -> list[str]:
    return scene.cluster.kubectl("logs", "pool-0", "-n", NAMESPACE, "-c", "note").splitlines()


def test_pods_run_where_the_pool_says(scene: Scene) -> None:
    """Each field alone decides over one pod: taint, label, requests, affinity, spread."""
    cluster = scene.cluster
    until_unscheduled(scene, "bare-0", "untolerated taint")
    until_unscheduled(scene, "hub-0", "didn't match Pod's node affinity/selector")
    until_unscheduled(scene, "address-0", "Insufficient cpu")
    until_unscheduled(scene, "pool-0", "didn't match Pod's node affinity/selector")
    cluster.kubectl("label", "node", NODE, f"{ZONE}=a")
    until_ready(scene)
    cluster.kubectl("scale", "spool", "pool", "-n", NAMESPACE, "--replicas=2")
    until_unscheduled(scene, "pool-1", "didn't match pod topology spread constraints")
    assert answered(scene) == 200


def test_pods_are_what_the_pool_says(scene: Scene) -> None:
    """In the pods as admission left them, beside one of a pool that says nothing."""
    placed, bare = pod_of(scene, "pool-0"), pod_of(scene, "bare-0")
    spec, plain = placed["spec"], bare["spec"]
    assert (spec["priority"], plain["priority"]) == (1234, 0)
    assert spec["overhead"] == {"cpu": "10m"}
    assert "overhead" not in plain
    assert (spec["serviceAccountName"], plain["serviceAccountName"]) == ("reader", "bare")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert "imagePullSecrets" not in plain
    assert (placed["metadata"]["labels"]["team"], "team" in bare["metadata"]["labels"]) == (
        "search",
        False,
    )
    annotations = placed["metadata"]["annotations"], bare["metadata"]["annotations"]
    assert annotations[0]["example.com/owner"] == "me"
    assert "example.com/owner" not in annotations[1]
    own = {"matchLabels": {label: placed["metadata"]["labels"][label] for label in OWN}}
    assert spec["affinity"] == affinity(labelSelector=own)
    assert "affinity" not in plain
    assert PASSING in spec["tolerations"]
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["matchLabelKeys"] == ["controller-revision-hash"]
    assert own["matchLabels"].items() <= spread["labelSelector"]["matchLabels"].items()

    def volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
        return next(v for v in pod["spec"]["volumes"] if v["name"] == name)

    assert engine_of(placed)["args"][0] == "/model/tiny"
    assert engine_of(bare)["args"][0] == "/model/tiny"
    assert volume(bare, "model")["image"]["reference"] == "registry.example/weights:1"
    assert volume(bare, "cache")["emptyDir"] == {"sizeLimit": "2Gi"}
    hub, address = pod_of(scene, "hub-0"), pod_of(scene, "address-0")
    assert engine_of(hub)["args"][0] == "Qwen/Qwen3-8B"
    assert "--revision=0a1b2c" in engine_of(hub)["args"]
    (token,) = [e for e in engine_of(hub)["env"] if e["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hugging-face", "key": "token"}
    assert volume(hub, "cache")["persistentVolumeClaim"] == {"claimName": "shared"}
    assert engine_of(address)["args"][0] == "s3://models/tiny"
    assert volume(address, "cache")["emptyDir"] == {}


def test_containers_are_what_the_pool_says(scene: Scene) -> None:
    """What engine and sidecar are given, beside those of a pool that leaves it to the operator."""
    placed, bare, hub = (pod_of(scene, f"{pool}-0") for pool in ("pool", "bare", "hub"))
    engine, plain = engine_of(placed), engine_of(bare)
    assert engine["resources"] == ENGINE_RESOURCES
    assert plain["resources"] == {}
    assert f"--max-model-len={CONTEXT_TOKENS}" in engine["args"]
    assert not [flag for flag in plain["args"] if flag.startswith("--max-model-len")]
    starting = engine["startupProbe"], plain["startupProbe"]
    assert [probe["failureThreshold"] * probe["periodSeconds"] for probe in starting] == [420, 1800]
    sidecar, usual = container(placed, "sidecar"), container(bare, "sidecar")
    assert sidecar["resources"] == SIDECAR_RESOURCES
    assert usual["resources"] == {"requests": {"cpu": "500m", "memory": "256Mi"}}
    assert container(hub, "sidecar")["image"] == OTHER_SIDECAR
    assert OTHER_SIDECAR not in (sidecar["image"], usual["image"])
    assert "--drain-seconds=11" in sidecar["args"]
    assert "--drain-seconds=120" in usual["args"]
    graces = [pod["spec"]["terminationGracePeriodSeconds"] for pod in (placed, bare)]
    assert graces == [5 + 11 + 30, 5 + 120 + 30]


def test_requests_meet_the_engine_that_the_pool_describes(scene: Scene) -> None:
    """One variable is in a ConfigMap, one in a Secret; no prompt is longer than the context."""
    sent = asked(scene, 8, 10 * ANSWER_TOKENS)
    log = scene.cluster.engine_log(NAMESPACE, "pool-0")
    told = [event for event in log if event["x_request_id"] == sent.request_id]
    assert [event["output_tokens"] for event in told if event["event"] == "finished"] == [
        ANSWER_TOKENS
    ]
    assert asked(scene, CONTEXT_TOKENS - 1, 1).status == 200
    assert asked(scene, CONTEXT_TOKENS + 1, 1).status == 400


def test_services_are_what_the_pool_says(scene: Scene) -> None:
    """Nobody here serves the class that one of them asks for."""
    assert scene.endpoint
    placed, bare, hub = (
        scene.cluster.get("service", pool, "-n", NAMESPACE) for pool in ("pool", "bare", "hub")
    )
    assert ANNOTATIONS.items() <= placed["metadata"]["annotations"].items()
    assert not ANNOTATIONS.keys() & bare["metadata"].get("annotations", {}).keys()
    assert [each["spec"]["type"] for each in (placed, bare)] == ["LoadBalancer", "ClusterIP"]
    assert hub["spec"]["loadBalancerClass"] == BALANCER_CLASS
    assert "loadBalancerClass" not in placed["spec"]
    assert [bool(each["status"]["loadBalancer"]) for each in (placed, hub)] == [True, False]


def test_a_cache_outlives_its_pod_and_goes_with_the_replica(scene: Scene) -> None:
    """R9: what becomes of claims; and what the pod template's container saw of the volumes."""
    cluster = scene.cluster
    uid = pod_of(scene, "pool-0")["metadata"]["uid"]
    assert starts_noted(scene) == ["config.json", uid]
    claim = cluster.get("pvc", "cache-pool-1", "-n", NAMESPACE)["spec"]
    assert (claim["storageClassName"], claim["accessModes"]) == ("local", ["ReadWriteOncePod"])
    kept = cluster.get("pvc", "cache-pool-0", "-n", NAMESPACE)["metadata"]
    assert kept["ownerReferences"][0]["kind"] == "StatefulSet", "whenDeleted: Delete"
    cluster.kubectl("scale", "spool", "pool", "-n", NAMESPACE, "--replicas=1")
    cluster.until(
        "the claim of the replica that went",
        lambda: cluster.try_kubectl("get", "pvc", "cache-pool-1", "-n", NAMESPACE).returncode,
        ACT_SECONDS,
    )
    cluster.kubectl("delete", "pod", "pool-0", "-n", NAMESPACE)
    cluster.until("a new pod", lambda: pod_of(scene, "pool-0")["metadata"]["uid"] != uid, 25)
    until_ready(scene)
    assert starts_noted(scene) == ["config.json", uid, pod_of(scene, "pool-0")["metadata"]["uid"]]
    assert answered(scene) == 200


def test_what_cannot_work_replaces_nothing(scene: Scene) -> None:
    """O18, and a class that does not exist, which admission tells only of pods."""
    pods = scene.container_restarts()
    template = {"volumeClaimTemplate": {"size": "2Gi"}}
    patch_pool(scene, {"model": {"cache": template}, "engine": {"priorityClassName": "nobodys"}})
    said = until_condition(scene, "Progressing", "False", "ImmutableFieldChange")
    assert "spec.model.cache.volumeClaimTemplate.size" in said["message"]
    said = until_condition(scene, "Accepted", "False", "PodRefused")
    assert "no PriorityClass with name nobodys was found" in said["message"]
    assert until_condition(scene, "Ready", "False")["message"]
    assert answered(scene) == 200
    template = {"volumeClaimTemplate": {"size": "1Gi"}}
    patch_pool(scene, {"model": {"cache": template}, "engine": {"priorityClassName": NAME}})
    until_condition(scene, "Ready", "True")
    assert scene.container_restarts() == pods


def test_children_guard_and_watch_the_pods(scene: Scene) -> None:
    """The PodMonitor is there because the cluster has the kind; both come back."""
    cluster = scene.cluster
    policy = cluster.get("networkpolicy", "pool", "-n", NAMESPACE)
    assert policy["spec"]["podSelector"]["matchLabels"]["tidegate.io/pool"] == "pool"
    assert policy["metadata"]["ownerReferences"][0]["kind"] == "ServingPool"
    budget = cluster.get("pdb", "pool", "-n", NAMESPACE)["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")

    def there(name: str) -> bool:
        return cluster.try_kubectl("get", name, "pool", "-n", NAMESPACE).returncode == 0

    cluster.until("a PodMonitor", lambda: there("podmonitor"), 60)
    cluster.kubectl("delete", "networkpolicy", "pool", "-n", NAMESPACE)
    cluster.until("the NetworkPolicy again", lambda: there("networkpolicy"), ACT_SECONDS)


@pytest.fixture(scope="module")
def upgraded(scene: Scene) -> Iterator[dict[str, int]]:
    """The operator in a newer version that lets this namespace's pools serve others' Tenants; what
    ran before that."""
    cluster = scene.cluster
    # The operator's pods tolerate no taint, and without it those that wait would start.
    cluster.kubectl("delete", "spool", "bare", "hub", "address", "-n", NAMESPACE)
    cluster.kubectl("taint", "node", NODE, f"{TAINT}-")
    pods = scene.container_restarts()
    settings = {
        "TIDEGATE_SIDECAR_IMAGE": NEWER_SIDECAR,
        "TIDEGATE_SHARED_POOL_NAMESPACES": NAMESPACE,
    }
    try:
        given = (f"{name}={value}" for name, value in settings.items())
        cluster.kubectl("set", "env", *OPERATOR, *given)
        cluster.kubectl("rollout", "status", *OPERATOR, "--timeout=120s")
        yield pods
    finally:
        cluster.kubectl("set", "env", *OPERATOR, *(f"{name}-" for name in settings))


def test_an_upgraded_operator_restarts_nothing(scene: Scene, upgraded: dict[str, int]) -> None:
    """It says that there is a newer sidecar, and a tier's edit arrives at the old one."""
    cluster = scene.cluster
    said = until_condition(scene, "UpgradeAvailable", "True")
    assert f"set spec.sidecar.image to {NEWER_SIDECAR}" in said["message"]
    before = scene.pool_object()["status"]["policyGeneration"]
    cluster.kubectl(
        "patch", "ttier", f"{NAMESPACE}-t", "--type=merge", '--patch={"spec":{"priority":7}}'
    )
    cluster.until(
        "the tier's edit at the running sidecar",
        lambda: scene.pool_object()["status"].get("policyGeneration", 0) > before,
        ACT_SECONDS,
    )
    assert scene.container_restarts() == upgraded
    assert answered(scene) == 200


def test_tenants_of_the_selected_namespaces_are_served(
    scene: Scene, upgraded: dict[str, int]
) -> None:
    """Without a selector none but the pool's own; with one those that it selects, and no others."""
    cluster = scene.cluster
    labels = {NAMESPACE_LABEL: NAMESPACE}
    namespaces = [f"{NAMESPACE}-{tenant}" for tenant in ("inside", "outside")]
    try:
        for tenant, namespace in zip(("inside", "outside"), namespaces, strict=True):
            metadata = {"name": namespace, "labels": labels | {"team": tenant}}
            scene.tenants[tenant] = {"tier": "t"}
            theirs = scene.tenant(tenant)
            theirs["metadata"]["namespace"] = namespace
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, theirs)
        assert (answered(scene, "inside"), answered(scene, "outside")) == (401, 401)
        others = {"key": "team", "operator": "NotIn", "values": ["outside"]}
        selector = {"matchLabels": labels, "matchExpressions": [others]}
        patch_pool(scene, {"tenants": {"namespaceSelector": selector}})
        cluster.until("inside is served", lambda: answered(scene, "inside") == 200, ACT_SECONDS)
        assert (answered(scene), answered(scene, "outside")) == (200, 401)
        patch_pool(scene, {"tenants": None})
        cluster.until("inside is not", lambda: answered(scene, "inside") == 401, ACT_SECONDS)
        assert answered(scene) == 200
        assert scene.container_restarts() == upgraded
    finally:
        cluster.kubectl("delete", "namespace", *namespaces, "--wait=false", "--ignore-not-found")
