"""Kubernetes' strategic merge, over the part of a pod that a person writes. Pure.

Theory of operation, after the API conventions of Kubernetes ("strategic merge patch"): maps are
merged by key and a null takes a key away; the lists named in :data:`MERGE_KEYS` are merged by a
field of their items, in the order of the base and then of the patch; every other list and value is
replaced. ``$patch: delete`` in a map or an item takes it away, ``$patch: replace`` puts it in place
without merging. Kubernetes' other directives order or prune what a client computed; nobody writes
them by hand, and they are faults here, as are items without their merge key.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tidegate_operator.api.pod_template import MERGE_KEYS

Json = dict[str, Any]
DIRECTIVE = "$patch"
_KINDS = ("delete", "replace")


def merge(base: Json, patch: Json) -> Json:
    """``base`` with ``patch`` merged over it; neither is changed."""
    merged = dict(base)
    for key, value in patch.items():
        if key == DIRECTIVE:
            continue
        if value is None or _directive(value) == "delete":
            merged.pop(key, None)
        else:
            merged[key] = _merged_value(key, base.get(key), value)
    return merged


def faults(patch: Json, path: str) -> Iterator[tuple[str, str]]:
    """(path, fault) of all that no merge can be made of."""
    for key, value in patch.items():
        where = f"{path}.{key}"
        if key == DIRECTIVE:
            if value not in _KINDS:
                yield where, "must be delete or replace"
        elif key.startswith("$"):
            yield where, "is no directive that is known here; use $patch: delete or replace"
        elif isinstance(value, dict):
            yield from faults(value, where)
        elif isinstance(value, list):
            yield from _item_faults(key, value, where)


def touched(patch: Json, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that the patch says, maps before what is in them.

    An item of a merged list stands under its merge key: ``spec.containers[engine].image``. A whole
    map is yielded only where it is put in place of another or taken away.
    """
    for key, value in patch.items():
        where = f"{path}.{key}"
        if key == DIRECTIVE:
            continue
        if isinstance(value, dict):
            yield from _map_touched(value, where)
        elif isinstance(value, list) and key in MERGE_KEYS:
            for item in value:
                yield from _map_touched(item, f"{where}[{item.get(MERGE_KEYS[key])}]")
        else:
            yield where, value


def at(obj: Any, path: str) -> Any:
    """What stands at a path as :func:`touched` writes it, such as ``spec.volumes[cache]``; None
    where nothing does."""
    for part in _parts(path):
        name, _, item = part.partition("[")
        obj = obj.get(name) if isinstance(obj, dict) else None
        if item and isinstance(obj, list):
            wanted, key = item.removesuffix("]"), MERGE_KEYS[name]
            obj = next((entry for entry in obj if str(entry.get(key)) == wanted), None)
    return obj


def _map_touched(value: Json, where: str) -> Iterator[tuple[str, Any]]:
    directive = _directive(value)
    if directive == "delete":
        yield where, None
    elif directive == "replace":
        yield where, {key: inner for key, inner in value.items() if key != DIRECTIVE}
    else:
        yield from touched(value, where)


def _merged_value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        keep = isinstance(old, dict) and _directive(new) != "replace"
        return merge(old if keep else {}, new)
    if isinstance(new, list) and key in MERGE_KEYS:
        return _merged_items(old if isinstance(old, list) else [], new, MERGE_KEYS[key])
    return copy.deepcopy(new)


def _merged_items(old: list[Json], new: list[Json], key: str) -> list[Json]:
    items = {item[key]: item for item in old}
    for item in new:
        name, directive = item[key], _directive(item)
        if directive == "delete":
            items.pop(name, None)
        else:
            items[name] = merge({} if directive == "replace" else items.get(name, {}), item)
    return list(items.values())


def _item_faults(key: str, items: list[Any], where: str) -> Iterator[tuple[str, str]]:
    merge_key = MERGE_KEYS.get(key)
    for position, item in enumerate(items):
        here = f"{where}[{position}]"
        if merge_key is None:
            if isinstance(item, dict):
                yield from faults(item, here)
        elif not isinstance(item, dict) or merge_key not in item:
            yield here, f"needs {merge_key}, by which this list is merged"
        else:
            yield from faults(item, f"{where}[{item[merge_key]}]")


def _directive(value: Any) -> str | None:
    return value.get(DIRECTIVE) if isinstance(value, dict) else None


def _parts(path: str) -> Iterator[str]:
    """The steps of a path; what stands in brackets is one with its list, dots and all."""
    part, depth = "", 0
    for letter in path:
        depth += (letter == "[") - (letter == "]")
        if letter == "." and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part
