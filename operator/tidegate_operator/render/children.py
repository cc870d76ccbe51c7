"""The lasting objects of a pool: pods, the ways to them, and what protects them.

The StatefulSet starts and stops pods in parallel and replaces them one by one. Its
``podManagementPolicy``, ``serviceName`` and selector cannot be changed later and depend on the
pool's name alone; ``volumeClaimTemplates`` neither, and they depend on ``spec.model.cache`` (see
:mod:`tidegate_operator.rollout_plan`).

**Who may connect.** The NetworkPolicy concerns ingress alone: the tenants' port is open to all,
since the pods themselves ask for a key; the admin port to the operator's namespace and those of the
monitoring. A node's kubelet reaches its pods past any NetworkPolicy, so probes and hooks do too.

**Draining.** When a pod goes, kubelet runs both ``preStop`` hooks at once, and sends each container
SIGTERM when its own is done. The sidecar's hook is a pause in which those who send requests notice;
on SIGTERM it takes no more and finishes what it has. The engine's hook waits on the sidecar's
``/drained``, so the engine is told last and outlives every request that was accepted. The pod's
grace period covers the pause, the drain, and a margin to exit in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.common import FieldError
from tidegate_operator.api.serving_pool import ServiceType, ServingPool
from tidegate_operator.names import (
    ADMIN_PORT,
    COMPONENT_LABEL,
    ENGINE,
    GROUP_LABEL,
    POOL_LABEL,
    SIDECAR_IMAGE_ANNOTATION,
    TENANT_PORT,
    admin_secret,
    engine_selector,
    headless_service,
)
from tidegate_operator.render.engine import (
    cache_claims,
    claim_retention,
    engine_container,
    model_volumes,
    restricted,
)
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.render.plugin import has_plugin, plugin_container, plugin_volume
from tidegate_operator.render.pod_scheduling import scheduling_fields
from tidegate_operator.render.pod_template import apply_template
from tidegate_operator.render.policy_secrets import ADMIN_TOKEN_FILE
from tidegate_operator.render.sidecar import NOTICE_SECONDS, sidecar_container, sidecar_volumes

Json = dict[str, Any]

EXIT_SECONDS = 30
"""To exit in, after the drain."""


@dataclass(frozen=True, slots=True)
class Children:
    """The objects of one pool but its Secrets."""

    service_account: Json | None
    """Unset: the pool names an account of its own."""
    headless_service: Json
    service: Json
    network_policy: Json
    disruption_budget: Json
    pod_monitor: Json
    """Only for clusters that have the kind."""
    stateful_set: Json
    conflicts: tuple[FieldError, ...] = ()
    """What engine.podTemplate may not say; with any, the StatefulSet is without all of it."""


def render_children(
    pool: ServingPool, sidecar_image: str, admin_namespaces: Sequence[str] = ()
) -> Children:
    """All of them; ``sidecar_image`` is the one in force for this pool, ``admin_namespaces`` are
    those from which the admin port is asked."""
    name = pool.metadata.name
    selector = engine_selector(name)
    stateful_set, conflicts = _stateful_set(pool, selector, sidecar_image)
    return Children(
        service_account=None if pool.spec.engine.service_account_name else _service_account(pool),
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
        network_policy=_network_policy(pool, selector, admin_namespaces),
        disruption_budget={
            "metadata": child_metadata(pool, name),
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selector},
            },
        },
        pod_monitor=_pod_monitor(pool, selector),
        stateful_set=stateful_set,
        conflicts=conflicts,
    )


def _service_account(pool: ServingPool) -> Json:
    return {
        "metadata": child_metadata(pool, pool.metadata.name),
        # Nothing in the pod calls the API server.
        "automountServiceAccountToken": False,
    }


def _network_policy(pool: ServingPool, selector: dict[str, str], namespaces: Sequence[str]) -> Json:
    asking = {
        "namespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "In",
                    "values": sorted(set(namespaces)),
                }
            ]
        }
    }
    ingress: list[Json] = [{"ports": [{"protocol": "TCP", "port": TENANT_PORT}]}]
    if namespaces:
        ingress.append({"ports": [{"protocol": "TCP", "port": ADMIN_PORT}], "from": [asking]})
    return {
        "metadata": child_metadata(pool, pool.metadata.name),
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _pod_monitor(pool: ServingPool, selector: dict[str, str]) -> Json:
    """For the Prometheus operator: both containers' metrics, from the sidecar's admin port."""
    token = {"name": admin_secret(pool.metadata.name), "key": ADMIN_TOKEN_FILE}
    authorization = {"type": "Bearer", "credentials": token}
    own: Json = {"port": "admin", "path": "/metrics", "authorization": authorization}
    # Two targets at one port: without a label of its own each, their `up` would be one series.
    name = {"action": "replace", "targetLabel": "container", "replacement": "engine"}
    engine = own | {"path": "/engine/metrics", "relabelings": [name]}
    return {
        "metadata": child_metadata(pool, pool.metadata.name),
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": [POOL_LABEL, GROUP_LABEL],
            "podMetricsEndpoints": [own, engine],
        },
    }


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


def _stateful_set(
    pool: ServingPool, selector: dict[str, str], sidecar_image: str
) -> tuple[Json, tuple[FieldError, ...]]:
    template, conflicts = apply_template(
        {
            "metadata": {
                "labels": child_metadata(pool, "")["labels"] | selector,
                "annotations": {"kubectl.kubernetes.io/default-container": "engine"},
            },
            "spec": _pod_spec(pool, selector, sidecar_image),
        },
        pool.spec.engine,
    )
    metadata = child_metadata(pool, pool.metadata.name, {COMPONENT_LABEL: ENGINE})
    metadata["annotations"] = {SIDECAR_IMAGE_ANNOTATION: sidecar_image}
    spec: Json = {
        "replicas": pool.spec.replicas,
        "serviceName": headless_service(pool.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 5,
        "persistentVolumeClaimRetentionPolicy": claim_retention(pool.spec.model),
        "selector": {"matchLabels": selector},
        "template": template,
    }
    if claims := cache_claims(pool.spec.model):
        spec["volumeClaimTemplates"] = claims
    return {"metadata": metadata, "spec": spec}, conflicts


def _pod_spec(pool: ServingPool, selector: dict[str, str], sidecar_image: str) -> Json:
    engine = pool.spec.engine
    drain_seconds = math.ceil(engine.drain_timeout_seconds)
    plugin = has_plugin(pool)
    code = {"initContainers": [plugin_container(sidecar_image, restricted())]} if plugin else {}
    return {
        **code,
        "serviceAccountName": engine.service_account_name or pool.metadata.name,
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
            *([plugin_volume()] if plugin else []),
            *model_volumes(pool.spec.model),
            *sidecar_volumes(pool.metadata.name),
        ],
        **scheduling_fields(engine, selector),
    }
