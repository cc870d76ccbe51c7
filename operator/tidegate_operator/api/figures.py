"""Figures in a status: how much waits and runs, how it fares, what it costs, who is refused.

All numbers are integers, or text where a fraction counts (see :mod:`tidegate_operator.api.status`).
*Lately* is the last minute; what is counted since the pods started says so.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from tidegate_operator.api.fields import ApiModel, described

MAX_TIERS = 64
MAX_TOP_TENANTS = 10

Count = Annotated[int, Field(ge=0)]
FullName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
"""namespace/name."""
Percentage = Annotated[
    str, StringConstraints(max_length=10, pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?$")
]
"""With a fraction, as text."""
LOWEST_BUDGET_PERCENT = -9_999


class Latency(ApiModel):
    """Two quantiles of a duration over the last minutes, merged over all pods."""

    p50_ms: int | None = described("Median, milliseconds.", unset="no request yet", ge=0)
    p99_ms: int | None = described("99th percentile, milliseconds.", unset="no request yet", ge=0)


class Load(ApiModel):
    """Requests that wait and run, and how they fare."""

    queued: int | None = described("Requests waiting in our queues.", unset="not known", ge=0)
    running: int | None = described("Requests in the engines.", unset="not known", ge=0)
    oldest_wait_ms: int | None = described(
        "How long that has waited which waits longest, milliseconds.", unset="none waits", ge=0
    )
    ttft: Latency | None = described("Arrival to first token.", unset="not known")
    queue_wait: Latency | None = described("Arrival to dispatch.", unset="not known")
    refused: dict[str, Count] | None = described(
        "Refused requests since the pods started, by reason (the outcome label of "
        "tidegate_requests_total). Those of the last minute: refusedTenants of the pool, and "
        "refused of an objective.",
        unset="none",
        max_length=32,
    )


class Measured(StrEnum):
    """What attainment was measured over."""

    WINDOW = "Window"
    SIDECAR_START = "SidecarStart"


class ObjectiveStatus(ApiModel):
    """How one promise to a tier was kept."""

    metric: str = described("What is promised.", min_length=1, max_length=64)
    requests: int | None = described(
        "Requests of the last minute that count for it. One that the pool refused (throttled, "
        "waited too long, no engine) or failed counts, as broken; one that its own limit, its body "
        "or its key ended does not.",
        unset="not known",
        ge=0,
    )
    kept_percent: int | None = described(
        "Those of them that kept it, of all tenants of the tier together.",
        unset="no request",
        ge=0,
        le=100,
    )
    refused: int | None = described(
        "Of the requests of the last minute that broke it, those that were refused or failed: of "
        "a tenant that floods the tier mostly its own.",
        unset="none broke it, or sidecars of an earlier version do not tell",
        ge=0,
    )
    late: int | None = described(
        "The others of them: served, but not in time, or given up by their client after it.",
        unset="as refused",
        ge=0,
    )
    target_ms: int | None = described("What is promised, milliseconds.", unset="not known", ge=0)
    promised_percent: Percentage | None = described(
        "Of how many requests it is promised.", unset="not known"
    )
    attained_percent: Percentage | None = described(
        "How many of the requests that count got it, rounded down; refused ones count as broken. "
        "Over what, `measured` says: not the last minute.",
        unset="no request yet",
    )
    budget_left_percent: int | None = described(
        "What is left of the requests that may break the promise, over what `measured` says: of "
        "100 - promisedPercent, 100 - attainedPercent are spent. Below 0: more have broken it.",
        unset="no request yet",
        ge=LOWEST_BUDGET_PERCENT,
        le=100,
    )
    measured: Measured | None = described(
        "What the two before are about. Window: the objective's own window, as the pool's "
        "Prometheus tells, whose dashboards have the same figure. SidecarStart: since the present "
        "pods started, since the pool names no Prometheus or it says nothing.",
        unset="no request yet",
    )
    pool: FullName | None = described(
        "In the status of a TenantTier: the pool that this is about, the one with the least budget "
        "left.",
        unset="in the status of a pool",
    )


class KvStatus(ApiModel):
    """Blocks of the engines' KV caches."""

    held_blocks: int | None = described(
        "Of the tier's requests in the engines.", unset="not counted", ge=0
    )
    quota_blocks: int = described(
        "Of its own: of its KV pool, which it may share with other tiers.", ge=0
    )
    borrowed_blocks: int = described("Held by its KV pool beyond what is its own.", ge=0)


