"""TenantTier: one class of customers and what it is promised; cluster-wide, like PriorityClass."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.contracts.limits import (
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_QUANTUM,
    DEFAULT_QUEUE_BYTES,
    DEFAULT_QUEUE_REQUESTS,
    DEFAULT_QUEUE_WAIT_SECONDS,
)
from tidegate_operator.api.common import LabelSelector, ObjectMeta
from tidegate_operator.api.fields import ApiModel, described, duration, rule, rules
from tidegate_operator.api.limits import (
    MAX_RATE_LIMITS,
    MAX_TOKENS,
    Preemption,
    PromptLimit,
    RateLimit,
    Slo,
)
from tidegate_operator.api.status import TenantTierStatus


class OutputLimits(ApiModel):
    """Output tokens of one request."""

    model_config = rules(
        rule(
            "!has(self.default) || !has(self.max) || self.default <= self.max",
            "output.default must not be above output.max",
            field_path=".default",
        )
    )

    default: int | None = described(
        "Output tokens asked of the engine where the client names no number.",
        unset=f"{DEFAULT_OUTPUT_TOKENS}, or max where that is less",
        ge=1,
        le=MAX_TOKENS,
    )
    max: int | None = described(
        "Most output tokens that a client may ask for; more is refused with 400.",
        unset="as many as the model allows",
        ge=1,
        le=MAX_TOKENS,
    )


class Fairness(ApiModel):
    """How the tenants of the tier share what the tier gets."""

    unit: FairnessUnit | None = described(
        "Requests: each counts one, for even turns. Tokens: each counts its prompt and output "
        "tokens, so that long requests pay for their length. EngineTime: each counts its part of "
        "the milliseconds that the engine was busy, which differs from tokens where prompts are "
        "long, cached, or share a step with many others; in pools that embed, whose engines show "
        "no steps, tokens stand in its place.",
        unset="Tokens",
    )
    quantum: int | None = described(
        "Most credit in hand at weight 1, in `unit`, given in eight turns. Smaller interleaves "
        "finer.",
        unset=f"{DEFAULT_QUANTUM[FairnessUnit.REQUESTS]} request, "
        f"{DEFAULT_QUANTUM[FairnessUnit.TOKENS]} tokens (in pools that embed a full batch, where "
        "spec.engine.args say --max-num-batched-tokens) or "
        f"{DEFAULT_QUANTUM[FairnessUnit.ENGINE_TIME]} milliseconds",
        ge=1,
        le=MAX_TOKENS,
    )


class QueueLimits(ApiModel):
    """Bounds of the queue of one tenant in one pod; beyond them 429 at once."""

    max_requests: int | None = described(
        "Most requests that wait.", unset=f"{DEFAULT_QUEUE_REQUESTS}", ge=1, le=1_000_000
    )
    max_bytes: int | None = described(
        "Most bytes of request bodies that wait.",
        unset=f"{DEFAULT_QUEUE_BYTES} ({DEFAULT_QUEUE_BYTES // 1024**2} MiB)",
        ge=1024,
        le=64 * 1024**3,
    )
    max_wait: str | None = duration(
        "Longest wait; a request that waited longer ends with 504.",
        low="1ms",
        high="24h",
        unset=f"{DEFAULT_QUEUE_WAIT_SECONDS:g}s",
    )


class LimitOverride(StrEnum):
    """How a Tenant's rate limits may differ from its tier's."""

    TIGHTEN = "Tighten"
    ANY = "Any"


class TenantOverrides(ApiModel):
    """What a Tenant of this tier may set for itself."""

    max_weight: int | None = described(
        "Highest `weight` that a Tenant may have; above it the Tenant is not accepted.",
        unset="1, so that a Tenant cannot raise its own share",
        ge=1,
        le=1000,
    )
    rate_limits: LimitOverride | None = described(
        "What a Tenant's rateLimits may be. Tighten: further limits, and none looser than the "
        "tier's of the same name; with a looser one the Tenant is not accepted. Any: its own "
        "stand in the place of the tier's of the same name, whatever they are.",
        unset="Tighten",
    )


class TenantTierSpec(ApiModel):
    """What the tier is promised, and who may claim it."""

    model_config = rules(
        rule(
            "!has(self.reservedPercent) || !has(self.maxPercent) "
            "|| self.reservedPercent <= self.maxPercent",
            "reservedPercent must not be above maxPercent",
            field_path=".reservedPercent",
        )
    )

    priority: int | None = described(
        "Order between tiers: the higher goes first. May be negative.",
        unset="0",
        ge=-(2**31),
        le=2**31 - 1,
    )
    weight: int | None = described(
        "Share of what is not reserved, in pools whose betweenTiers is Weighted: 3 gets three "
        "times what 1 gets while both have requests waiting.",
        unset="1",
        ge=1,
        le=1000,
    )
    reserved_percent: int | None = described(
        "Percent of the time that each engine is busy, which the tier gets for certain while it "
        "has requests waiting, whatever the priority of the others; in pools that embed, whose "
        "engines show no steps, percent of the tokens. In each pool the reservations of all its "
        "tiers sum to at most 100.",
        unset="0",
        zero="nothing is reserved; the tier gets what tiers of higher priority leave",
        ge=0,
        le=100,
    )
    max_percent: int | None = described(
        "Most that the tier takes of the time that each engine is busy, in percent, while other "
        "tiers wait; in pools that embed, of the tokens. Idle capacity it may use all the same.",
        unset="100, no limit",
        ge=1,
        le=100,
    )
    slo: Slo | None = described(
        "What its tenants are promised.", unset="as if all its fields were unset"
    )
    prompt_limit: PromptLimit | None = described(
        "The largest prompt of a request.", unset="as much as the model takes"
    )
    output: OutputLimits | None = described(
        "Output tokens of one request.", unset="as if all its fields were unset"
    )
    rate_limits: list[RateLimit] | None = described(
        "The most that each of its tenants may take, each for itself; beyond it 429, or 413 where "
        "it could never be served. All of them hold at once. A refused request costs nothing.",
        unset="not limited",
        empty="the same",
        max_length=MAX_RATE_LIMITS,
        map_key="name",
    )
    max_in_flight: int | None = described(
        "Most requests of one tenant in one engine at once; further ones wait.",
        unset="no such limit",
        ge=1,
        le=100_000,
    )
    fairness: Fairness | None = described(
        "How the tenants of this tier share what the tier gets.",
        unset="as if all its fields were unset",
    )
    preemption: Preemption | None = described(
        "When its requests are taken off the engine again.",
        unset="as if all its fields were unset",
    )
    queue: QueueLimits | None = described(
        "Bounds of the queue of each tenant in each pod.", unset="as if all its fields were unset"
    )
    allowed_namespaces: LabelSelector = described(
        "Namespaces whose Tenants may claim this tier. Pools that list no tiers serve it, and "
        "count its reservation, where they serve Tenants of one of these. Required, so that no "
        "tier is open to everyone by mistake.",
        empty="({}) all namespaces",
    )
    tenant_overrides: TenantOverrides | None = described(
        "What a Tenant of this tier may set for itself.", unset="as if all its fields were unset"
    )


class TenantTier(ApiModel):
    """One class of customers (such as paid conversation, agents, batch, free): its order, reserved
    share and limits. Cluster-wide; Tenants claim it by name and ServingPools serve it."""

    api_version: Literal["tidegate.io/v1alpha1"] = "tidegate.io/v1alpha1"
    kind: Literal["TenantTier"] = "TenantTier"
    metadata: ObjectMeta
    spec: TenantTierSpec = described("What the tier is promised, and who may claim it.")
    status: TenantTierStatus = Field(
        default_factory=TenantTierStatus, description="What the tier does; written by the operator."
    )
