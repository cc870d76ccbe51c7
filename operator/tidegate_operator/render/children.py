"""The lasting objects of a pool: pods, the ways to them, and what protects them.

What all pods of a pool share is here; what each engine group has of its own is in
:mod:`tidegate_operator.render.groups`.

**Who may connect.** The NetworkPolicy concerns ingress alone: the tenants' port is open to all,
since the pods themselves ask for a key; the admin port to the operator's namespace and those of the
monitoring. A node's kubelet reaches its pods past any NetworkPolicy, so probes and hooks do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.serving_pool import ServiceType, ServingPool
from tidegate_operator.engine_groups import Group, engine_groups
from tidegate_operator.names import (
    ADMIN_PORT,
    GROUP_LABEL,
    POOL_LABEL,
    TENANT_PORT,
    admin_secret,
    engine_selector,
    headless_service,
)
from tidegate_operator.render.groups import GroupChildren, group_children, service_port
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.render.policy_secrets import ADMIN_TOKEN_FILE

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Children:
    """The objects of one pool but its Secrets."""

    service_account: Json | None
    """Unset: the pool names an account of its own."""
    headless_service: Json
    service: Json
    network_policy: Json
    pod_monitor: Json
    """Only for clusters that have the kind."""
    groups: tuple[GroupChildren, ...]
    """Of each engine group, in the order given."""


def render_children(
    pool: ServingPool,
    sidecar_image: str,
    admin_namespaces: Sequence[str] = (),
    groups: Sequence[Group] = (),
    leading: str | None = None,
) -> Children:
    """All of them; ``sidecar_image`` is the one in force for this pool, ``admin_namespaces`` are
    those from which the admin port is asked. ``groups`` unset: those of the spec; ``leading`` is
    the one that the pool's own Service leads to, unset: the first."""
    name = pool.metadata.name
    groups = groups or engine_groups(pool)
    selector = engine_selector(name)
    return Children(
        service_account=None if pool.spec.engine.service_account_name else _service_account(pool),
        headless_service={
            "metadata": child_metadata(pool, headless_service(name)),
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "None",
                "selector": selector,
                "publishNotReadyAddresses": True,
                "ports": [service_port()],
            },
        },
        service=_service(pool, engine_selector(name, leading or groups[0].name)),
        network_policy=_network_policy(pool, selector, admin_namespaces),
        pod_monitor=_pod_monitor(pool, selector),
        groups=tuple(group_children(pool, group, sidecar_image) for group in groups),
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


def _service(pool: ServingPool, selector: dict[str, str]) -> Json:
    spec = pool.spec.service
    service: Json = {
        "metadata": child_metadata(pool, pool.metadata.name),
        "spec": {
            "type": ((spec and spec.type) or ServiceType.CLUSTER_IP).value,
            "selector": selector,
            "ports": [service_port()],
        },
    }
    if spec and spec.annotations:
        service["metadata"]["annotations"] = dict(spec.annotations)
    if spec and spec.load_balancer_class:
        service["spec"]["loadBalancerClass"] = spec.load_balancer_class
    return service
