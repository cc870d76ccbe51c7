"""Status of the three kinds: what people read with ``kubectl get`` and ``describe``.

All numbers are integers (percent, milliseconds): floats differ in their last digit from one
writer to the next, and a difference is a write. Absent means not known; zero means zero. Printer
columns read a single value each (a JSONPath of a column shows only the first element of a list),
so lists have a short summary beside them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from tidegate_operator.api.conditions import Condition, pending_conditions
from tidegate_operator.api.fields import ApiModel, described
from tidegate_operator.api.figures import (
    MAX_TIERS,
    MAX_TOP_TENANTS,
    FullName,
    LimitStatus,
    Load,
    PoolTenantStatus,
    PoolTierStatus,
    Refusal,
    RefusedTenantStatus,
    TierLoad,
)
from tidegate_operator.api.limits import MAX_RATE_LIMITS

MAX_POOLS = 100
MAX_TENANT_POOLS = 50
"""Shown of one Tenant, whose addresses stand beside them: a status stays below 32 kB."""
MAX_ENGINE_GROUPS = 8
MAX_SCALING_STEPS = 5

Address = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class ConditionedStatus(ApiModel):
    """What the status of every kind begins with."""

    observed_generation: int | None = described(
        "The metadata.generation that this status is about.", unset="not looked at yet", ge=0
    )
    conditions: list[Condition] | None = described(
        "Accepted: the spec is valid and takes effect. Ready: the summary; False only for what a "
        "person must mend, Unknown while in progress.",
        unset="not looked at yet",
        max_length=24,
        map_key="type",
    )

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((c for c in self.conditions or () if c.type == kind), None)


PENDING_STATUS = {"conditions": pending_conditions()}
"""Default of ``status`` in the CRDs."""


class EngineGroupStatus(ApiModel):
    """One engine group of a pool."""

    name: str = described("Name of the group.", min_length=1, max_length=63)
    desired: int | None = described("Pods that it should have.", unset="not known", ge=0)
    replicas: int | None = described("Pods that exist.", unset="not known", ge=0)
    ready_replicas: int | None = described("Pods that serve.", unset="not known", ge=0)
    address: Address | None = described(
        "Base URL of its Service, within the cluster.",
        unset="it has none, as only the router leads there",
    )


class ScalingStep(ApiModel):
    """One change of an engine group's size by autoscaling."""

    time: datetime = described("When it was decided.")
    group: str = described("The engine group.", min_length=1, max_length=63)
    from_replicas: int = described("Pods before.", ge=0)
    to_replicas: int = described("Pods wanted since.", ge=0)
    reason: str = described(
        "Alerts, BurnRate or QueueWait: that signal asked for more. Calm: fewer would have held. "
        "Bounds: spec.autoscaling allows no other size.",
        min_length=1,
        max_length=64,
    )
    message: str = described("Why, for people.", max_length=512)


class ScalingStatus(ApiModel):
    """What autoscaling decided."""

    desired: int | None = described(
        "Pods that all engine groups together should have.", unset="not decided yet", ge=0
    )
    history: list[ScalingStep] | None = described(
        "Its last steps, the newest first.",
        unset="none",
        max_length=MAX_SCALING_STEPS,
        list_type="atomic",
    )


class ServingPoolStatus(ConditionedStatus):
    """What a pool does now."""

    desired_replicas: int | None = described(
        "Engine pods that should exist: spec.replicas, or what autoscaling decided.",
        unset="not known",
        ge=0,
    )
    replicas: int | None = described("Engine pods that exist.", unset="not known", ge=0)
    ready_replicas: int | None = described("Engine pods that serve.", unset="not known", ge=0)
    selector: str | None = described(
        "Label selector of the engine pods, for autoscalers.", unset="not known", max_length=1024
    )
    addresses: list[Address] | None = described(
        "Base URLs that tenants call.", unset="none yet", max_length=16, list_type="atomic"
    )
    engine_groups: list[EngineGroupStatus] | None = described(
        "Each engine group of the spec, and its fallback.",
        unset="the pool names neither",
        max_length=MAX_ENGINE_GROUPS + 1,
        map_key="name",
    )
    scaling: ScalingStatus | None = described(
        "What autoscaling decided.", unset="spec.autoscaling is not set"
    )
    policy_generation: int | None = described(
        "Generation of the policy that every ready sidecar has in force.", unset="none yet", ge=0
    )
    queued: int | None = described("Requests waiting in our queues.", unset="not known", ge=0)
    running: int | None = described("Requests in the engines.", unset="not known", ge=0)
    tier_summary: str | None = described(
        "queued/running of each tier that has any, such as `t0 0/12 t3 410/4`.",
        unset="not known",
        max_length=1024,
    )
    tiers: list[PoolTierStatus] | None = described(
        "Each tier served here.", unset="not known", max_length=MAX_TIERS, map_key="name"
    )
    tenants: list[PoolTenantStatus] | None = described(
        f"{MAX_TOP_TENANTS} tenants: the half that took most in the last minute, and of the others "
        "those that wait longest, else took most.",
        unset="not known",
        max_length=MAX_TOP_TENANTS,
        map_key="name",
    )
    refused_tenants: list[RefusedTenantStatus] | None = described(
        f"The {MAX_TOP_TENANTS} tenants of whom most requests were refused in the last minute, and "
        "why.",
        unset="none",
        max_length=MAX_TOP_TENANTS,
        map_key="name",
    )


class TenantTierStatus(TierLoad, ConditionedStatus):
    """What a tier does over all pools."""

    tenants: int | None = described("Accepted Tenants of this tier.", unset="not known", ge=0)
    pools: list[FullName] | None = described(
        "Pools that serve it, namespace/name.",
        unset="none",
        max_length=MAX_POOLS,
        list_type="atomic",
    )
    worst_pool: FullName | None = described(
        "The pool with the highest 99th percentile of the time to first token.",
        unset="no request yet",
    )


class TenantStatus(Load, ConditionedStatus):
    """What a tenant uses over all pools."""

    pools: list[FullName] | None = described(
        f"Pools that serve it, namespace/name; the first {MAX_TENANT_POOLS}.",
        unset="none",
        max_length=MAX_POOLS,
        list_type="atomic",
    )
    addresses: list[Address] | None = described(
        "Base URLs within the cluster that its requests should go to, one of each of its pools: "
        "where the pool has engine groups and no router, that of its tier's group.",
        unset="none yet",
        max_length=MAX_POOLS,
        list_type="atomic",
    )
    share_percent: int | None = described(
        "Its part of its pools' service (tokens) of the last minute.",
        unset="not known",
        ge=0,
        le=100,
    )
    refused_summary: str | None = described(
        "Refused requests since the pods started in short, such as `12 queue_full 3 held`; those "
        "of the last minute are in refusedTenants of the pool.",
        unset="none",
        max_length=256,
    )
    last_refusal: Refusal | None = described("The newest refused request.", unset="none")
    limits: list[LimitStatus] | None = described(
        "What it has used of its rate limits, over all pools.",
        unset="it has none, or no request yet",
        max_length=2 * MAX_RATE_LIMITS,
        map_key="name",
    )
    limit_summary: str | None = described(
        "The rate limits in short, the fullest first, such as `monthly 97% rpm 20%`.",
        unset="as limits",
        max_length=256,
    )
