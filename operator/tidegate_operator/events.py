"""Kubernetes Events of what must not be found out from a status alone.

One for each change of a condition that is announced, written after the status that says so: who
reads one finds the other; and one for each sample that a sidecar took of slow traffic, which no
condition tells. The name holds what happened, where and when, so that a second operator that saw
the same, or one that starts anew, writes no second event, and what happens again within the same
second is one of its own. One that cannot be written is logged and not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidegate.scheduling.contracts import TrafficSample
from tidegate_operator.api.conditions import ConditionStatus, ConditionType
from tidegate_operator.kinds import SERVING_POOL, Kind
from tidegate_operator.kube import FIELD_MANAGER
from tidegate_operator.names import ADMIN_PORT

Json = dict[str, Any]

ANNOUNCED: Mapping[ConditionType, ConditionStatus] = {
    ConditionType.FALLBACK: ConditionStatus.TRUE,
}
"""Conditions, and the status that is a warning; the other one says that it is over."""
FIRST_TOKENS_SLOW = "FirstTokensSlow"
SAMPLE_NEWS_SECONDS = 900.0
"""A sample that is older is no news: an API server keeps events for longer, so that until then the
event's name tells that it was written."""


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
            made.append(_change(kind, obj, condition, "Warning" if is_warning else "Normal"))
    return made


def sample_events(
    pool: Json, samples: Iterable[tuple[str, TrafficSample]], now_seconds: float
) -> list[Json]:
    """Events for the samples of slow traffic that pods took lately, by the pod's name."""
    made = []
    for pod, sample in samples:
        if now_seconds - sample.at > SAMPLE_NEWS_SECONDS:
            continue
        text = (
            f"First tokens of tier {sample.tier} come {sample.p99_over_baseline:.1f} times as late "
            f"as in the last hour on pod {pod} (99th percentiles); its port {ADMIN_PORT} has a "
            f"sample of the traffic: GET /profiles/{sample.name}"
        )
        time = datetime.fromtimestamp(int(sample.at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = f"sample.{pod}.{int(sample.at):x}"
        made.append(_event(SERVING_POOL, pool, name, "Warning", FIRST_TOKENS_SLOW, text, time))
    return made


def _change(kind: Kind, obj: Json, condition: Json, event_type: str) -> Json:
    time = condition["lastTransitionTime"]
    moment = int(datetime.fromisoformat(time).timestamp())
    name = f"{condition['type']}.{condition['status']}.{moment:x}".lower()
    return _event(kind, obj, name, event_type, condition["reason"], condition["message"], time)


def _event(
    kind: Kind, obj: Json, name: str, event_type: str, reason: str, message: str, time: str
) -> Json:
    metadata = obj["metadata"]
    return {
        "metadata": {
            "name": f"{metadata['name']}.{name}",
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
        "reason": reason,
        "message": message[:1024],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
    }
