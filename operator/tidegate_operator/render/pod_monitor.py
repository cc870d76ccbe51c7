"""PodMonitors, for clusters with the Prometheus operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.names import admin_secret
from tidegate_operator.render.policy_secrets import ADMIN_TOKEN_FILE

Json = dict[str, Any]


def pod_monitor(
    pool: PoolIdentity, metadata: Json, selector: dict[str, str], labels: Sequence[str]
) -> Json:
    """What is read from the admin port of these pods; ``labels`` of theirs go to the series."""
    token = {"name": admin_secret(pool.metadata.name), "key": ADMIN_TOKEN_FILE}
    return {
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": list(labels),
            "podMetricsEndpoints": [
                {
                    "port": "admin",
                    "path": "/metrics",
                    "authorization": {"type": "Bearer", "credentials": token},
                }
            ],
        },
    }
