"""ServingPool's `model`: what is served, where its weights come from, and where they are kept.

Weights on a volume or in an image are mounted. Weights by name or address are fetched by vLLM
itself into the *cache*, a folder that the engine may write; what it compiles goes there as well. A
cache that outlives its pod spares the next one the download. One claim for all pods has to allow
several writers; one claim for each is made by the StatefulSet, which can never change what it asks
for (``volumeClaimTemplate``): another size or class is told by a condition, with the way out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from tidegate.scheduling.contracts import Task
from tidegate_operator.api.common import SecretKeyRef
from tidegate_operator.api.engine import ImageName
from tidegate_operator.api.fields import ApiModel, ObjectName, Quantity, described, rule, rules

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


class EmptyDirCache(ApiModel):
    """A folder of the node that lives as long as its pod."""

    size_limit: Quantity | None = described(
        "A pod that writes more is evicted.", unset="what the node has"
    )


class ClaimCache(ApiModel):
    """One volume that all pods of the pool share."""

    claim_name: ObjectName = described(
        "Claim in the pool's namespace; with more than one pod it must allow several writers "
        "(ReadWriteMany)."
    )


class AccessMode(StrEnum):
    """How many may mount a volume."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"
    READ_WRITE_MANY = "ReadWriteMany"


class Retention(StrEnum):
    """What becomes of a claim whose pod is gone for good."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ClaimTemplateCache(ApiModel):
    """A volume for each pod, by a claim `cache-<pool>-<number>` that outlives it."""

    size: Quantity = described("Of each volume. Cannot be changed while the StatefulSet exists.")
    storage_class_name: ObjectName | None = described(
        "StorageClass of the volumes. Cannot be changed while the StatefulSet exists.",
        unset="the cluster's default",
    )
    access_mode: AccessMode | None = described(
        "How the volumes may be mounted. Cannot be changed while the StatefulSet exists.",
        unset="ReadWriteOnce",
    )
    when_deleted: Retention | None = described(
        "What becomes of the claims when the pool is deleted.", unset="Retain"
    )
    when_scaled: Retention | None = described(
        "What becomes of a pod's claim when the pool is scaled below it.", unset="Retain"
    )


_ONE_CACHE = "needs exactly one of emptyDir, persistentVolumeClaim and volumeClaimTemplate"


class ModelCache(ApiModel):
    """Where the engine keeps what it downloads and compiles."""

    model_config = rules(
        rule(
            "[has(self.emptyDir), has(self.persistentVolumeClaim), has(self.volumeClaimTemplate)]"
            ".exists_one(given, given)",
            _ONE_CACHE,
        )
    )

    empty_dir: EmptyDirCache | None = described(
        "A folder of the node that lives as long as its pod.",
        unset="not there",
        empty="({}) as large as the node has room",
    )
    persistent_volume_claim: ClaimCache | None = described(
        "One volume that all pods share.", unset="not there"
    )
    volume_claim_template: ClaimTemplateCache | None = described(
        "A volume for each pod, which its successor gets.", unset="not there"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = (self.empty_dir, self.persistent_volume_claim, self.volume_claim_template)
        if sum(cache is not None for cache in given) != 1:
            raise ValueError(_ONE_CACHE)
        return self


class ModelSpec(ApiModel):
    """What is served."""

    name: ModelName = described("Name that clients send as `model`.")
    task: Task | None = described(
        "Generate: chat, completions and responses. Embed: embeddings, rerank and score.",
        unset="Generate",
    )
    source: ModelSource = described("Where the weights come from; exactly one of its fields.")
    cache: ModelCache | None = described(
        "Where the engine keeps what it downloads and compiles; exactly one of its fields.",
        unset="as emptyDir: {}",
    )
    max_model_len: int | None = described(
        "Context length in tokens, prompt and output together. Lower leaves more memory for "
        "requests.",
        unset="the model's own",
        ge=16,
        le=100_000_000,
    )
