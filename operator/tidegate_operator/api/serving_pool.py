"""ServingPool: one model on a set of vLLM engines, and whom it serves in which tiers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tidegate.scheduling.contracts import BetweenTiers, SchedulingMode
from tidegate_operator.api.common import LabelSelector, ObjectMeta, ResourceRequirements
from tidegate_operator.api.engine import EngineSpec, ImageName
from tidegate_operator.api.fields import ApiModel, KindName, described, rule, rules
from tidegate_operator.api.model import ModelSpec
from tidegate_operator.api.status import MAX_TIERS, ServingPoolStatus

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
        "Share reserved in this pool.",
        unset="the tier's own",
        zero="nothing is reserved here",
        ge=0,
        le=100,
    )
    max_percent: int | None = described(
        "Most it takes in this pool while others wait.", unset="the tier's own", ge=1, le=100
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


class ServingPoolSpec(ApiModel):
    """What is served, on what, for whom and in which order."""

    model: ModelSpec = described("What is served.")
    tiers: list[PoolTier] | None = described(
        "Tiers served here; Tenants of other tiers are not.",
        unset="all tiers, as their TenantTiers have them",
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
    replicas: int = described(
        "Engine pods. The only default written into the spec, since autoscalers need a number to "
        "begin with: leave it out of Git where one scales the pool.",
        zero="none, so that nothing answers",
        default=1,
        ge=0,
        le=MAX_REPLICAS,
    )
    sidecar: SidecarSpec | None = described(
        "The proxy in each pod that schedules requests.", unset="as if all its fields were unset"
    )
    service: ServiceSpec | None = described(
        "The Service that tenants call, on port 8000; it has the pool's name.",
        unset="as if all its fields were unset",
    )
    between_tiers: Literal[BetweenTiers.STRICT] | None = described(
        "How tiers share what is not reserved. Strict: by priority, the higher first.",
        unset="Strict",
    )
    scheduling_mode: (
        Literal[SchedulingMode.TIDEGATE, SchedulingMode.FIRST_COME_FIRST_SERVED] | None
    ) = described(
        "Tidegate: by tier, fair share and priority. FirstComeFirstServed: by arrival alone, the "
        "switch to pull when in doubt. Takes effect within seconds and restarts nothing.",
        unset="Tidegate",
    )


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
