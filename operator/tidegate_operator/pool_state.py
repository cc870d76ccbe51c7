"""What a pool's pods amount to: Progressing, Available and Ready. Pure.

Ready is the summary for people, Argo CD and ``kubectl wait``. It is True while a pod serves, of
each engine group one, also while others are being added or replaced; False only for what a person
must mend; else Unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.findings import Fault, Finding, joined
from tidegate_operator.names import GROUP_LABEL, MAIN_GROUP

Json = dict[str, Any]

UNSCHEDULABLE_SECONDS = 300.0
"""A pod that no node takes for so long is a fault; before, an autoscaler may be at work."""

_FAULTY_WAITING = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


@dataclass(frozen=True, slots=True)
class PodState:
    """One engine pod, as far as the operator needs to know it."""

    uid: str
    name: str
    ip: str | None
    ready: bool
    terminating: bool
    group: str = MAIN_GROUP
    """Its engine group."""
    fault: str | None = None
    """Why it cannot start; unset: nothing is known to be wrong."""
    waiting: str | None = None
    """What it waits for that may come by itself."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the StatefulSet says of replacing pods."""

    settled: bool
    """The controller has seen the newest template and all pods have it."""


def pod_state(pod: Json, now_seconds: float) -> PodState:
    """Read one pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    fault, waiting = _trouble(status, conditions, now_seconds)
    return PodState(
        uid=metadata["uid"],
        name=metadata["name"],
        ip=status.get("podIP"),
        ready=ready,
        terminating=bool(metadata.get("deletionTimestamp")),
        group=(metadata.get("labels") or {}).get(GROUP_LABEL, MAIN_GROUP),
        fault=None if ready else fault,
        waiting=None if ready else waiting,
    )


def rollout(stateful_set: Json | None) -> Rollout:
    """Read the StatefulSet's status; none yet is not settled."""
    if stateful_set is None:
        return Rollout(False)
    status = stateful_set.get("status") or {}
    current = (status.get("observedGeneration") or 0) >= stateful_set["metadata"]["generation"]
    # currentRevision follows updateRevision only when every pod was replaced.
    same = status.get("currentRevision") == status.get("updateRevision")
    return Rollout(current and same)


def readiness(
    desired: int,
    pods: Sequence[PodState],
    rolling: Rollout,
    faults: Sequence[Fault],
    tenants: int,
    groups: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Progressing, Available and Ready; ``faults`` are those of the pool's own spec, ``groups``
    the engine groups of which each should have a pod that serves."""
    living = [pod for pod in pods if not pod.terminating]
    ready = sum(pod.ready for pod in living)
    broken = [f"pod {pod.name}: {pod.fault}" for pod in living if pod.fault]
    waits = [f"pod {pod.name}: {pod.waiting}" for pod in living if pod.waiting]
    count = f"{ready} of {desired} pods serve"
    serving = {pod.group for pod in living if pod.ready}
    if lacking := [name for name in groups if name not in serving]:
        count += f", none of group {', '.join(lacking)}"
    progressing = _progressing(desired, living, ready, rolling, broken, waits, faults)
    return (
        progressing,
        _available(desired, ready, count),
        _ready(
            desired, 0 if lacking else ready, count, progressing, faults, broken, waits, tenants
        ),
    )


def _trouble(
    status: Json, conditions: dict[str, Json], now_seconds: float
) -> tuple[str | None, str | None]:
    """(fault, waiting) of a pod that is not ready."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        text = f"no node takes it: {scheduled.get('message') or scheduled.get('reason')}"
        since = scheduled.get("lastTransitionTime")
        age = now_seconds - datetime.fromisoformat(since).timestamp() if since else 0.0
        return (text, None) if age >= UNSCHEDULABLE_SECONDS else (None, text)
    if status.get("phase") == "Failed":
        return f"it failed: {status.get('message') or status.get('reason') or 'no reason'}", None
    kinds = ("initContainerStatuses", "containerStatuses")
    for container in (c for kind in kinds for c in status.get(kind) or ()):
        state = (container.get("state") or {}).get("waiting") or {}
        if state.get("reason") in _FAULTY_WAITING:
            return (
                f"container {container['name']} is in {state['reason']}: "
                f"{state.get('message') or 'see its logs'}",
                None,
            )
    return None, None


def _progressing(
    desired: int,
    living: Sequence[PodState],
    ready: int,
    rolling: Rollout,
    broken: Sequence[str],
    waits: Sequence[str],
    faults: Sequence[Fault],
) -> Finding:
    kind = ConditionType.PROGRESSING
    if stuck := [fault for fault in faults if fault.type is kind]:
        text = joined(fault.message for fault in stuck)
        return Finding(kind, ConditionStatus.FALSE, stuck[0].reason, text)
    if broken:
        return Finding(kind, ConditionStatus.FALSE, Reason.PODS_FAILING, joined(broken))
    detail = f"; {joined(waits)}" if waits else ""
    if len(living) != desired or ready != desired:
        text = f"{len(living)} pods of {desired} exist, {ready} serve{detail}"
        return Finding(kind, ConditionStatus.TRUE, Reason.SCALING, text)
    if not rolling.settled:
        text = "Pods are replaced one by one, each as soon as the one before serves"
        return Finding(kind, ConditionStatus.TRUE, Reason.ROLLING_OUT, text)
    reason = Reason.PODS_READY if desired else Reason.SCALED_TO_ZERO
    return Finding(kind, ConditionStatus.FALSE, reason, "All pods are as the spec wants them")


def _available(desired: int, ready: int, count: str) -> Finding:
    kind = ConditionType.AVAILABLE
    if ready:
        return Finding(kind, ConditionStatus.TRUE, Reason.PODS_READY, count)
    reason = Reason.NO_READY_PODS if desired else Reason.SCALED_TO_ZERO
    return Finding(kind, ConditionStatus.FALSE, reason, count)


def _ready(
    desired: int,
    ready: int,
    count: str,
    progressing: Finding,
    faults: Sequence[Fault],
    broken: Sequence[str],
    waits: Sequence[str],
    tenants: int,
) -> Finding:
    kind = ConditionType.READY
    must_mend = [fault for fault in faults if fault.type is not ConditionType.RESOLVED_REFS]
    if must_mend:
        text = joined(fault.message for fault in must_mend)
        return Finding(kind, ConditionStatus.FALSE, must_mend[0].reason, text)
    notes = [fault.message for fault in faults]
    if desired == 0 and not ready:
        text = "spec.replicas is 0; raise it to serve"
        return Finding(kind, ConditionStatus.UNKNOWN, Reason.SCALED_TO_ZERO, joined([text, *notes]))
    if ready:
        moving = progressing.status is ConditionStatus.TRUE
        reason = progressing.reason if moving else Reason.READY
        if tenants == 0:
            reason = Reason.NO_TENANTS
            notes.append("no Tenant is served, so nobody can call the pool")
        return Finding(kind, ConditionStatus.TRUE, reason, joined([count, *broken, *notes]))
    if broken:
        return Finding(kind, ConditionStatus.FALSE, Reason.PODS_FAILING, joined([*broken, *notes]))
    return Finding(
        kind, ConditionStatus.UNKNOWN, Reason.NO_READY_PODS, joined([count, *waits, *notes])
    )
