"""ServingPool: one model on a set of vLLM engines, and whom it serves in which tiers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate.scheduling.contracts import BetweenTiers, SchedulingMode
from tidegate_operator.api.autoscaling import AutoscalingSpec
from tidegate_operator.api.common import LabelSelector, ObjectMeta, ResourceRequirements
from tidegate_operator.api.engine import EngineSpec, ImageName
from tidegate_operator.api.engine_groups import EngineGroup
from tidegate_operator.api.fallback import Fallback
from tidegate_operator.api.fields import ApiModel, KindName, described, duration, rule, rules
from tidegate_operator.api.figures import MAX_TIERS
from tidegate_operator.api.kv import MAX_KV_POOLS, KvPool, Prefill
from tidegate_operator.api.limits import PromptLimit, Slo
from tidegate_operator.api.model import ModelSpec
from tidegate_operator.api.observability import ObservabilitySpec
from tidegate_operator.api.price import PriceSpec
from tidegate_operator.api.router import RouterSpec
from tidegate_operator.api.shared_state import SharedStateSpec
from tidegate_operator.api.status import MAX_ENGINE_GROUPS, ServingPoolStatus

MAX_REPLICAS = 1000


class PoolTier(ApiModel):
    """One tier served here, and what differs from its TenantTier."""

    model_config = rules(
        rule(
            "!has(self.reservedPercent) || !has(self.maxPercent) "
            "|| self.reservedPercent <= self.maxPercent",
            "reservedPercent must not be above maxPercent",
            field_path=".reservedPercent",
        )
    )

    name: KindName = described("Name of the TenantTier.")
    reserved_percent: int | None = described(
        "As the tier's reservedPercent, for this pool.",
        unset="the tier's own",
        zero="nothing is reserved here",
        ge=0,
        le=100,
    )
    max_percent: int | None = described(
        "As the tier's maxPercent, for this pool.", unset="the tier's own", ge=1, le=100
    )
    slo: Slo | None = described(
        "What its tenants are promised in this pool, in the place of all that the tier promises.",
        unset="the tier's own",
        empty="({}) nothing is promised here",
    )
    prompt_limit: PromptLimit | None = described(
        "The largest prompt in this pool.", unset="the tier's own"
    )


class PoolTenants(ApiModel):
    """Whose Tenants are served."""

    namespace_selector: LabelSelector | None = described(
        "Namespaces whose Tenants this pool serves. Others than its own only where the operator's "
        "settings allow it for this pool's namespace.",
        unset="its own namespace",
        empty="({}) all namespaces",
    )


class SidecarSpec(ApiModel):
    """The proxy in each pod that schedules requests."""

    image: ImageName | None = described(
        "Image of the sidecar. An upgrade of the operator leaves it alone and restarts nothing.",
        unset="what the pool already runs; for a new pool the operator's own version",
    )
    resources: ResourceRequirements | None = described(
        "Compute resources of the sidecar's container.", unset="the operator's defaults"
    )


class ServiceType(StrEnum):
    """How the pool is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServiceSpec(ApiModel):
    """The Service that tenants call; it has the pool's name."""

    model_config = rules(
        rule(
            "!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",
            "loadBalancerClass needs type: LoadBalancer",
            field_path=".loadBalancerClass",
        )
    )

    type: ServiceType | None = described(
        "ClusterIP: within the cluster only. NodePort: on a port of every node. LoadBalancer: at "
        "an address of its own.",
        unset="ClusterIP",
    )
    annotations: dict[str, Annotated[str, StringConstraints(max_length=4096)]] | None = described(
        "Annotations of the Service, as load balancers want them.", unset="none", max_length=32
    )
    load_balancer_class: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=317, pattern=r"^[-._a-z0-9]+(/[-._A-Za-z0-9]+)?$"
            ),
        ]
        | None
    ) = described("Which load balancer implementation serves it.", unset="the cluster's own")
    stream_keep_alive: str | None = duration(
        "How often a streamed request that waits for its turn or its first event is sent an SSE "
        "comment, so that no load balancer on the way takes the connection for idle. The first "
        "one commits status 200: what fails after it is an event of the stream, and no other pod "
        "takes the request over. Takes effect for new requests, within seconds, and restarts "
        "nothing.",
        low="1s",
        high="1h",
        unset="nothing is sent before the first event",
    )


_OVER_100 = "the percents of all kvPools sum to more than 100"
_IN_TWO = "a tier is in more than one of kvPools; it may be in one"
_HAS_PLUGIN = "(has(self.engine.plugin) && self.engine.plugin == 'Enabled')"
_GENERATES = "!has(self.model.task) || self.model.task == 'Generate'"


