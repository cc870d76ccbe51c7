"""Pods run where and as their pool says; an upgraded operator restarts none of them.

One pool acts out what a cluster without GPUs, a registry or a CNI can act out: the scheduler's
fields, priority, overhead, claims, podTemplate. Three more never start (no taint is tolerated, or
no node fits): their pods show what the other sources and caches become.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Cluster, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

NAMESPACE = "e2e-placed"
NAME = "e2e-placed"
"""Of the cluster-wide objects of this test."""
NODE = "tidegate-node"
DISK, ZONE = "tidegate.io/e2e-disk", "tidegate.io/e2e-zone"
TAINT = "tidegate.io/e2e"
OWN = ("tidegate.io/pool", "tidegate.io/component", "tidegate.io/engine-group")
ACT_SECONDS = 25.0
START_SECONDS = 90.0
TOLERATIONS = [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]
PASSING = {
    "key": f"{TAINT}-passing",
    "operator": "Equal",
    "value": "x",
    "effect": "NoExecute",
    "tolerationSeconds": 60,
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
OPERATOR = ("deployment/tidegate-operator", "-n", "tidegate-system")
POD_MONITORS = "podmonitors.monitoring.coreos.com"


def shell(name: str, script: str, **fields: Any) -> dict[str, Any]:
    command = {"image": "busybox", "command": ["sh", "-c", script], "securityContext": RESTRICTED}
    return {"name": name, **command, **fields}


def cluster_objects() -> list[dict[str, Any]]:
    """What a platform team has before it has pools."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": NAME},
            "value": 1234,
        },
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": NAME},
            "handler": "process",
            "overhead": {"podFixed": {"cpu": "10m"}},
        },
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": POD_MONITORS},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        },
    ]


def namespace_objects() -> list[dict[str, Any]]:
    """An account, two claims, and the weights on one of them."""

    def meta(name: str) -> dict[str, Any]:
        return {"name": name, "namespace": NAMESPACE}

    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta(name), "spec": spec}
        for name in ("weights", "shared")
    ]
    filler = {
        "containers": [
            shell(
                "fill",
                "mkdir -p /w/tiny; echo {} > /w/tiny/config.json",
                volumeMounts=[{"name": "w", "mountPath": "/w"}],
            )
        ],
        "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}],
        "tolerations": TOLERATIONS,
        "restartPolicy": "Never",
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("reader")},
        *claims,
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta("fill"), "spec": filler},
    ]


CACHE = {
    "size": "1Gi",
    "storageClassName": "local",
    "accessMode": "ReadWriteOncePod",
    "whenDeleted": "Delete",
    "whenScaled": "Delete",
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def affinity(**own: Any) -> dict[str, Any]:
    """Of all kinds; only the required one decides here. ``own``: what selects the pool's pods."""
    zone = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    large = {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]}
    others = {
        "labelSelector": {"matchLabels": {"app": "cache"}},
        "namespaces": ["default"],
        "namespaceSelector": {"matchLabels": {"team": "search"}},
        "topologyKey": ZONE,
    }
    return {
        "nodeAffinity": {
            REQUIRED: {"nodeSelectorTerms": [zone]},
            PREFERRED: [{"weight": 3, "preference": large}],
        },
        "podAffinity": {PREFERRED: [{"weight": 2, "podAffinityTerm": others}]},
        "podAntiAffinity": {
            PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": ZONE, **own}}]
        },
    }


def placed_pool(scene: Scene) -> dict[str, Any]:
    """The pool that runs: each scheduling field, a claim for the weights, one for each cache."""
    pool = scene.pool()
    note = "ls /model/tiny; echo $POD_UID >> /cache/starts; cat /cache/starts"
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    mounts = [{"name": "model", "mountPath": "/model"}, {"name": "cache", "mountPath": "/cache"}]
    pool["spec"]["model"] |= {
        "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "tiny"}},
        "cache": {"volumeClaimTemplate": CACHE},
    }
    pool["spec"]["engine"] |= {
        "nodeSelector": {DISK: "fast"},
        "tolerations": [*TOLERATIONS, PASSING],
        "affinity": affinity(),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "minDomains": 2,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "matchLabelKeys": ["controller-revision-hash"],
            }
        ],
        "priorityClassName": NAME,
        "runtimeClassName": NAME,
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "reader",
        "podTemplate": {
            "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/owner": "me"}},
            "spec": {"initContainers": [shell("note", note, env=[uid], volumeMounts=mounts)]},
        },
    }
    return pool


