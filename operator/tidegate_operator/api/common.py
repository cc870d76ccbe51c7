"""What several kinds share: metadata, references, label selectors, the reading of objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from tidegate_operator.api.fields import (
    ApiModel,
    DataKey,
    ObjectName,
    Quantity,
    described,
    rule,
    rules,
)

GROUP = "tidegate.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
API_KEYS_LABEL = f"{GROUP}/api-keys"
"""Secrets that hold API keys carry it; the operator watches no others."""

_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$"

LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=_LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL_VALUE)]


class ObjectMeta(ApiModel):
    """What is read of an object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class LabelRequirement(ApiModel):
    """One condition on a label."""

    model_config = rules(
        rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 "
            ": !has(self.values) || size(self.values) == 0",
            "values is for the operators In and NotIn, which need at least one",
        )
    )

    key: LabelKey = described("Label key.")
    operator: SelectorOperator = described(
        "In and NotIn compare with values; Exists and DoesNotExist ask only for the key."
    )
    values: list[LabelValue] | None = described(
        "Values for In and NotIn.", unset="none", max_length=64, list_type="set"
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As Kubernetes has it: NotIn and DoesNotExist hold where the key is missing."""
        match self.operator:
            case SelectorOperator.IN:
                return labels.get(self.key) in (self.values or ())
            case SelectorOperator.NOT_IN:
                return self.key not in labels or labels[self.key] not in (self.values or ())
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(ApiModel):
    """A label selector as Kubernetes has it; all of its conditions must hold."""

    match_labels: dict[str, LabelValue] | None = described(
        "Labels that must have exactly these values.", unset="no such condition", max_length=32
    )
    match_expressions: list[LabelRequirement] | None = described(
        "Further conditions.", unset="none", max_length=32, list_type="atomic"
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected; ``{}`` selects everything."""
        wanted = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in wanted) and all(
            requirement.matches(labels) for requirement in self.match_expressions or ()
        )


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ObjectName = described("Name of the Secret, in the namespace of this object.")
    key: DataKey = described("Key within it.")


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ObjectName = described("Name of the ConfigMap, in the namespace of this object.")
    key: DataKey = described("Key within it.")


class ResourceRequirements(ApiModel):
    """Compute resources of a container, as Kubernetes has them."""

    limits: dict[str, Quantity] | None = described(
        "Most the container gets of each resource, such as nvidia.com/gpu, cpu, memory.",
        unset="no limits",
        max_length=16,
    )
    requests: dict[str, Quantity] | None = described(
        "What the scheduler sets aside for it.", unset="the limits", max_length=16
    )


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of an object, for a condition's message."""

    path: str
    """As a person writes it: ``spec.apiKeys[0].sha256``."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


KindT = TypeVar("KindT", bound=ApiModel)


def parse(kind: type[KindT], obj: Mapping[str, Any]) -> KindT | list[FieldError]:
    """Read an object as the API server returned it, or say all that is wrong with it.

    No message repeats a value: it could be a secret in the wrong place.
    """
    try:
        return kind.model_validate(obj)
    except ValidationError as error:
        return [
            FieldError(_path(fault["loc"]), fault["msg"].removeprefix("Value error, "))
            for fault in error.errors(include_url=False, include_input=False, include_context=False)
        ]


def _path(location: tuple[str | int, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
