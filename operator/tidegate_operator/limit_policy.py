"""Limits and promises of the API as the policy has them, defaults resolved. Pure.

Whether a Tenant's own rate limits may stand is decided here too (:func:`looser_limits`): under
``tenantOverrides.rateLimits: Tighten`` one may replace the tier's of its name only where it lets
through nothing that the tier's would not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.scheduling.contracts import (
    OnExceed,
    Preemption,
    PromptLimit,
    RateLimit,
    SloObjective,
)
from tidegate_operator.api import limits as api
from tidegate_operator.api.fields import duration_seconds


def rate_limits(spec: Sequence[api.RateLimit] | None) -> tuple[RateLimit, ...]:
    """By name, so that their order in the object changes no policy."""
    made = (
        RateLimit(
            limit.name,
            limit.per,
            limit.requests,
            limit.tokens,
            tuple(sorted(limit.endpoints or ())),
            tuple(sorted(limit.models or ())),
        )
        for limit in spec or ()
    )
    return tuple(sorted(made, key=lambda limit: limit.name))


def looser_limits(own: Sequence[RateLimit], of_tier: Sequence[RateLimit]) -> list[str]:
    """Names of a Tenant's limits that are looser than its tier's of the same name."""
    tier = {limit.name: limit for limit in of_tier}
    return [limit.name for limit in own if limit.name in tier and _looser(limit, tier[limit.name])]


def _looser(own: RateLimit, tier: RateLimit) -> bool:
    return (
        own.per is not tier.per
        or _above(own.requests, tier.requests)
        or _above(own.tokens, tier.tokens)
        or not _covers(own.endpoints, tier.endpoints)
        or not _covers(own.models, tier.models)
    )


def _above(own: int | None, tier: int | None) -> bool:
    return tier is not None and (own is None or own > tier)


def _covers(own: Collection[str], tier: Collection[str]) -> bool:
    """Whether the one counts all that the other counts; empty counts everything."""
    return not own or (bool(tier) and set(tier) <= set(own))


def prompt_limit(spec: api.PromptLimit | None) -> PromptLimit | None:
    """None: what the model takes."""
    if spec is None:
        return None
    return PromptLimit(
        spec.max_tokens,
        _seconds(spec.max_prefill_time),
        spec.on_exceed or OnExceed.REJECT,
    )


def slo_objectives(spec: api.Slo | None) -> tuple[SloObjective, ...]:
    """By metric."""
    made = (
        SloObjective(
            objective.metric,
            duration_seconds(objective.target),
            float(objective.ratio or api.DEFAULT_RATIO),
            duration_seconds(objective.window or api.DEFAULT_WINDOW),
        )
        for objective in (spec.objectives if spec else None) or ()
    )
    return tuple(sorted(made, key=lambda objective: objective.metric))


def preemption(spec: api.Preemption | None) -> Preemption:
    """As the contract has it where nothing is said."""
    default = Preemption()
    if spec is None:
        return default
    backoff = spec.recompute_backoff or api.RecomputeBackoff()
    per, longest = _seconds(backoff.per_queued_request), _seconds(backoff.max)
    most = spec.max_per_request
    return Preemption(
        evictable=spec.evictable or False,
        backoff_per_queued_request_seconds=(
            default.backoff_per_queued_request_seconds if per is None else per
        ),
        backoff_max_seconds=default.backoff_max_seconds if longest is None else longest,
        max_per_request=default.max_per_request if most is None else most,
    )


def _seconds(written: str | None) -> float | None:
    return None if written is None else duration_seconds(written)
