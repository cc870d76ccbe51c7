"""The sidecar's container: the pod's only door, in front of the engine's socket."""

from __future__ import annotations

import math
from typing import Any

from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_groups import Group
from tidegate_operator.names import (
    ADMIN_PORT,
    IDENTITY,
    MAIN_GROUP,
    SHARDS,
    SHARED_STATE_SECRET,
    TENANT_PORT,
    admin_secret,
    cache_salt_secret,
    identity_secret,
    policy_secret,
)
from tidegate_operator.render.engine import (
    SOCKET_DIRECTORY,
    SOCKET_PATH,
    literal,
    model_location,
    model_mount,
    resource_requirements,
    restricted,
)
from tidegate_operator.render.plugin import SHARED_DIRECTORY, has_plugin
from tidegate_operator.render.policy_secrets import (
    ADMIN_TOKEN_FILE,
    CACHE_SALT_KEY_FILE,
    IDENTITY_KEYS_FILE,
)
from tidegate_operator.shards import KEYS_FILE, POLICY_FILE

Json = dict[str, Any]

POLICY_DIRECTORY = "/etc/tidegate/policy"
ADMIN_DIRECTORY = "/etc/tidegate/admin"
CACHE_SALT_DIRECTORY = "/etc/tidegate/cache-salt"
STATE_DIRECTORY = "/var/lib/tidegate"
"""What outlives a container, as long as its pod: counters of rate limits."""
IDENTITY_DIRECTORY = "/etc/tidegate/identity"
NOTICE_SECONDS = 5
"""Until those who send requests have noticed that the pod goes; it still serves meanwhile."""
EXIT_SECONDS = 30
"""To exit in, after the drain."""
_OTHER_TOKENIZER = {"--tokenizer", "--tokenizer-mode", "--tokenizer-revision"}
"""Flags of an engine that does not read its prompts by the tokenizer.json of its model's folder."""
DEFAULT_REQUESTS = {"cpu": "500m", "memory": "256Mi"}