class TierLoad(Load):
    """A tier: how it fares, what it takes and what it costs."""

    end_to_end: Latency | None = described("Arrival to end.", unset="not known")
    inter_token: Latency | None = described(
        "Mean gap between the tokens of a request.", unset="not known"
    )
    share_percent: int | None = described(
        "Its part of the service (tokens) of the last minute.", unset="not known", ge=0, le=100
    )
    busy_percent: int | None = described(
        "Part of the engines' time in the last minute that was spent on it; what all tiers lack of "
        "100 was idle.",
        unset="not known",
        ge=0,
        le=100,
    )
    price_per1000_calls: str | None = described(
        "What 1,000 of its calls cost, by the engine time that those of the last minute took and "
        "spec.price of the pool.",
        unset="no price, or no call",
        max_length=32,
    )
    objectives: list[ObjectiveStatus] | None = described(
        "How its promises were kept.",
        unset="nothing is promised",
        max_length=8,
        map_key="metric",
    )
    kv: KvStatus | None = described(
        "Its part of the KV caches.",
        unset="not known: no KV pool and no evictable tier, or the engines have not told yet",
    )
    draft_acceptance_percent: int | None = described(
        "Of the draft tokens of its requests in the last minute, those that were accepted.",
        unset="none were drafted, or the engines have no plug-in to tell",
        ge=0,
        le=100,
    )
    preemptions: int | None = described(
        "How often its requests were taken off an engine since the pods started.",
        unset="never",
        ge=0,
    )
    vft_skew_flagged: int | None = described(
        "Its requests, since the pods started, that ended more than 30 percent later than was "
        "estimated at their dispatch.",
        unset="none",
        ge=0,
    )


class PoolTierStatus(TierLoad):
    """One tier in one pool. Where the pool's status would get too large, those tiers that were
    given least have queued and running alone."""

    name: str = described("Name of the TenantTier.", min_length=1, max_length=253)


class PoolTenantStatus(ApiModel):
    """One of the tenants that took most of a pool, or wait longest for it."""

    name: FullName = described("namespace/name of the Tenant.")
    tier: str | None = described("Its tier.", unset="not known", max_length=253)
    queued: int | None = described("Requests waiting in our queues.", unset="not known", ge=0)
    running: int | None = described("Requests in the engines.", unset="not known", ge=0)
    oldest_wait_ms: int | None = described(
        "How long that has waited which waits longest, milliseconds.", unset="none waits", ge=0
    )
    share_percent: int | None = described(
        "Its part of the service (tokens) of the last minute.", unset="not known", ge=0, le=100
    )
    ttft: Latency | None = described(
        "Arrival to first token, in the last minute.", unset="none in it"
    )


class RefusedTenantStatus(ApiModel):
    """One of the tenants of whom most was refused."""

    name: FullName = described("namespace/name of the Tenant.")
    tier: str | None = described("Its tier.", unset="not known", max_length=253)
    refused: int = described("Its requests of the last minute that were refused.", ge=0)
    why: str = described(
        "How many by each reason, most first, such as `40 rate_limited 2 queue_full`.",
        max_length=256,
    )
    limit: str | None = described(
        "The rate limit that refused its last request.",
        unset="none did",
        max_length=64,
    )


class Refusal(ApiModel):
    """One refused request."""

    reason: str = described("The outcome.", min_length=1, max_length=64)
    time: datetime = described("When.")
    limit: str | None = described(
        "The rate limit that refused it.", unset="none did", max_length=64
    )


class LimitStatus(ApiModel):
    """What a tenant has used of one rate limit."""

    name: str = described("The limit.", min_length=1, max_length=64)
    per: str = described("Its window: Minute, Hour, Day or Month.", min_length=1, max_length=16)
    used_percent: int = described(
        "Of the limit, of requests or tokens whichever is more; above 100 where what was reserved "
        "turned out to be more.",
        ge=0,
    )
    requests: int | None = described("Requests allowed.", unset="not limited", ge=0)
    requests_used: int | None = described("Of them.", unset="not limited", ge=0)
    tokens: int | None = described("Tokens allowed.", unset="not limited", ge=0)
    tokens_used: int | None = described("Of them.", unset="not limited", ge=0)
