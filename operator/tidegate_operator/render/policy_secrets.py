"""The Secrets that sidecars and routers read: shards of policy and keys, admin token, key of the
cache salts, the routers' keys.

The shards are Secrets and not ConfigMaps because the digests of keys are in them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.names import (
    ADMIN,
    CACHE_SALT,
    COMPONENT_LABEL,
    IDENTITY,
    POLICY,
    admin_secret,
    cache_salt_secret,
    identity_secret,
    policy_secret,
)
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.shards import KEYS_FILE, POLICY_FILE

Json = dict[str, Any]

ADMIN_TOKEN_FILE = "token"
CACHE_SALT_KEY_FILE = "key"
IDENTITY_KEYS_FILE = "keys"


def policy_secrets(pool: PoolIdentity, documents: Sequence[tuple[str, str]]) -> list[Json]:
    """One Secret per shard, in order."""
    return [
        {
            "metadata": child_metadata(
                pool, policy_secret(pool.metadata.name, index), {COMPONENT_LABEL: POLICY}
            ),
            "type": "Opaque",
            "data": {POLICY_FILE: _base64(policy), KEYS_FILE: _base64(keys)},
        }
        for index, (policy, keys) in enumerate(documents)
    ]


def admin_token_secret(pool: PoolIdentity, token: str) -> Json:
    """The token that the sidecars' admin port asks for; made once and then kept."""
    name = admin_secret(pool.metadata.name)
    return _made_once(pool, name, ADMIN, {ADMIN_TOKEN_FILE: token})


def cache_salt_key_secret(pool: PoolIdentity, key: str) -> Json:
    """The key under which the sidecars make tenants' cache salts; made once and then kept, whatever
    else rotates: with another key the engines find nothing that they have cached."""
    name = cache_salt_secret(pool.metadata.name)
    return _made_once(pool, name, CACHE_SALT, {CACHE_SALT_KEY_FILE: key})


def identity_keys_secret(pool: PoolIdentity, keys: str) -> Json:
    """The keys with which routers sign whom they vouch for, one a line: the first signs, all are
    believed. Made once with two of them, then its owner's to rotate."""
    name = identity_secret(pool.metadata.name)
    return _made_once(pool, name, IDENTITY, {IDENTITY_KEYS_FILE: keys})


def _made_once(pool: PoolIdentity, name: str, component: str, values: dict[str, str]) -> Json:
    return {
        "metadata": child_metadata(pool, name, {COMPONENT_LABEL: component}),
        "type": "Opaque",
        "data": {file: _base64(value) for file, value in values.items()},
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
