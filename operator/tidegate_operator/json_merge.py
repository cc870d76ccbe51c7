"""JSON merge patches (RFC 7396): only what differs, and null for what goes."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def merge_patch(live: Json, desired: Json) -> Json:
    """The merge patch from one to the other; empty where nothing differs."""
    patch: Json = {key: None for key in live if key not in desired}
    for key, value in desired.items():
        old = live.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif old != value:
            patch[key] = value
    return patch


def without_nulls(value: Json) -> Json:
    """The object without what is not known: nulls, and objects that hold nothing else."""
    kept = {
        key: without_nulls(inner) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if inner is not None
    }
    return {key: inner for key, inner in kept.items() if inner != {}}
