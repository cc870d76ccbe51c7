"""The fallback of a pool: what its engines are, whom they serve, and whether they do now. Pure.

Its pods are an engine group by themselves, outside of all that the pool's groups are: no share of
``replicas``, no home of a tier, no part in autoscaling or in the pool's Ready. Routers send them
requests only while no other pod serves, and only those of its tiers
(``tidegate_sidecar.router.groups``).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tidegate.scheduling.contracts import FALLBACK_GROUP
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_groups import Group
from tidegate_operator.findings import Finding, joined
from tidegate_operator.pool_state import PodState


def fallback_groups(pool: ServingPool, running: Container[str]) -> list[Group]:
    """The group of the spec's fallback; of one that the spec has no more, none of its pods."""
    spec = pool.spec.fallback
    if spec is not None:
        return [Group(FALLBACK_GROUP, spec.pods, tuple(spec.tiers))]
    return [Group(FALLBACK_GROUP, 0)] if FALLBACK_GROUP in running else []


def fallback_pool(pool: ServingPool) -> ServingPool:
    """The pool with its ``spec.engine`` as the fallback has it."""
    spec = pool.spec.fallback
    if spec is None or spec.engine is None:
        return pool
    given = {name: getattr(spec.engine, name) for name in type(spec.engine).model_fields}
    changed = {name: value for name, value in given.items() if value is not None}
    engine = pool.spec.engine.model_copy(update=changed)
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"engine": engine})})


def is_spare(pod: PodState) -> bool:
    """Whether it is one of the fallback's."""
    return pod.group == FALLBACK_GROUP


def fallback_finding(pool: ServingPool, pods: Sequence[PodState]) -> list[Finding]:
    """The condition Fallback: whether it serves, or why it could not; ``pods`` are all of the
    pool's."""
    spec = pool.spec.fallback
    if spec is None:
        return []
    kind, tiers = ConditionType.FALLBACK, ", ".join(spec.tiers)
    living = [pod for pod in pods if not pod.terminating]
    spare = [pod for pod in living if is_spare(pod)]
    ready = sum(pod.ready for pod in spare)
    if not any(pod.ready for pod in living if not is_spare(pod)) and ready:
        text = (
            f"No pod of the engine groups serves: {ready} of the fallback serve {tiers}, and "
            "requests of other tiers are refused with 503"
        )
        return [Finding(kind, ConditionStatus.TRUE, Reason.NO_OTHER_POD_SERVES, text)]
    if not spec.pods:
        text = "spec.fallback.replicas is 0, so nothing stands by"
        return [Finding(kind, ConditionStatus.FALSE, Reason.SCALED_TO_ZERO, text)]
    count = f"{ready} of {spec.pods} pods stand by for {tiers}"
    if ready:
        return [Finding(kind, ConditionStatus.FALSE, Reason.STANDS_BY, count)]
    faults = [f"pod {pod.name}: {pod.fault}" for pod in spare if pod.fault]
    waits = [f"pod {pod.name}: {pod.waiting}" for pod in spare if pod.waiting]
    reason = Reason.PODS_FAILING if faults else Reason.NO_READY_PODS
    return [Finding(kind, ConditionStatus.FALSE, reason, joined([count, *faults, *waits]))]
