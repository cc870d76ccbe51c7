"""Status of the three kinds: what people read with ``kubectl get`` and ``describe``.

All numbers are integers (percent, milliseconds): floats differ in their last digit from one
writer to the next, and a difference is a write. Absent means not known; zero means zero. Printer
columns read a single value each (a JSONPath of a column shows only the first element of a list),
so lists have a short summary beside them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from tidegate_operator.api.conditions import Condition, pending_conditions
from tidegate_operator.api.fields import ApiModel, described

MAX_TIERS = 64
MAX_TOP_TENANTS = 10
MAX_POOLS = 100
MAX_ENGINE_GROUPS = 8
MAX_SCALING_STEPS = 5

Count = Annotated[int, Field(ge=0)]
FullName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
"""namespace/name."""
Address = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Latency(ApiModel):
    """Two quantiles of a duration over the last minutes, merged over all pods."""

    p50_ms: int | None = described("Median, milliseconds.", unset="no request yet", ge=0)
    p99_ms: int | None = described("99th percentile, milliseconds.", unset="no request yet", ge=0)


class ConditionedStatus(ApiModel):
    """What the status of every kind begins with."""

    observed_generation: int | None = described(
        "The metadata.generation that this status is about.", unset="not looked at yet", ge=0
    )
    conditions: list[Condition] | None = described(
        "Accepted: the spec is valid and takes effect. Ready: the summary; False only for what a "
        "person must mend, Unknown while in progress.",
        unset="not looked at yet",
        max_length=16,
        map_key="type",
    )

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((c for c in self.conditions or () if c.type == kind), None)


PENDING_STATUS = {"conditions": pending_conditions()}
"""Default of ``status`` in the CRDs."""


class Load(ApiModel):
    """Requests that wait and run, and how they fare."""

    queued: int | None = described("Requests waiting in our queues.", unset="not known", ge=0)
    running: int | None = described("Requests in the engines.", unset="not known", ge=0)
    ttft: Latency | None = described("Arrival to first token.", unset="not known")
    queue_wait: Latency | None = described("Arrival to dispatch.", unset="not known")
    refused: dict[str, Count] | None = described(
        "Refused requests since the pods started, by reason (the outcome label of "
        "tidegate_requests_total).",
        unset="none",
        max_length=32,
    )


class ObjectiveStatus(ApiModel):
    """How one promise to a tier was kept in the last minute."""

    metric: str = described("What is promised.", min_length=1, max_length=64)
    requests: int | None = described("Requests that count for it.", unset="not known", ge=0)
    kept_percent: int | None = described(
        "Those of them that kept it.", unset="no request", ge=0, le=100
    )


class PoolTierStatus(Load):
    """One tier in one pool."""

    name: str = described("Name of the TenantTier.", min_length=1, max_length=253)
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
        "spec.price.",
        unset="no price, or no call",
        max_length=32,
    )
    objectives: list[ObjectiveStatus] | None = described(
        "How its promises were kept in the last minute.",
        unset="nothing is promised",
        max_length=8,
        map_key="metric",
    )


class PoolTenantStatus(ApiModel):
    """One of the tenants that took most of a pool."""

    name: FullName = described("namespace/name of the Tenant.")
    tier: str | None = described("Its tier.", unset="not known", max_length=253)
    queued: int | None = described("Requests waiting in our queues.", unset="not known", ge=0)
    running: int | None = described("Requests in the engines.", unset="not known", ge=0)
    share_percent: int | None = described(
        "Its part of the service (tokens) of the last minute.", unset="not known", ge=0, le=100
    )


class EngineGroupStatus(ApiModel):
    """One engine group of a pool."""

    name: str = described("Name of the group.", min_length=1, max_length=63)
    desired: int | None = described("Pods that it should have.", unset="not known", ge=0)
    replicas: int | None = described("Pods that exist.", unset="not known", ge=0)
    ready_replicas: int | None = described("Pods that serve.", unset="not known", ge=0)
    address: Address | None = described(
        "Base URL of its Service, within the cluster.", unset="not known"
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
        "Each engine group of the spec.",
        unset="the pool names none",
        max_length=MAX_ENGINE_GROUPS,
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
        f"The {MAX_TOP_TENANTS} tenants that took most in the last minute.",
        unset="not known",
        max_length=MAX_TOP_TENANTS,
        map_key="name",
    )


class TenantTierStatus(Load, ConditionedStatus):
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


class Refusal(ApiModel):
    """One refused request."""

    reason: str = described("The outcome.", min_length=1, max_length=64)
    time: datetime = described("When.")


class TenantStatus(Load, ConditionedStatus):
    """What a tenant uses over all pools."""

    pools: list[FullName] | None = described(
        "Pools that serve it, namespace/name.",
        unset="none",
        max_length=MAX_POOLS,
        list_type="atomic",
    )
    addresses: list[Address] | None = described(
        "Base URLs within the cluster that its requests should go to, one of each of its pools: "
        "where the pool has engine groups, that of its tier's.",
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
        "Refused requests in short, such as `12 queue_full 3 held`.",
        unset="none",
        max_length=256,
    )
    last_refusal: Refusal | None = described("The newest refused request.", unset="none")