def waiting_pools(scene: Scene) -> list[dict[str, Any]]:
    """Pools whose pods no node takes: as little as can be said, and what else there is."""
    bare, hub, address = (scene.pool() for _ in range(3))
    bare["metadata"]["name"] = "bare"
    image = {"image": {"reference": "registry.example/weights:1", "path": "tiny"}}
    bare["spec"]["model"] |= {"source": image, "cache": {"emptyDir": {"sizeLimit": "2Gi"}}}
    hub["metadata"]["name"] = "hub"
    token = {"name": "hugging-face", "key": "token"}
    source = {"repo": "Qwen/Qwen3-8B", "revision": "0a1b2c", "tokenSecretRef": token}
    hub["spec"]["model"] |= {
        "source": {"huggingFace": source},
        "cache": {"persistentVolumeClaim": {"claimName": "shared"}},
    }
    hub["spec"]["engine"] |= {"tolerations": TOLERATIONS, "nodeSelector": {DISK: "none"}}
    address["metadata"]["name"] = "address"
    address["spec"]["model"] |= {"source": {"uri": "s3://models/tiny"}, "task": "Embed"}
    for pool in (bare, hub, address):
        del pool["spec"]["service"]
    return [bare, hub, address]


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


def engine_of(pod: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == "engine")
    return engine


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


def answered(scene: Scene) -> int:
    async def ask() -> int:
        async with TenantClient(scene.endpoint, scene.key("a"), scene.model) as client:
            return (await client.complete(8, 1)).status

    return asyncio.run(ask())


def starts_noted(scene: Scene) -> list[str]:
    return scene.cluster.kubectl("logs", "pool-0", "-n", NAMESPACE, "-c", "note").splitlines()


def test_pods_run_where_the_pool_says(scene: Scene) -> None:
    """Each field alone decides over one pod: taint, label, affinity, spread."""
    cluster = scene.cluster
    until_unscheduled(scene, "bare-0", "untolerated taint")
    until_unscheduled(scene, "hub-0", "didn't match Pod's node affinity/selector")
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


def test_an_upgraded_operator_restarts_nothing(scene: Scene) -> None:
    """It says that there is a newer sidecar, and a tier's edit arrives at the old one."""
    cluster = scene.cluster
    # The operator's pods tolerate no taint, and without it those that wait would start.
    cluster.kubectl("delete", "spool", "bare", "hub", "address", "-n", NAMESPACE)
    cluster.kubectl("taint", "node", NODE, f"{TAINT}-")
    pods = scene.container_restarts()
    newer = "ghcr.io/tidegate/sidecar:99.0.0"
    cluster.kubectl("set", "env", *OPERATOR, f"TIDEGATE_SIDECAR_IMAGE={newer}")
    try:
        cluster.kubectl("rollout", "status", *OPERATOR, "--timeout=120s")
        said = until_condition(scene, "UpgradeAvailable", "True")
        assert f"set spec.sidecar.image to {newer}" in said["message"]
        before = scene.pool_object()["status"]["policyGeneration"]
        cluster.kubectl(
            "patch", "ttier", f"{NAMESPACE}-t", "--type=merge", '--patch={"spec":{"priority":7}}'
        )
        cluster.until(
            "the tier's edit at the running sidecar",
            lambda: scene.pool_object()["status"].get("policyGeneration", 0) > before,
            ACT_SECONDS,
        )
        assert scene.container_restarts() == pods
        assert answered(scene) == 200
    finally:
        cluster.kubectl("set", "env", *OPERATOR, "TIDEGATE_SIDECAR_IMAGE-")
