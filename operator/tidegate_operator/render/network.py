"""Who may connect to a pool's pods.

The NetworkPolicies concern ingress alone. The tenants' port is open to all, since the pods
themselves ask for a key; that of engines' pods behind a router to the router alone, once nobody
comes past it any more. The admin port is open to the operator's namespace and those of the
monitoring, and engines' pods' to the router. A node's kubelet reaches its pods past any
NetworkPolicy, so probes and hooks do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.names import ADMIN_PORT, TENANT_PORT, engine_selector, router_selector
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.routing import Route

Json = dict[str, Any]


def engines_network_policy(pool: ServingPool, namespaces: Sequence[str], route: Route) -> Json:
    """Of the engines' pods."""
    name = pool.metadata.name
    router = {"podSelector": {"matchLabels": router_selector(name)}}
    ingress = [_ingress(TENANT_PORT, [router]) if route.settled else tenants_ingress()]
    ingress += admin_ingress(namespaces, [router] if route.has_router else [])
    return {
        "metadata": child_metadata(pool, name),
        "spec": {
            "podSelector": {"matchLabels": engine_selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def tenants_ingress() -> Json:
    """The tenants' port, for all."""
    return {"ports": [{"protocol": "TCP", "port": TENANT_PORT}]}


def admin_ingress(namespaces: Sequence[str], others: Sequence[Json] = ()) -> list[Json]:
    """The admin port, for these namespaces and other peers."""
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
    peers = [*([asking] if namespaces else []), *others]
    return [_ingress(ADMIN_PORT, peers)] if peers else []


def _ingress(port: int, peers: Sequence[Json]) -> Json:
    return {"ports": [{"protocol": "TCP", "port": port}], "from": list(peers)}
