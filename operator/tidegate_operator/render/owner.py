"""What every child of a pool carries: names, labels, and the pool as its owner."""

from __future__ import annotations

from typing import Any

from tidegate_operator.api.common import API_VERSION
from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.names import pool_labels

Json = dict[str, Any]


def child_metadata(pool: PoolIdentity, name: str, labels: dict[str, str] | None = None) -> Json:
    """Metadata of a child: garbage collected with the pool, which needs no finalizer for that."""
    return {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": pool_labels(pool.metadata.name) | (labels or {}),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": pool.kind,
                "name": pool.metadata.name,
                "uid": pool.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
