"""What each engine group of a pool has of its own: its pods, their budget, their address.

A StatefulSet starts and stops its pods in parallel and replaces them one by one; where there are
several, they take turns by ``partition`` (:mod:`tidegate_operator.group_rollout`). Its
``podManagementPolicy``, ``serviceName`` and selector cannot be changed later and depend on the
names of pool and group alone; ``volumeClaimTemplates`` neither, and they depend on
``spec.model.cache`` (see :mod:`tidegate_operator.rollout_plan`). A pod matches exactly one
disruption budget, that of its group.

**Draining.** When a pod goes, kubelet runs both ``preStop`` hooks at once, and sends each container
SIGTERM when its own is done. The sidecar's hook is a pause in which those who send requests notice.
The engine's hook waits on the sidecar's ``/drained``, by which the sidecar knows at once, too: it
closes its clients' connections with their answers. After SIGTERM it takes no more, once
``leaving_seconds`` have passed since the hooks began (5, as the pause: nothing is added), and
finishes what it has. The engine is told last and outlives every request that was accepted. The
pod's grace period covers the pause, the drain, of which leaving is a part, and a margin to exit in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tidegate.scheduling.contracts import FALLBACK_GROUP
from tidegate_operator.api.common import FieldError
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_groups import Group
from tidegate_operator.fallback import fallback_pool
from tidegate_operator.names import (
    COMPONENT_LABEL,
    ENGINE,
    MAIN_GROUP,
    SIDECAR_IMAGE_ANNOTATION,
    TENANT_PORT,
    engine_selector,
    group_child,
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
from tidegate_operator.render.sidecar import (
    EXIT_SECONDS,
    NOTICE_SECONDS,
    pod_security,
    sidecar_container,
    sidecar_volumes,
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GroupChildren:
    """The objects of one engine group."""

    group: Group
    service: Json | None
    """Unset: there is to be none, as the pool's own Service leads there or to a router."""
    disruption_budget: Json
    stateful_set: Json
    conflicts: tuple[FieldError, ...] = ()
    """What engine.podTemplate may not say; with any, the StatefulSet is without all of it."""


def group_children(
    pool: ServingPool, group: Group, sidecar_image: str, *, called: bool = True
) -> GroupChildren:
    """All of them; ``called``: clients may come to the group past a router."""
    if group.name == FALLBACK_GROUP:
        pool, called = fallback_pool(pool), False
    name = group_child(pool.metadata.name, group.name)
    selector = engine_selector(pool.metadata.name, group.name)
    stateful_set, conflicts = _stateful_set(pool, group, selector, sidecar_image)
    service: Json = {
        "metadata": child_metadata(pool, name),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": [service_port()]},
    }
    return GroupChildren(
        group,
        service=service if called and group.name != MAIN_GROUP else None,
        disruption_budget={
            "metadata": child_metadata(pool, name),
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selector},
            },
        },
        stateful_set=stateful_set,
        conflicts=conflicts,
    )


def service_port() -> Json:
    """The tenants' port of a Service."""
    return {"name": "http", "port": TENANT_PORT, "targetPort": "http", "protocol": "TCP"}


def _stateful_set(
    pool: ServingPool, group: Group, selector: dict[str, str], sidecar_image: str
) -> tuple[Json, tuple[FieldError, ...]]:
    template, conflicts = apply_template(
        {
            "metadata": {
                "labels": child_metadata(pool, "")["labels"] | selector,
                "annotations": {"kubectl.kubernetes.io/default-container": "engine"},
            },
            "spec": _pod_spec(pool, group, selector, sidecar_image),
        },
        pool.spec.engine,
    )
    name = group_child(pool.metadata.name, group.name)
    metadata = child_metadata(pool, name, {COMPONENT_LABEL: ENGINE})
    metadata["annotations"] = {SIDECAR_IMAGE_ANNOTATION: sidecar_image}
    spec: Json = {
        "replicas": group.replicas,
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


def _pod_spec(
    pool: ServingPool, group: Group, selector: dict[str, str], sidecar_image: str
) -> Json:
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
        "securityContext": pod_security(),
        "containers": [
            engine_container(pool, group),
            sidecar_container(pool, group, sidecar_image),
        ],
        "volumes": [
            {"name": "socket", "emptyDir": {"medium": "Memory"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {"name": "engine-tmp", "emptyDir": {}},
            *([plugin_volume()] if plugin else []),
            *model_volumes(pool.spec.model),
            *sidecar_volumes(pool),
        ],
        **scheduling_fields(engine, selector),
    }
