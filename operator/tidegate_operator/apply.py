"""Bring one child object to what was rendered, and send nothing where it is so already.

Theory of operation. Server-side apply makes the rendered fields the object's and ours; a no-op
apply changes nothing but is still a write in the audit log and a load on the API server. So the
live object is compared first, by its ``managedFields``: the object is in sync when every rendered
field is there with its value and owned by us, and we own nothing that is no longer rendered. The
values are compared as the server stores them (quantities by their amount). Fields of others (a
restart annotation, an injected container) are none of our business.

No state is kept, so a restarted operator, or a second one, finds the same answer.
"""

from __future__ import annotations

import json
from typing import Any

from tidegate_operator.kube import FIELD_MANAGER, Json
from tidegate_operator.quantity import amount

_IDENTITY = ("apiVersion", "kind")


def in_sync(desired: Json, live: Json) -> bool:
    """Whether applying ``desired`` would change nothing."""
    owned = _owned_fields(live)
    if owned is None:
        return False
    body = {key: value for key, value in desired.items() if key not in _IDENTITY}
    metadata = {
        key: value
        for key, value in body["metadata"].items()
        if key not in ("name", "namespace", "resourceVersion")
    }
    return _same(body | {"metadata": metadata}, live, owned)


def _owned_fields(live: Json) -> Json | None:
    """The field tree that our applies own; None where we never applied."""
    for entry in live["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == FIELD_MANAGER
            and entry.get("operation") == "Apply"
            and not entry.get("subresource")
        ):
            fields: Json = entry["fieldsV1"]
            return fields
    return None


def _same(desired: Any, live: Any, owned: Json) -> bool:
    """Compare along the tree of owned fields; an empty tree is a leaf or an atomic value."""
    children = {key: tree for key, tree in owned.items() if key != "."}
    if isinstance(desired, dict) and isinstance(live, dict):
        if not children:
            return _equal(desired, live)
        return _same_map(desired, live, children)
    if isinstance(desired, list) and isinstance(live, list) and children:
        if all(key.startswith("k:") for key in children):
            return _same_items(desired, live, children)
        return all(key.startswith("v:") for key in children) and {
            f"v:{json.dumps(value)}" for value in desired
        } == set(children)
    return not children and _equal(desired, live)


def _same_map(desired: Json, live: Json, owned: Json) -> bool:
    if {f"f:{key}" for key in desired} != set(owned):
        return False
    return all(
        key in live and _same(value, live[key], owned[f"f:{key}"]) for key, value in desired.items()
    )


def _same_items(desired: list[Any], live: list[Any], owned: Json) -> bool:
    """Lists that the server merges by key: each owned item against its two counterparts."""
    if len(desired) != len(owned):
        return False
    for key, tree in owned.items():
        identity = json.loads(key.removeprefix("k:"))
        ours = _item(desired, identity)
        theirs = _item(live, identity)
        # The server fills in a merge key that was left out (a port's protocol) and counts it as
        # applied.
        if ours is None or theirs is None or not _same(identity | ours, theirs, tree):
            return False
    return True


def _item(items: list[Any], identity: Json) -> Any:
    for item in items:
        if all(item.get(key, value) == value for key, value in identity.items()):
            return item
    return None


def _equal(desired: Any, live: Any) -> bool:
    """Whether the server would read both as the same value; it may have added defaults within."""
    if isinstance(desired, dict) and isinstance(live, dict):
        if all(isinstance(value, str) for value in desired.values()):
            return desired == live
        return all(key in live and _equal(value, live[key]) for key, value in desired.items())
    if isinstance(desired, list) and isinstance(live, list):
        return len(desired) == len(live) and all(map(_equal, desired, live))
    return bool(desired == live) or amount(desired) == amount(live) is not None
