"""The lasting objects of a pool: pods, the ways to them, and what protects them.

The StatefulSet starts and stops pods in parallel and replaces them one by one. Its
``podManagementPolicy``, ``serviceName`` and selector cannot be changed later and depend on the
pool's name alone.

**Draining.** When a pod goes, kubelet runs both ``preStop`` hooks at once, and sends each container
SIGTERM when its own is done. The sidecar's hook is a pause in which those who send requests notice;
on SIGTERM it takes no more and finishes what it has. The engine's hook waits on the sidecar's
``/drained``, so the engine is told last and outlives every request that was accepted. The pod's
grace period covers the pause, the drain, and a margin to exit in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.serving_pool import ServiceType, ServingPool
from tidegate_operator.names import (
    COMPONENT_LABEL,
    ENGINE,
    SIDECAR_IMAGE_ANNOTATION,
    TENANT_PORT,
    engine_selector,
    headless_service,
)
from tidegate_operator.render.engine import engine_container, model_volumes
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.render.sidecar import NOTICE_SECONDS, sidecar_container, sidecar_volumes

Json = dict[str, Any]

EXIT_SECONDS = 30
"""To exit in, after the drain."""


@dataclass(frozen=True, slots=True)
class Children:
    """The objects of one pool but its Secrets."""

    service_account: Json
    headless_service: Json
    service: Json
    disruption_budget: Json
    stateful_set: Json


def render_children(pool: ServingPool, sidecar_image: str) -> Children:
    """All of them; ``sidecar_image`` is the one in force for this pool."""
    name = pool.metadata.name
    selector = engine_selector(name)
    return Children(
        service_account={
            "metadata": child_metadata(pool, name),
            # Nothing in the pod calls the API server.
            "automountServiceAccountToken": False,
        },
        headless_service={
            "metadata": child_metadata(pool, headless_service(name)),
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "None",
                "selector": selector,
                "publishNotReadyAddresses": True,
                "ports": [_port()],
            },
        },
        service=_service(pool, selector),
        disruption_budget={
            "metadata": child_metadata(pool, name),
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selector},
            },
        },
        stateful_set=_stateful_set(pool, selector, sidecar_image),
    )


def _port() -> Json:
    return {"name": "http", "port": TENANT_PORT, "targetPort": "http", "protocol": "TCP"}


def _service(pool: ServingPool, selector: dict[str, str]) -> Json:
    spec = pool.spec.service
    service: Json = {
        "metadata": child_metadata(pool, pool.metadata.name),
        "spec": {
            "type": ((spec and spec.type) or ServiceType.CLUSTER_IP).value,
            "selector": selector,
            "ports": [_port()],
        },
    }
    if spec and spec.annotations:
        service["metadata"]["annotations"] = dict(spec.annotations)
    if spec and spec.load_balancer_class:
        service["spec"]["loadBalancerClass"] = spec.load_balancer_class
    return service


def _stateful_set(pool: ServingPool, selector: dict[str, str], sidecar_image: str) -> Json:
    metadata = child_metadata(pool, pool.metadata.name, {COMPONENT_LABEL: ENGINE})
    metadata["annotations"] = {SIDECAR_IMAGE_ANNOTATION: sidecar_image}
    return {
        "metadata": metadata,
        "spec": {
            "replicas": pool.spec.replicas,
            "serviceName": headless_service(pool.metadata.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": child_metadata(pool, "")["labels"] | selector,
                    "annotations": {"kubectl.kubernetes.io/default-container": "engine"},
                },
                "spec": _pod_spec(pool, sidecar_image),
            },
        },
    }


def _pod_spec(pool: ServingPool, sidecar_image: str) -> Json:
    drain_seconds = math.ceil(pool.spec.engine.drain_timeout_seconds)
    return {
        "serviceAccountName": pool.metadata.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": NOTICE_SECONDS + drain_seconds + EXIT_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [engine_container(pool), sidecar_container(pool, sidecar_image)],
        "volumes": [
            {"name": "socket", "emptyDir": {"medium": "Memory"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "engine-tmp", "emptyDir": {}},
            *model_volumes(pool.spec.model),
            *sidecar_volumes(pool.metadata.name),
        ],
    }
