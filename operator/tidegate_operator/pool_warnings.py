"""Warnings about a pool: conditions of their own that never turn Ready. Pure.

A warning is there while it holds and gone otherwise; its status is always True.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.contracts import FALLBACK_GROUP, Policy
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.kv import USUAL_BUDGET_PERCENT
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.fallback import fallback_pool
from tidegate_operator.findings import Finding, joined
from tidegate_operator.names import (
    ADMIN_PORT,
    POD_TEMPLATE_ANNOTATION,
    TENANT_PORT,
    group_child,
    router_child,
)
from tidegate_operator.prices import gpus_asked, gpus_used
from tidegate_operator.reconciled import PoolState
from tidegate_operator.render.engine import GPU


def pool_warnings(
    pool: ServingPool,
    state: PoolState,
    operator_sidecar_image: str,
    kv_blocks: int | None = None,
    cut_off: Sequence[str] = (),
    unread_engines: Sequence[str] = (),
) -> list[Finding]:
    """All that hold; ``kv_blocks`` are those of an engine, where that is known; ``cut_off`` says
    which pods have no shared state, though the pool names one, and why; ``unread_engines`` whose
    engine does not say how full it is."""
    found = [*_upgrade(pool, state, operator_sidecar_image), *_gpus(pool)]
    found += _not_routed(pool, state)
    found += _shared_state(pool, state, cut_off)
    found += _engine_metrics(unread_engines)
    policy = state.compiled.policy if state.compiled else None
    if policy is not None:
        found += [*_prefill(policy), *_without_kv(policy, kv_blocks)]
    return found


def _warning(kind: ConditionType, reason: Reason, text: str) -> Finding:
    return Finding(kind, ConditionStatus.TRUE, reason, text)


def _shared_state(pool: ServingPool, state: PoolState, cut_off: Sequence[str]) -> list[Finding]:
    kind = ConditionType.SHARED_STATE_MISSING
    if cut_off:
        text = f"Each counts for itself, within its part of each limit: {joined(cut_off)}"
        return [_warning(kind, Reason.SHARED_STATE_UNAVAILABLE, text)]
    counting = (group.replicas for group in state.groups if group.name != FALLBACK_GROUP)
    pods = sum(counting) or pool.spec.replicas
    if pool.spec.shared_state is not None or pods < 2:
        return []
    text = (
        f"{pods} pods count each for itself: a tenant has an even part of each rate limit on each, "
        "and one that reaches more pods gets more; set spec.sharedState"
    )
    return [_warning(kind, Reason.SHARED_STATE_UNSET, text)]


def _engine_metrics(unread: Sequence[str]) -> list[Finding]:
    """Case R3 of other gateways: what is not told was taken for an idle engine."""
    if not unread:
        return []
    text = (
        "Engines do not say how full they are, so that their gates go by what streams show alone "
        f"and open more slowly: {joined(unread)}; set spec.engine.image to one whose metrics have "
        f"these (GET /engine/metrics on port {ADMIN_PORT} of a pod shows them)"
    )
    return [_warning(ConditionType.ENGINE_METRICS_MISSING, Reason.METRICS_UNREADABLE, text)]


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
        sets = " ".join(group_child(name, group.name) for group in state.groups) or name
        texts.append(
            "The pods are as an earlier version of the operator made them; any change of "
            "spec.engine, spec.model or spec.sidecar takes what is newer, and so does kubectl "
            f"annotate statefulset {sets} -n {namespace} {POD_TEMPLATE_ANNOTATION}-"
        )
    if state.router is not None and state.router.outdated:
        namespace, name = state.key
        texts.append(
            "The router's pods are as an earlier version of the operator made them; any change of "
            "spec.router takes what is newer, and so does kubectl annotate deployment "
            f"{router_child(name)} -n {namespace} {POD_TEMPLATE_ANNOTATION}-"
        )
    if lost := state.compiled.lost if state.compiled else ():
        texts.append(
            "The pool's sidecars are of an earlier version, which does not know what the pool or "
            f"its tiers and tenants set: {', '.join(lost)} of the policy; it takes effect once all "
            "pods have a newer sidecar"
        )
    kind, reason = ConditionType.UPGRADE_AVAILABLE, Reason.UPGRADE_AVAILABLE
    return [_warning(kind, reason, joined(texts))] if texts else []


def _gpus(pool: ServingPool) -> list[Finding]:
    """An engine uses tensor x pipeline parallel GPUs, and there is one engine in a pod."""
    fallback = pool.spec.fallback
    if found := _gpus_of(pool, "spec.engine"):
        return found
    return _gpus_of(fallback_pool(pool), "spec.fallback.engine") if fallback else []


def _gpus_of(pool: ServingPool, engine: str) -> list[Finding]:
    asked = gpus_asked(pool)
    if not asked:
        return []
    tensor, used = pool.spec.engine.tensor_parallel_size, gpus_used(pool)
    if asked == used:
        return []
    kind = ConditionType.GPU_MISMATCH
    text = f"{engine}.resources asks for {asked} {GPU}, but the engine uses {used}"
    if asked > used:
        text += f", so {asked - used} idle in each pod"
        if asked % tensor:
            text += f"; {engine}.parallelism.tensor, {tensor}, does not divide them"
        return [_warning(kind, Reason.GPUS_IDLE, f"{text}: make both the same")]
    return [_warning(kind, Reason.TOO_FEW_GPUS, f"{text} and will not start: make both the same")]


def _not_routed(pool: ServingPool, state: PoolState) -> list[Finding]:
    groups = pool.spec.engine_groups or ()
    if len(groups) < 2 or pool.spec.router is not None:
        return []
    namespace, name = state.key
    homes = [
        f"{', '.join(group.tiers)} at "
        f"http://{group_child(name, group.name)}.{namespace}.svc:{TENANT_PORT}"
        for group in groups
        if group.tiers
    ]
    text = (
        "No router brings a request to the engine group of its tier: the pool's own Service leads "
        "to the first group that serves; set spec.router, or have them call "
        f"{'; '.join(homes) or 'the Service of the group that they want'}"
    )
    return [_warning(ConditionType.GROUPS_NOT_ROUTED, Reason.NO_ROUTER, text)]


def _prefill(policy: Policy) -> list[Finding]:
    """The budget as a part of a step, where one is asked for and a step's size is known."""
    tokens, step = policy.prefill.tokens_per_step, policy.engine.max_num_batched_tokens
    percent = policy.prefill.budget_percent
    field = "budgetPercent"
    if tokens is not None:
        if step is None:
            return []
        field, percent = "tokensPerStep", 100 * policy.prefill.budget_tokens(step) // step
    low, high = USUAL_BUDGET_PERCENT
    if low <= percent <= high:
        return []
    small = percent < low
    text = f"spec.prefill.{field} gives prompts {percent} percent of a step, " + (
        f"below {low}: long prompts hardly get on while others run"
        if small
        else f"above {high}: those who wait for their next token wait for prompts"
    )
    reason = Reason.BUDGET_TOO_SMALL if small else Reason.BUDGET_TOO_LARGE
    return [_warning(ConditionType.UNUSUAL_PREFILL_BUDGET, reason, text)]


def _without_kv(policy: Policy, kv_blocks: int | None) -> list[Finding]:
    """Tiers whose part of the KV cache is nothing, rounded down to blocks where those are known."""
    if not policy.kv_pools:
        return []
    parts = [(f"spec.kvPools[{p.name}].percent", p.percent, p.tiers) for p in policy.kv_pools]
    owned = {tier for part in policy.kv_pools for tier in part.tiers}
    others = tuple(tier.name for tier in policy.tiers if tier.name not in owned)
    rest = 100 - sum(part.percent for part in policy.kv_pools)
    parts.append(("what spec.kvPools leave", rest, others))
    texts = []
    for where, percent, tiers in parts:
        blocks = percent if kv_blocks is None else kv_blocks * percent // 100
        if tiers and not blocks:
            of = "" if kv_blocks is None else f" of {kv_blocks} blocks"
            texts.append(
                f"{where} is {percent}{of}, so that {', '.join(sorted(tiers))} runs only on what "
                "others lend"
            )
    if not texts:
        return []
    text = f"{joined(texts)}; give them more, or leave it if that is meant"
    return [_warning(ConditionType.TIER_WITHOUT_KV, Reason.NO_KV_BLOCKS, text)]