class ServingPoolSpec(ApiModel):
    """What is served, on what, for whom and in which order."""

    model_config = rules(
        rule(
            f"!has(self.kvPools) || {_GENERATES}",
            "kvPools is for models that generate; embeddings keep nothing in the KV cache",
            field_path=".kvPools",
        ),
        rule(
            f"!has(self.prefill) || {_GENERATES}",
            "prefill is for models that generate; in embeddings nobody waits for a next token",
            field_path=".prefill",
        ),
        rule(
            f"!has(self.prefill) || {_HAS_PLUGIN} || !has(self.prefill.longPromptTokens)",
            "longPromptTokens needs engine.plugin: Enabled; without it the engine fills its steps "
            "by itself",
            field_path=".prefill",
        ),
        rule(
            f"!has(self.engine.plugin) || self.engine.plugin != 'Enabled' || {_GENERATES}",
            "engine.plugin is for models that generate; requests to embed are left to vLLM",
            field_path=".engine.plugin",
        ),
        rule(
            f"!has(self.engineGroups) || {_GENERATES} || "
            "!self.engineGroups.exists(group, has(group.draft))",
            "a draft is for models that generate; embeddings decode nothing",
            field_path=".engineGroups",
        ),
        rule(
            "!has(self.engineGroups) || !has(self.tiers) || self.engineGroups.all(group, "
            "!has(group.tiers) || group.tiers.all(name, "
            "self.tiers.exists(tier, tier.name == name)))",
            "engineGroups names a tier that is not in tiers, so that it is not served here",
            field_path=".engineGroups",
        ),
        rule(
            f"{_HAS_PLUGIN} || !has(self.engineGroups) || !self.engineGroups.exists(group, "
            "has(group.noDraftTiers) && size(group.noDraftTiers) > 0)",
            "noDraftTiers needs engine.plugin: Enabled",
            field_path=".engineGroups",
        ),
        rule(
            "has(self.router) || !has(self.engineGroups) || "
            "!self.engineGroups.exists(group, has(group.spill))",
            "spill needs a router: without one nothing moves a request to another group",
            field_path=".engineGroups",
        ),
        rule(
            "!has(self.fallback) || has(self.router)",
            "fallback needs a router: without one nothing sends it requests",
            field_path=".fallback",
        ),
        rule(
            "!has(self.fallback) || !has(self.tiers) || self.fallback.tiers.all(name, "
            "self.tiers.exists(tier, tier.name == name))",
            "fallback names a tier that is not in tiers, so that it is not served here",
            field_path=".fallback.tiers",
        ),
        rule(
            "!has(self.autoscaling) || !has(self.autoscaling.signals) || "
            "!self.autoscaling.signals.exists(signal, signal != 'QueueWait') || "
            "(has(self.observability) && has(self.observability.prometheus))",
            "the signals Alerts and BurnRate need observability.prometheus",
            field_path=".autoscaling.signals",
        ),
        rule(
            "!has(self.kvPools) || !has(self.tiers) || self.kvPools.all(part, "
            "part.tiers.all(name, self.tiers.exists(tier, tier.name == name)))",
            "kvPools names a tier that is not in tiers, so that it is not served here",
            field_path=".kvPools",
        ),
    )

    model: ModelSpec = described("What is served.")
    tiers: list[PoolTier] | None = described(
        "Tiers served here; Tenants of other tiers are not.",
        unset="those that Tenants of the namespaces served here may claim, as their TenantTiers "
        "have them",
        min_length=1,
        max_length=MAX_TIERS,
        map_key="name",
        cel=[
            rule(
                "self.map(tier, has(tier.reservedPercent) ? tier.reservedPercent : 0).sum() <= 100",
                "the reservedPercent of all tiers sum to more than 100",
            )
        ],
    )
    tenants: PoolTenants | None = described(
        "Whose Tenants are served.", unset="as if all its fields were unset"
    )
    engine: EngineSpec = described("The container that runs vLLM.")
    engine_groups: list[EngineGroup] | None = described(
        "Engines with drafts of their own, a StatefulSet each. The router brings a request to the "
        "group of its tier. Without one nothing does: each group has a Service of its own, and the "
        "pool's own leads to the first that serves.",
        unset="one group of all pods, without a draft",
        min_length=1,
        max_length=MAX_ENGINE_GROUPS,
        map_key="name",
        cel=[
            rule(
                "self.all(group, !has(group.tiers) || group.tiers.all(tier, self.exists_one(other, "
                "has(other.tiers) && other.tiers.exists(name, name == tier))))",
                "a tier is in more than one of engineGroups; it has one home",
            )
        ],
    )
    fallback: Fallback | None = described(
        "Engines that serve some tiers while no pod of the engine groups does. The condition "
        "Fallback and an event say when; answers have the header x-tidegate-engine-group: "
        "fallback.",
        unset="none: requests are refused with 503 then",
    )
    replicas: int = described(
        "Engine pods, in all groups together. The only default written into the spec, since "
        "autoscalers need a number to begin with: leave it out of Git where one scales the pool.",
        zero="none, so that nothing answers",
        default=1,
        ge=0,
        le=MAX_REPLICAS,
    )
    autoscaling: AutoscalingSpec | None = described(
        "Lets the operator set the number of pods by what tiers are promised; `replicas` is then "
        "ignored, and the condition Autoscaling says so.",
        unset="`replicas` it is",
    )
    sidecar: SidecarSpec | None = described(
        "The proxy in each pod that schedules requests.", unset="as if all its fields were unset"
    )
    router: RouterSpec | None = described(
        "Lets requests come to the engines' pods by a router, to which the pool's Service then "
        "leads. It can be added to a pool that runs and taken away from it, without a restart of "
        "an engine (but of those that an operator without routers made) and without a request that "
        "is refused for it; the condition Routed says how far that is.",
        unset="none: the pool's Service leads to the engines' pods, each of which asks for keys "
        "itself",
        empty="({}) one with all its fields unset",
    )
    service: ServiceSpec | None = described(
        "The Service that tenants call, on port 8000; it has the pool's name.",
        unset="as if all its fields were unset",
    )
    kv_pools: list[KvPool] | None = described(
        "How the KV cache of each engine is shared between tiers. Changes restart nothing.",
        unset="all tiers share all of it",
        empty="the same",
        max_length=MAX_KV_POOLS,
        map_key="name",
        cel=[
            rule(
                "self.map(part, part.percent).sum() <= 100",
                _OVER_100,
            ),
            rule(
                "self.all(part, part.tiers.all(tier, "
                "self.exists_one(other, other.tiers.exists(name, name == tier))))",
                _IN_TWO,
            ),
        ],
    )
    prefill: Prefill | None = described(
        "How much of the engine's steps prompts may take while others wait for their next token.",
        unset="as if all its fields were unset",
    )
    between_tiers: BetweenTiers | None = described(
        "How tiers share what is not reserved. Strict: by priority, the higher first. Weighted: by "
        "the weights of the TenantTiers, whatever their priority.",
        unset="Strict",
    )
    scheduling_mode: SchedulingMode | None = described(
        "Tidegate: by tier, fair share and priority. Shadow: by arrival alone, while all else is "
        "decided and measured, but not done, as Tidegate would. FirstComeFirstServed: by arrival "
        "alone, the switch to pull when in doubt. Takes effect within seconds and restarts "
        "nothing.",
        unset="Tidegate",
    )
    shared_state: SharedStateSpec | None = described(
        "Where the pods count rate limits together, and tell each other whom they served, so that "
        "a tenant gets the same on one pod as on all. While it is away each counts for itself, "
        "and the condition SharedStateMissing says so.",
        unset="each pod counts for itself, within its part of each limit",
    )
    price: PriceSpec | None = described(
        "What the pool's GPUs cost; the status then says what calls cost.", unset="no price"
    )
    observability: ObservabilitySpec | None = described(
        "What measures the pool, and how.", unset="as if all its fields were unset"
    )

    @model_validator(mode="after")
    def _kv_pools_are_parts(self) -> Self:
        parts = self.kv_pools or []
        tiers = [tier for part in parts for tier in part.tiers]
        if sum(part.percent for part in parts) > 100:
            raise ValueError(_OVER_100)
        if len(set(tiers)) < len(tiers):
            raise ValueError(_IN_TWO)
        return self


class PoolIdentity(ApiModel):
    """What can be read of a ServingPool whatever its spec says: enough to own children."""

    api_version: Literal["tidegate.io/v1alpha1"] = "tidegate.io/v1alpha1"
    kind: Literal["ServingPool"] = "ServingPool"
    metadata: ObjectMeta


class ServingPool(PoolIdentity):
    """One model on a set of vLLM engines that many Tenants share: what it serves, for which
    namespaces, in which tiers, and on how many pods."""

    spec: ServingPoolSpec = described("What is served, on what, for whom and in which order.")
    status: ServingPoolStatus = Field(
        default_factory=ServingPoolStatus,
        description="What the pool does now; written by the operator.",
    )
