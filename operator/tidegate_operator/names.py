"""Names, labels and ports that the operator puts on what it creates.

Labels of a pool's pods feed immutable selectors: never change them.
"""

from __future__ import annotations

from tidegate.scheduling.contracts import MAIN_GROUP as MAIN_GROUP
from tidegate.scheduling.contracts.pod_list import GROUP_LABEL as GROUP_LABEL

GROUP = "tidegate.io"
POOL_LABEL = "tidegate.io/pool"
"""On every child: the name of its ServingPool."""
COMPONENT_LABEL = "tidegate.io/component"
API_KEYS_LABEL = "tidegate.io/api-keys"
"""On Secrets that hold tenants' API keys; only those are listed and watched."""
SIDECAR_IMAGE_ANNOTATION = "tidegate.io/sidecar-image"
"""On the StatefulSet: the sidecar image in use, which an upgrade of the operator keeps."""
POD_TEMPLATE_ANNOTATION = "tidegate.io/pod-template"
"""On a workload: the pod template in force, and of which spec; taking it away renders anew."""

ENGINE = "engine"
POLICY = "policy"
ADMIN = "admin"
CACHE_SALT = "cache-salt"
ROUTER = "router"
IDENTITY = "identity"
TLS = "tls"
"""Volume of those pods of a router that speak TLS."""
ROUTED_SINCE_ANNOTATION = "tidegate.io/routed-since"
"""On the pool's Service: since when it leads to the router."""

SHARED_STATE_SECRET = "/etc/tidegate/shared-state/password"
"""In the sidecar's container: where the password of the pool's sharedState is mounted."""

TENANT_PORT = 8000
ADMIN_PORT = 8001
SHARDS = 16
"""Policy shards of a pool; all of them are in the pod template from the start."""


def pool_labels(pool: str) -> dict[str, str]:
    """Labels of every child of the pool."""
    return {
        "app.kubernetes.io/name": "tidegate",
        "app.kubernetes.io/managed-by": "tidegate-operator",
        "app.kubernetes.io/instance": pool,
        POOL_LABEL: pool,
    }


def engine_selector(pool: str, group: str | None = None) -> dict[str, str]:
    """Labels that select the engine pods of one group of the pool, or of all, and nothing else."""
    selector = {POOL_LABEL: pool, COMPONENT_LABEL: ENGINE}
    return selector if group is None else selector | {GROUP_LABEL: group}


def router_selector(pool: str) -> dict[str, str]:
    """Labels that select the router's pods of the pool and nothing else."""
    return {POOL_LABEL: pool, COMPONENT_LABEL: ROUTER}


def router_child(pool: str) -> str:
    """Name of the router's children."""
    return f"{pool}-router"


def identity_secret(pool: str) -> str:
    return f"{pool}-identity"


def group_child(pool: str, group: str) -> str:
    """Name of the children of one engine group."""
    return pool if group == MAIN_GROUP else f"{pool}-{group}"


def policy_secret(pool: str, shard: int) -> str:
    return f"{pool}-policy-{shard}"


def admin_secret(pool: str) -> str:
    return f"{pool}-admin"


def cache_salt_secret(pool: str) -> str:
    return f"{pool}-cache-salt"


def headless_service(pool: str) -> str:
    return f"{pool}-engines"
