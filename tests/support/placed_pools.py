"""Pools for tests of where and how pods run: what they ask for, and what has to be there for it.

One of them runs, on a node that is tainted and labelled for it; the others never start.
"""

from __future__ import annotations

from typing import Any

from testbed.e2e_cluster import Scene

NAMESPACE = "e2e-placed"
NAME = "e2e-placed"
"""Of the cluster-wide objects."""
DISK, ZONE = "tidegate.io/e2e-disk", "tidegate.io/e2e-zone"
TAINT = "tidegate.io/e2e"
POD_MONITORS = "podmonitors.monitoring.coreos.com"
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
CONTEXT_TOKENS = 2048
ANSWER_TOKENS = 3
"""As long as the engine's ConfigMap has it talk."""
ENGINE_RESOURCES = {
    "limits": {"cpu": "2", "memory": "1Gi"},
    "requests": {"cpu": "100m", "memory": "512Mi"},
}
SIDECAR_RESOURCES = {
    "limits": {"memory": "300Mi"},
    "requests": {"cpu": "50m", "memory": "200Mi"},
}
OTHER_SIDECAR = "ghcr.io/tidegate/sidecar:0.0.1"
ANNOTATIONS = {"example.com/idle-timeout": "3600"}
BALANCER_CLASS = "example.com/nobodys"


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
    """An account, two claims, the weights on one of them, and what the engine's variables say."""

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
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta("engine"),
            "data": {"tokens": str(ANSWER_TOKENS)},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": meta("engine"),
            "stringData": {"log": "/dev/stdout"},
        },
        *claims,
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta("fill"), "spec": filler},
    ]


VARIABLES = [
    {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
    {"name": "TIDEGATE_FAKE_OUTPUT_SIGMA", "value": "0"},
    {
        "name": "TIDEGATE_FAKE_OUTPUT_MEDIAN",
        "valueFrom": {"configMapKeyRef": {"name": "engine", "key": "tokens"}},
    },
    {
        "name": "TIDEGATE_FAKE_REQUEST_LOG",
        "valueFrom": {"secretKeyRef": {"name": "engine", "key": "log"}},
    },
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
    """The pool that runs: each field of a pod, a claim for the weights, one for each cache."""
    pool = scene.pool()
    note = "ls /model/tiny; echo $POD_UID >> /cache/starts; cat /cache/starts"
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    mounts = [{"name": "model", "mountPath": "/model"}, {"name": "cache", "mountPath": "/cache"}]
    pool["spec"]["model"] |= {
        "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "tiny"}},
        "cache": {"volumeClaimTemplate": CACHE},
        "maxModelLen": CONTEXT_TOKENS,
    }
    pool["spec"]["sidecar"] = {"resources": SIDECAR_RESOURCES}
    pool["spec"]["service"] |= {"annotations": ANNOTATIONS}
    pool["spec"]["engine"] |= {
        "resources": ENGINE_RESOURCES,
        "env": VARIABLES,
        "startupTimeout": "7m",
        "drainTimeout": "11s",
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
    bare["spec"]["engine"] = {"image": bare["spec"]["engine"]["image"]}
    del bare["spec"]["service"], bare["spec"]["model"]["maxModelLen"]
    hub["metadata"]["name"] = "hub"
    token = {"name": "hugging-face", "key": "token"}
    source = {"repo": "Qwen/Qwen3-8B", "revision": "0a1b2c", "tokenSecretRef": token}
    hub["spec"]["model"] |= {
        "source": {"huggingFace": source},
        "cache": {"persistentVolumeClaim": {"claimName": "shared"}},
    }
    hub["spec"]["engine"] |= {"tolerations": TOLERATIONS, "nodeSelector": {DISK: "none"}}
    hub["spec"]["sidecar"] = {"image": OTHER_SIDECAR}
    hub["spec"]["service"] |= {"loadBalancerClass": BALANCER_CLASS}
    address["metadata"]["name"] = "address"
    address["spec"]["model"] |= {"source": {"uri": "s3://models/tiny"}, "task": "Embed"}
    address["spec"]["engine"] |= {
        "tolerations": TOLERATIONS,
        "resources": {"requests": {"cpu": "1000"}},
    }
    del address["spec"]["service"]
    return [bare, hub, address]
