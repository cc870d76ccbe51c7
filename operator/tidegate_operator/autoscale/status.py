"""Scaling as a pool's status shows it, and as it is taken up from there after a restart: pure."""

from __future__ import annotations

from typing import Any

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.status import ScalingStatus
from tidegate_operator.autoscale.decision import Step, StepReason
from tidegate_operator.autoscale.pool_scaler import PoolScaler
from tidegate_operator.conditions import timestamp
from tidegate_operator.findings import Finding, joined

Json = dict[str, Any]

MAX_STEP_MESSAGE = 512


def scaling_status(scaler: PoolScaler | None) -> Json | None:
    """``status.scaling``; None: the pool is not scaled."""
    if scaler is None:
        return None
    return {
        "desired": sum(scaler.sizes.values()),
        "history": [
            {
                "time": timestamp(step.at),
                "group": group,
                "fromReplicas": step.before,
                "toReplicas": step.after,
                "reason": str(step.reason),
                "message": step.text[:MAX_STEP_MESSAGE],
            }
            for group, step in scaler.steps()
        ],
    }


def steps_by_group(status: ScalingStatus | None) -> dict[str, list[Step]]:
    """The steps of an earlier process by engine group, oldest first."""
    known = {str(reason): reason for reason in StepReason}
    found: dict[str, list[Step]] = {}
    for told in reversed((status and status.history) or ()):
        reason = known.get(told.reason, StepReason.BOUNDS)
        at = told.time.timestamp()
        step = Step(at, told.from_replicas, told.to_replicas, reason, told.message)
        found.setdefault(told.group, []).append(step)
    return found


def scaling_finding(scaler: PoolScaler | None) -> list[Finding]:
    """The condition Autoscaling of a pool that is scaled."""
    if scaler is None:
        return []
    kind, decisions = ConditionType.AUTOSCALING, scaler.decisions
    several = len(scaler.sizes) > 1
    texts = [f"group {name}: {d.text}" if several else d.text for name, d in decisions.items()]
    if any(decision.held for decision in decisions.values()):
        text = joined(["no pod is taken away while data are missing", *texts])
        return [Finding(kind, ConditionStatus.FALSE, Reason.SCALING_HELD, text)]
    wanted = sum(scaler.sizes.values())
    text = joined([f"spec.replicas is ignored; {wanted} pods are wanted", *texts])
    return [Finding(kind, ConditionStatus.TRUE, Reason.SCALING_ACTIVE, text)]