def sidecar_container(pool: ServingPool, group: Group, image: str) -> Json:
    """The container; policy and keys come from the same folder, one file each per shard."""
    resources = resource_requirements(pool.spec.sidecar.resources if pool.spec.sidecar else None)
    model = tokenizer_folder(pool)
    return {
        "name": "sidecar",
        "image": image,
        "args": _arguments(pool),
        "env": _environment(group, model),
        "ports": [
            {"name": "http", "containerPort": TENANT_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "volumeMounts": [
            {"name": "socket", "mountPath": SOCKET_DIRECTORY},
            {"name": "policy", "mountPath": POLICY_DIRECTORY, "readOnly": True},
            {"name": "admin", "mountPath": ADMIN_DIRECTORY, "readOnly": True},
            {"name": "cache-salt", "mountPath": CACHE_SALT_DIRECTORY, "readOnly": True},
            {"name": IDENTITY, "mountPath": IDENTITY_DIRECTORY, "readOnly": True},
            {"name": "state", "mountPath": STATE_DIRECTORY},
            *([] if model is None else [model_mount()]),
            *_shared_state_mounts(pool),
        ],
        "lifecycle": {"preStop": {"sleep": {"seconds": NOTICE_SECONDS}}},
        **health_probes(),
        "resources": resources or {"requests": dict(DEFAULT_REQUESTS)},
        "securityContext": restricted(),
    }


def _arguments(pool: ServingPool) -> list[str]:
    drain_seconds = math.ceil(pool.spec.engine.drain_timeout_seconds)
    return [
        f"--policy={POLICY_DIRECTORY}",
        f"--keys={POLICY_DIRECTORY}",
        f"--engine=uds:{SOCKET_PATH}",
        "--host=$(POD_IP)",
        f"--port={TENANT_PORT}",
        f"--admin-port={ADMIN_PORT}",
        f"--admin-token-file={ADMIN_DIRECTORY}/{ADMIN_TOKEN_FILE}",
        f"--drain-seconds={drain_seconds}",
        f"--grace-seconds={drain_seconds}",
        *([f"--engine-plugin={SHARED_DIRECTORY}"] if has_plugin(pool) else []),
    ]


def tokenizer_folder(pool: ServingPool) -> str | None:
    """The model's folder, by whose tokenizer the sidecar may count prompts; None: it is on no
    volume that is there before the engine, or its tokenizer is not the engine's.

    What the engine itself downloads lies in a cache that is written by it, under names that only
    it knows.
    """
    model, arguments = pool.spec.model, pool.spec.engine.args or ()
    if not (model.source.persistent_volume_claim or model.source.image):
        return None
    flags = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    return None if flags & _OTHER_TOKENIZER else model_location(model)


def _environment(group: Group, model_folder: str | None) -> list[Json]:
    """Not as flags: an image of before, which a pool may keep, would not start with them."""
    variables = {
        "TIDEGATE_LOG_FORMAT": "json",
        "TIDEGATE_USAGE_RECORDS": "stdout",
        "TIDEGATE_STATE_FOLDER": STATE_DIRECTORY,
        "TIDEGATE_CACHE_SALT_KEY_FILE": f"{CACHE_SALT_DIRECTORY}/{CACHE_SALT_KEY_FILE}",
        "TIDEGATE_POOL_IDENTITY_KEYS": f"{IDENTITY_DIRECTORY}/{IDENTITY_KEYS_FILE}",
    }
    if group.name != MAIN_GROUP:  # where the pool has but one, nothing differs by it
        variables["TIDEGATE_ENGINE_GROUP"] = group.name
    if model_folder is not None:
        variables["TIDEGATE_MODEL_FOLDER"] = literal(model_folder)
    return [pod_ip(), *({"name": name, "value": value} for name, value in variables.items())]


def health_probes() -> Json:
    """Of what has an admin port as sidecars have it."""
    return {
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": ADMIN_PORT, "scheme": "HTTP"},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": ADMIN_PORT, "scheme": "HTTP"},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
    }


def pod_ip() -> Json:
    """The variable that $(POD_IP) in arguments stands for."""
    return {
        "name": "POD_IP",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
    }


def pod_security() -> Json:
    """What the pod security standard ``restricted`` asks of a pod; its user reads the Secrets."""
    return {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _shared_state_mounts(pool: ServingPool) -> list[Json]:
    shared = pool.spec.shared_state
    if shared is None or shared.secret_ref is None:
        return []
    directory = SHARED_STATE_SECRET.rpartition("/")[0]
    return [{"name": "shared-state", "mountPath": directory, "readOnly": True}]


def _shared_state_volumes(pool: ServingPool) -> list[Json]:
    """The password; optional, since a pod whose shared state is away serves all the same."""
    shared = pool.spec.shared_state
    if shared is None or shared.secret_ref is None:
        return []
    file = SHARED_STATE_SECRET.rpartition("/")[2]
    secret = {
        "secretName": shared.secret_ref.name,
        "defaultMode": 0o440,
        "optional": True,
        "items": [{"key": shared.secret_ref.key, "path": file}],
    }
    return [{"name": "shared-state", "secret": secret}]


def sidecar_volumes(pool: ServingPool) -> list[Json]:
    """Policy, admin token, key of the cache salts and the routers' keys; what outlives a container;
    the password of the shared state."""
    salt = {"secretName": cache_salt_secret(pool.metadata.name), "defaultMode": 0o440}
    return [
        policy_volume(pool),
        admin_volume(pool),
        {"name": "cache-salt", "secret": salt},
        identity_volume(pool),
        {"name": "state", "emptyDir": {"sizeLimit": "256Mi"}},
        *_shared_state_volumes(pool),
    ]


def policy_volume(pool: ServingPool) -> Json:
    """The policy as one projected volume with all shards there could be, so that growing over one
    never changes the pod template."""
    return {
        "name": "policy",
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {
                    "secret": {
                        "name": policy_secret(pool.metadata.name, shard),
                        "optional": True,
                        "items": [
                            {"key": POLICY_FILE, "path": f"policy-{shard:02}.json"},
                            {"key": KEYS_FILE, "path": f"keys-{shard:02}.json"},
                        ],
                    }
                }
                for shard in range(SHARDS)
            ],
        },
    }


def admin_volume(pool: ServingPool) -> Json:
    """The token of the pool's admin ports."""
    secret = {"secretName": admin_secret(pool.metadata.name), "defaultMode": 0o440}
    return {"name": "admin", "secret": secret}


def identity_volume(pool: ServingPool) -> Json:
    """The keys with which routers sign. Each pod has them, whether there is a router or not, so
    that one can be added without a restart."""
    secret = {"secretName": identity_secret(pool.metadata.name), "defaultMode": 0o440}
    return {"name": IDENTITY, "secret": secret}
