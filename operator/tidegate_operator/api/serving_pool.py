"""ServingPool: one model on a set of vLLM engines, and whom it serves in which tiers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate.scheduling.contracts import BetweenTiers, SchedulingMode, Task
from tidegate_operator.api.common import (
    LabelSelector,
    ObjectMeta,
    ResourceRequirements,
    SecretKeyRef,
)
from tidegate_operator.api.engine import EngineSpec, ImageName
from tidegate_operator.api.fields import ApiModel, KindName, ObjectName, described, rule, rules
from tidegate_operator.api.status import MAX_TIERS, ServingPoolStatus

MAX_REPLICAS = 1000

_REPO = r"^[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?$"
_RELATIVE_PATH_RULE = rule(
    "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
    "must be relative and without '..'",
)

ModelName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][-._:/@A-Za-z0-9]*$"),
]
ModelRepo = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_REPO)]
Revision = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-._/A-Za-z0-9]*$")
]
ModelUri = Annotated[
    str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[a-z][-+.a-z0-9]*://[^\s]+$")
]
RelativePath = Annotated[
    str,
    StringConstraints(max_length=512, pattern=r"^[^\s]*$"),
    Field(json_schema_extra={"x-kubernetes-validations": [_RELATIVE_PATH_RULE]}),
]


class HuggingFaceSource(ApiModel):
    """A model of the Hugging Face hub."""

    repo: ModelRepo = described("Repository, such as Qwen/Qwen3-8B.")
    revision: Revision | None = described(
        "Branch, tag or commit. A commit keeps all pods on the same weights.",
        unset="the repository's default branch, as it is when a pod starts",
    )
    token_secret_ref: SecretKeyRef | None = described(
        "Access token, handed to the engine as HF_TOKEN.", unset="none; public models only"
    )


class PersistentVolumeClaimSource(ApiModel):
    """A model on a volume."""

    claim_name: ObjectName = described(
        "Claim in the pool's namespace; mounted read-only, so it must allow as many readers as "
        "there are replicas."
    )
    path: RelativePath | None = described(
        "Folder within the volume.", unset="its root", empty="its root"
    )


class ImageSource(ApiModel):
    """A model in an OCI image, mounted as a volume (Kubernetes 1.33 or newer)."""

    reference: ImageName = described("The image, best with its digest.")
    path: RelativePath | None = described(
        "Folder within the image.", unset="its root", empty="its root"
    )


_ONE_SOURCE = "needs exactly one of huggingFace, persistentVolumeClaim, image and uri"


class ModelSource(ApiModel):
    """Where the weights come from."""

    model_config = rules(
        rule(
            "[has(self.huggingFace), has(self.persistentVolumeClaim), has(self.image), "
            "has(self.uri)].exists_one(given, given)",
            _ONE_SOURCE,
        )
    )

    hugging_face: HuggingFaceSource | None = described(
        "From the Hugging Face hub.", unset="not from there"
    )
    persistent_volume_claim: PersistentVolumeClaimSource | None = described(
        "From a volume.", unset="not from there"
    )
    image: ImageSource | None = described("From an OCI image.", unset="not from there")
    uri: ModelUri | None = described(
        "From an address that vLLM itself can load, such as s3://bucket/folder.",
        unset="not from there",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = (self.hugging_face, self.persistent_volume_claim, self.image, self.uri)
        if sum(source is not None for source in given) != 1:
            raise ValueError(_ONE_SOURCE)
        return self


class ModelSpec(ApiModel):
    """What is served."""

    name: ModelName = described("Name that clients send as `model`.")
    task: Task | None = described(
        "Generate: chat and completions. Embed: embeddings.", unset="Generate"
    )
    source: ModelSource = described("Where the weights come from; exactly one of its fields.")
    max_model_len: int | None = described(
        "Context length in tokens, prompt and output together. Lower leaves more memory for "
        "requests.",
        unset="the model's own",
        ge=16,
        le=100_000_000,
    )


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
