"""Conditions as they are written: findings merged into what the object already says.

``lastTransitionTime`` moves only when ``status`` does, whatever reason and message do. Condition
types that are not ours are kept as they are; ours that no longer apply are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.findings import Finding

Json = dict[str, Any]

_ORDER = {str(kind): place for place, kind in enumerate(ConditionType)}
MAX_MESSAGE = 4096


def merge_conditions(
    old: Sequence[Json], findings: Iterable[Finding], generation: int, now_seconds: float
) -> list[Json]:
    """The conditions of an object of this generation; equal input gives an equal list."""
    before = {condition["type"]: condition for condition in old}
    kept = [condition for condition in old if condition["type"] not in _ORDER]
    made = []
    for finding in findings:
        last = before.get(finding.type)
        unchanged = last is not None and last["status"] == finding.status
        made.append(
            {
                "type": str(finding.type),
                "status": str(finding.status),
                "reason": str(finding.reason),
                "message": finding.message[:MAX_MESSAGE],
                "lastTransitionTime": (
                    last["lastTransitionTime"]
                    if last is not None and unchanged
                    else timestamp(now_seconds)
                ),
                "observedGeneration": generation,
            }
        )
    made.sort(key=lambda condition: _ORDER[str(condition["type"])])
    return [*made, *kept]


def said_before(old: Sequence[Json], kind: ConditionType) -> Finding | None:
    """What the object says of that type; None where that is nothing, or has a reason that only
    another version of the operator knows."""
    said = next((condition for condition in old if condition["type"] == kind), None)
    reason = next((known for known in Reason if said and known == said["reason"]), None)
    if said is None or reason is None:
        return None
    return Finding(kind, ConditionStatus(said["status"]), reason, said["message"])


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes writes a time."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
