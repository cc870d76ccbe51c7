"""The Secrets that sidecars read: shards of policy and keys, and the admin token.

They are Secrets and not ConfigMaps because the digests of keys are in them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.names import (
    ADMIN,
    COMPONENT_LABEL,
    POLICY,
    admin_secret,
    policy_secret,
)
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.shards import KEYS_FILE, POLICY_FILE

Json = dict[str, Any]

ADMIN_TOKEN_FILE = "token"


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
    return {
        "metadata": child_metadata(
            pool, admin_secret(pool.metadata.name), {COMPONENT_LABEL: ADMIN}
        ),
        "type": "Opaque",
        "data": {ADMIN_TOKEN_FILE: _base64(token)},
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
