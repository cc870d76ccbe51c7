"""The lasting objects of a pool: pods, the ways to them, and what protects them.

What all pods of a pool share is here; what each engine group has of its own is in
:mod:`tidegate_operator.render.groups`, the router in :mod:`tidegate_operator.render.router`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.serving_pool import ServiceType, ServingPool
from tidegate_operator.engine_groups import Group, engine_groups
from tidegate_operator.fallback import fallback_groups
from tidegate_operator.names import (
    GROUP_LABEL,
    POOL_LABEL,
    ROUTED_SINCE_ANNOTATION,
    engine_selector,
    headless_service,
    router_selector,
)
from tidegate_operator.render.groups import GroupChildren, group_children, service_port
from tidegate_operator.render.network import engines_network_policy
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.render.pod_monitor import pod_monitor
from tidegate_operator.render.router import RouterChildren, router_children
from tidegate_operator.routing import NO_ROUTE, Route

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
    router: RouterChildren | None
    """Unset: there is none."""


def render_children(
    pool: ServingPool,
    sidecar_image: str,
    admin_namespaces: Sequence[str] = (),
    groups: Sequence[Group] = (),
    leading: str | None = None,
    route: Route = NO_ROUTE,
) -> Children:
    """All of them; ``sidecar_image`` is the one in force for this pool, ``admin_namespaces`` are
    those from which the admin port is asked. ``groups`` unset: those of the spec; ``leading`` is
    the one that the pool's own Service leads to where it leads to no router, unset: the first.
    ``route`` is how clients come to it."""
    name = pool.metadata.name
    groups = groups or (*engine_groups(pool), *fallback_groups(pool, ()))
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
        service=_service(pool, engine_selector(name, leading or groups[0].name), route),
        network_policy=engines_network_policy(pool, admin_namespaces, route),
        pod_monitor=_pod_monitor(pool, selector),
        groups=tuple(
            group_children(pool, group, sidecar_image, called=not route.settled) for group in groups
        ),
        router=router_children(pool, pool.spec.router, sidecar_image, admin_namespaces)
        if pool.spec.router is not None
        else None,
    )


def _service_account(pool: ServingPool) -> Json:
    return {
        "metadata": child_metadata(pool, pool.metadata.name),
        # Nothing in the pod calls the API server.
        "automountServiceAccountToken": False,
    }


def _pod_monitor(pool: ServingPool, selector: dict[str, str]) -> Json:
    """Both containers' metrics, from the sidecar's admin port."""
    metadata = child_metadata(pool, pool.metadata.name)
    monitor = pod_monitor(pool, metadata, selector, [POOL_LABEL, GROUP_LABEL])
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    # Two targets at one port: without a label of its own each, their `up` would be one series.
    name = {"action": "replace", "targetLabel": "container", "replacement": "engine"}
    endpoints.append(endpoints[0] | {"path": "/engine/metrics", "relabelings": [name]})
    return monitor


def _service(pool: ServingPool, engines: dict[str, str], route: Route) -> Json:
    spec = pool.spec.service
    port = service_port() | {"name": route.scheme}
    service: Json = {
        "metadata": child_metadata(pool, pool.metadata.name),
        "spec": {
            "type": ((spec and spec.type) or ServiceType.CLUSTER_IP).value,
            "selector": router_selector(pool.metadata.name) if route.leads else engines,
            "ports": [port],
        },
    }
    annotations = dict((spec and spec.annotations) or {})
    if route.since is not None:
        annotations[ROUTED_SINCE_ANNOTATION] = route.since
    if annotations:
        service["metadata"]["annotations"] = annotations
    if spec and spec.load_balancer_class:
        service["spec"]["loadBalancerClass"] = spec.load_balancer_class
    return service
