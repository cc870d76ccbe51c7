"""Kubernetes Events of what must not be found out from a status alone.

Written once for each change of a condition that is announced, after the status that says so: who
reads one finds the other. The name holds what the condition became and when, so that a second
operator that saw the same change writes no second event, and a change within the same second as the
one before is one of its own. One that cannot be written is logged and not tried again:
the condition stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tidegate_operator.api.conditions import ConditionStatus, ConditionType
from tidegate_operator.kinds import Kind
from tidegate_operator.kube import FIELD_MANAGER

Json = dict[str, Any]

ANNOUNCED: Mapping[ConditionType, ConditionStatus] = {
    ConditionType.FALLBACK: ConditionStatus.TRUE,
}
"""Conditions, and the status that is a warning; the other one says that it is over."""


def events_of(kind: Kind, obj: Json, before: Json, after: Json) -> list[Json]:
    """Events for what changed between two statuses of an object; a condition that is new and no
    warning is no news."""
    was = {condition["type"]: condition["status"] for condition in before.get("conditions") or ()}
    made = []
    for condition in after.get("conditions") or ():
        warning = next((s for t, s in ANNOUNCED.items() if t == condition["type"]), None)
        if warning is None:
            continue
        is_warning = condition["status"] == warning
        if (
            was.get(condition["type"], "" if is_warning else condition["status"])
            != (condition["status"])
        ):
            made.append(_event(kind, obj, condition, "Warning" if is_warning else "Normal"))
    return made


def _event(kind: Kind, obj: Json, condition: Json, event_type: str) -> Json:
    metadata = obj["metadata"]
    time = condition["lastTransitionTime"]
    moment = int(datetime.fromisoformat(time).timestamp())
    change = f"{condition['type']}.{condition['status']}".lower()
    return {
        "metadata": {
            "name": f"{metadata['name']}.{change}.{moment:x}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event_type,
        "reason": condition["reason"],
        "message": condition["message"][:1024],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
    }
