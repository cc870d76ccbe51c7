"""The tiers of one pool: each TenantTier with what the pool overrides, and whether they combine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.scheduling.contracts import (
    Fairness,
    FairnessUnit,
    OutputLimits,
    QueueLimits,
    TierPolicy,
)
from tidegate.scheduling.contracts.limits import (
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_QUEUE_BYTES,
    DEFAULT_QUEUE_REQUESTS,
    DEFAULT_QUEUE_WAIT_SECONDS,
)
from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.fields import duration_seconds
from tidegate_operator.api.figures import MAX_TIERS
from tidegate_operator.api.serving_pool import PoolTier, ServingPool
from tidegate_operator.api.tenant_tier import OutputLimits as OutputSpec
from tidegate_operator.api.tenant_tier import QueueLimits as QueueSpec
from tidegate_operator.api.tenant_tier import TenantTierSpec
from tidegate_operator.findings import Fault, joined
from tidegate_operator.judge import Judgement
from tidegate_operator.limit_policy import (
    preemption,
    prompt_limit,
    rate_limits,
    slo_objectives,
)
from tidegate_operator.served_namespaces import served_tiers
from tidegate_operator.shards import Previous

Tiers = tuple[TierPolicy, ...]


def combine_tiers(
    pool: ServingPool, judgement: Judgement, previous: Previous, namespaces: Collection[str]
) -> tuple[Tiers, list[Fault]]:
    """The pool's tiers, highest priority first; where they cannot be combined, those of them that
    it had. ``namespaces`` are those whose Tenants it serves."""
    faults: list[Fault] = []
    found: dict[str, TierPolicy] = {}
    groups = pool.spec.engine_groups or ()
    undrafted = {name for group in groups for name in group.no_draft_tiers or ()}
    for entry in served_tiers(pool, judgement, namespaces):
        verdict = judgement.tiers.get(entry.name)
        if verdict is None:
            faults.append(
                Fault(
                    ConditionType.RESOLVED_REFS,
                    Reason.TIER_NOT_FOUND,
                    f"spec.tiers[{entry.name}]: there is no such TenantTier; create it, or remove "
                    "the entry",
                )
            )
        elif verdict.tier is not None:
            found[entry.name] = _tier_policy(entry, verdict.tier.spec, undrafted)
        elif entry.name in previous.tiers:
            found[entry.name] = previous.tiers[entry.name]
    tiers = tuple(sorted(found.values(), key=lambda tier: (-tier.priority, tier.name)))
    if not tiers:
        return (), [*faults, _no_tiers(pool, judgement, namespaces)]
    problems = _problems(tiers)
    if not problems:
        return tiers, faults
    last_good = tuple(tier for tier in previous.tiers.values() if tier.name in found)
    return last_good, [*faults, *problems]


def not_served(
    pool: ServingPool, field: str, tiers: Collection[str], served: Collection[str]
) -> list[Fault]:
    """Those of the tiers that a field names and that the pool does not serve; one that spec.tiers
    lists is told of there."""
    known = {*served, *(tier.name for tier in pool.spec.tiers or ())}
    return [
        Fault(
            ConditionType.RESOLVED_REFS,
            Reason.TIER_NOT_FOUND,
            f"{field}: there is no TenantTier {name} that is served here; create it, or remove it "
            "from the list",
        )
        for name in tiers
        if name not in known
    ]


def _tier_policy(entry: PoolTier, spec: TenantTierSpec, undrafted: Collection[str]) -> TierPolicy:
    def chosen(pool: int | None, tier: int | None, otherwise: int) -> int:
        return next(value for value in (pool, tier, otherwise) if value is not None)

    fairness = spec.fairness
    return TierPolicy(
        name=entry.name,
        priority=spec.priority or 0,
        reserved_percent=chosen(entry.reserved_percent, spec.reserved_percent, 0),
        max_percent=chosen(entry.max_percent, spec.max_percent, 100),
        output=_output(spec.output),
        max_in_flight=spec.max_in_flight,
        fairness=Fairness(
            (fairness and fairness.unit) or FairnessUnit.TOKENS,
            fairness.quantum if fairness else None,
        ),
        queue=_queue(spec.queue),
        weight=spec.weight or 1,
        prompt_limit=prompt_limit(entry.prompt_limit or spec.prompt_limit),
        rate_limits=rate_limits(spec.rate_limits),
        preemption=preemption(spec.preemption),
        slo_objectives=slo_objectives(spec.slo if entry.slo is None else entry.slo),
        draft_tokens=0 if entry.name in undrafted else None,
    )


def _output(spec: OutputSpec | None) -> OutputLimits:
    most = spec.max if spec else None
    default = spec.default if spec else None
    if default is None:
        default = DEFAULT_OUTPUT_TOKENS if most is None else min(DEFAULT_OUTPUT_TOKENS, most)
    return OutputLimits(default, most)


def _queue(spec: QueueSpec | None) -> QueueLimits:
    if spec is None:
        return QueueLimits()
    return QueueLimits(
        max_requests=spec.max_requests or DEFAULT_QUEUE_REQUESTS,
        max_bytes=spec.max_bytes or DEFAULT_QUEUE_BYTES,
        max_wait_seconds=(
            duration_seconds(spec.max_wait) if spec.max_wait else DEFAULT_QUEUE_WAIT_SECONDS
        ),
    )


def _no_tiers(pool: ServingPool, judgement: Judgement, namespaces: Collection[str]) -> Fault:
    """Why there is nothing to serve."""
    text = "The pool has no tier to serve; create a TenantTier, or name one in spec.tiers"
    if judgement.tiers and not pool.spec.tiers:
        which = joined(sorted(namespaces)) or "there is none"
        text = (
            "The pool has no tier to serve: the allowedNamespaces of no TenantTier select a "
            f"namespace whose Tenants it serves ({which}); change them, or have one labelled"
        )
    return Fault(ConditionType.ACCEPTED, Reason.NO_TIERS, text)


def _problems(tiers: Sequence[TierPolicy]) -> list[Fault]:
    """Why these tiers cannot be served together."""
    accepted = ConditionType.ACCEPTED
    if len(tiers) > MAX_TIERS:
        return [
            Fault(
                accepted,
                Reason.INVALID,
                f"spec.tiers is unset and {len(tiers)} TenantTiers may be claimed from the "
                f"namespaces that are served; a pool serves at most {MAX_TIERS}: name them in "
                "spec.tiers",
            )
        ]
    faults = [
        Fault(
            accepted,
            Reason.INVALID,
            f"spec.tiers[{tier.name}]: reservedPercent {tier.reserved_percent} is above maxPercent "
            f"{tier.max_percent} once TenantTier and pool are combined; set both here",
        )
        for tier in tiers
        if tier.reserved_percent > tier.max_percent
    ]
    reserved = sum(tier.reserved_percent for tier in tiers)
    if reserved > 100:
        faults.append(
            Fault(
                accepted,
                Reason.OVERCOMMITTED,
                f"spec.tiers: the reservedPercent of its tiers sum to {reserved}; at most 100 can "
                "be promised: lower some here or in their TenantTiers, or name fewer tiers",
            )
        )
    return faults
