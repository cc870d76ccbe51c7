"""Which watch events tell of a change: our own status writes come back as events too."""

from __future__ import annotations

from tidegate_operator.kinds import SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Json

_WITH_STATUS = (SERVING_POOL, TENANT, TENANT_TIER)
"""Kinds whose status is ours: for them a change is one of the generation."""


class News:
    """What was last seen of each object."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Kind, str], tuple[object, ...]] = {}

    def take(self, kind: Kind, type: str | None, obj: Json) -> bool:
        """Whether more than its status changed; ``type`` is None for what a LIST showed, which is
        always looked at."""
        metadata = obj["metadata"]
        key = (kind, f"{metadata.get('namespace', '')}/{metadata['name']}")
        if type == "DELETED":
            self._seen.pop(key, None)
            return True
        version: tuple[object, ...]
        if kind in _WITH_STATUS:
            generation = metadata.get("generation") or metadata["resourceVersion"]
            version = (metadata["uid"], generation, metadata.get("deletionTimestamp"))
        else:
            version = (metadata["uid"], metadata["resourceVersion"])
        before = self._seen.get(key)
        self._seen[key] = version
        return type is None or before != version
