"""Warnings about a pool: conditions of their own that never turn Ready. Pure.

A warning is there while it holds and gone otherwise; its status is always True.
"""

from __future__ import annotations

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import flag_integer
from tidegate_operator.findings import Finding, joined
from tidegate_operator.names import POD_TEMPLATE_ANNOTATION
from tidegate_operator.quantity import amount
from tidegate_operator.reconcile import PoolState
from tidegate_operator.render.engine import GPU

_PIPELINE = ("--pipeline-parallel-size", "-pp")


def pool_warnings(
    pool: ServingPool, state: PoolState, operator_sidecar_image: str
) -> list[Finding]:
    """All that hold."""
    return [*_upgrade(pool, state, operator_sidecar_image), *_gpus(pool)]


def _warning(kind: ConditionType, reason: Reason, text: str) -> Finding:
    return Finding(kind, ConditionStatus.TRUE, reason, text)


def _upgrade(pool: ServingPool, state: PoolState, operator_image: str) -> list[Finding]:
    pinned = pool.spec.sidecar is not None and pool.spec.sidecar.image is not None
    texts = []
    if not pinned and state.sidecar_image and state.sidecar_image != operator_image:
        texts.append(
            f"The pool runs {state.sidecar_image}; set spec.sidecar.image to {operator_image} to "
            "take the operator's version, which replaces the pods one by one"
        )
    if state.outdated:
        namespace, name = state.key
        texts.append(
            "The pods are as an earlier version of the operator made them; any change of "
            "spec.engine, spec.model or spec.sidecar takes what is newer, and so does kubectl "
            f"annotate statefulset {name} -n {namespace} {POD_TEMPLATE_ANNOTATION}-"
        )
    kind, reason = ConditionType.UPGRADE_AVAILABLE, Reason.UPGRADE_AVAILABLE
    return [_warning(kind, reason, joined(texts))] if texts else []


def _gpus(pool: ServingPool) -> list[Finding]:
    """An engine uses tensor x pipeline parallel GPUs, and there is one engine in a pod."""
    engine = pool.spec.engine
    resources = engine.resources
    limits = (resources and resources.limits) or {}
    requests = (resources and resources.requests) or {}
    asked = amount(limits.get(GPU, requests.get(GPU)))
    if not asked:
        return []
    arguments = engine.args or ()
    pipeline = next((found for flag in _PIPELINE if (found := flag_integer(arguments, flag))), 1)
    tensor = engine.tensor_parallel_size
    used = tensor * pipeline
    if asked == used:
        return []
    kind = ConditionType.GPU_MISMATCH
    text = f"spec.engine.resources asks for {asked} {GPU}, but the engine uses {used}"
    if asked > used:
        text += f", so {asked - used} idle in each pod"
        if asked % tensor:
            text += f"; spec.engine.parallelism.tensor, {tensor}, does not divide them"
        return [_warning(kind, Reason.GPUS_IDLE, f"{text}: make both the same")]
    return [_warning(kind, Reason.TOO_FEW_GPUS, f"{text} and will not start: make both the same")]
