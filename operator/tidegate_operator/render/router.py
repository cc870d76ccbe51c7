"""A pool's router: its pods, what they may read of the cluster, and who may connect to them.

The pods are a Deployment, since none of them has a state or an address of its own. They find the
engines' pods by label, with an account that may look at the pods of this namespace and nothing
else. A new pod is ready before an old one is told to go; that one serves on while those who send
requests notice, and then ends what it has in hand within the time that the engines have for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_operator.api.router import RouterSpec
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.names import (
    ADMIN_PORT,
    COMPONENT_LABEL,
    POOL_LABEL,
    ROUTER,
    TENANT_PORT,
    TLS,
    engine_selector,
    router_child,
    router_selector,
)
from tidegate_operator.render.engine import resource_requirements, restricted
from tidegate_operator.render.network import admin_ingress, tenants_ingress
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.render.pod_monitor import pod_monitor
from tidegate_operator.render.policy_secrets import ADMIN_TOKEN_FILE, IDENTITY_KEYS_FILE
from tidegate_operator.render.sidecar import (
    ADMIN_DIRECTORY,
    DEFAULT_REQUESTS,
    EXIT_SECONDS,
    IDENTITY_DIRECTORY,
    NOTICE_SECONDS,
    POLICY_DIRECTORY,
    admin_volume,
    health_probes,
    identity_volume,
    pod_ip,
    pod_security,
    policy_volume,
)

Json = dict[str, Any]

TLS_DIRECTORY = "/etc/tidegate/tls"
TLS_SECRET_TYPE = "kubernetes.io/tls"
TLS_FILES = ("tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class RouterChildren:
    """The objects of a pool's router."""

    service_account: Json
    role: Json
    role_binding: Json
    disruption_budget: Json
    network_policy: Json
    pod_monitor: Json
    """Only for clusters that have the kind."""
    deployment: Json


def router_children(
    pool: ServingPool, router: RouterSpec, image: str, admin_namespaces: Sequence[str]
) -> RouterChildren:
    """All of them."""
    name, selector = router_child(pool.metadata.name), router_selector(pool.metadata.name)
    metadata = child_metadata(pool, name, {COMPONENT_LABEL: ROUTER})
    return RouterChildren(
        service_account={"metadata": metadata, "automountServiceAccountToken": False},
        role={
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        },
        role_binding={
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [
                {
                    "kind": "ServiceAccount",
                    "name": name,
                    "namespace": pool.metadata.namespace,
                }
            ],
        },
        disruption_budget={
            "metadata": metadata,
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selector},
            },
        },
        network_policy={
            "metadata": metadata,
            "spec": {
                "podSelector": {"matchLabels": selector},
                "policyTypes": ["Ingress"],
                "ingress": [tenants_ingress(), *admin_ingress(admin_namespaces)],
            },
        },
        pod_monitor=pod_monitor(pool, metadata, selector, [POOL_LABEL]),
        deployment=_deployment(pool, router, image, metadata, selector),
    )


def _deployment(
    pool: ServingPool, router: RouterSpec, image: str, metadata: Json, selector: dict[str, str]
) -> Json:
    drain_seconds = math.ceil(pool.spec.engine.drain_timeout_seconds)
    spec: Json = {
        "serviceAccountName": metadata["name"],
        # The one pod of a pool that asks the API server.
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": NOTICE_SECONDS + drain_seconds + EXIT_SECONDS,
        "securityContext": pod_security(),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ],
        "containers": [_container(pool, router, image, drain_seconds)],
        "volumes": [
            policy_volume(pool),
            admin_volume(pool),
            identity_volume(pool),
            *_tls_volumes(router),
        ],
    }
    if secrets := pool.spec.engine.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in secrets]
    return {
        "metadata": metadata,
        "spec": {
            "replicas": router.pods,
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": metadata["labels"] | selector},
                "spec": spec,
            },
        },
    }


def _container(pool: ServingPool, router: RouterSpec, image: str, drain_seconds: int) -> Json:
    engines = engine_selector(pool.metadata.name)
    tls = router.tls is not None
    pair = [f"{TLS_DIRECTORY}/{file}" for file in TLS_FILES]
    mounts = [("policy", POLICY_DIRECTORY), ("admin", ADMIN_DIRECTORY)]
    mounts += [("identity", IDENTITY_DIRECTORY), *([(TLS, TLS_DIRECTORY)] if tls else [])]
    return {
        "name": "router",
        "image": image,
        "args": [
            "router",
            f"--policy={POLICY_DIRECTORY}",
            f"--keys={POLICY_DIRECTORY}",
            f"--identity-keys={IDENTITY_DIRECTORY}/{IDENTITY_KEYS_FILE}",
            f"--pods-selector={','.join(f'{key}={value}' for key, value in engines.items())}",
            "--host=$(POD_IP)",
            f"--port={TENANT_PORT}",
            "--admin-host=$(POD_IP)",
            f"--admin-port={ADMIN_PORT}",
            f"--admin-token-file={ADMIN_DIRECTORY}/{ADMIN_TOKEN_FILE}",
            f"--drain-seconds={drain_seconds}",
            *([f"--tls-certificate={pair[0]}", f"--tls-key={pair[1]}"] if tls else []),
        ],
        "env": [pod_ip(), {"name": "TIDEGATE_ROUTER_USAGE_RECORDS", "value": "stdout"}],
        "ports": [
            {"name": "http", "containerPort": TENANT_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "volumeMounts": [
            {"name": volume, "mountPath": path, "readOnly": True} for volume, path in mounts
        ],
        "lifecycle": {"preStop": {"sleep": {"seconds": NOTICE_SECONDS}}},
        **health_probes(),
        "resources": resource_requirements(router.resources)
        or {"requests": dict(DEFAULT_REQUESTS)},
        "securityContext": restricted(),
    }


def _tls_volumes(router: RouterSpec) -> list[Json]:
    """Not optional: a router without its certificate does not start, and says so by its pod."""
    if router.tls is None:
        return []
    secret = {"secretName": router.tls.secret_ref.name, "defaultMode": 0o440}
    return [{"name": TLS, "secret": secret}]
