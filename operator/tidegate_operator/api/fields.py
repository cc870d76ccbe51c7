"""How a field of the API is declared: one call gives pydantic its checks and the CRD its schema.

A description says what the field is, then what unset, zero and empty mean, in that order, since
nothing is defaulted into a stored spec (``replicas`` alone is): what an absent field means is
decided when it is read, and stands in the description, built from the same constant that the
reader uses.

CEL rules ride along in ``json_schema_extra`` under ``x-kubernetes-validations``; the API server
runs them, pydantic does not. Where code of ours would go wrong if a rule did not hold (an object
stored before the rule existed), the model repeats it as a validator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

NAME_MAX_LENGTH = 40
"""Of TenantTier, Tenant and ServingPool: children append to it and labels hold at most 63."""

DURATION_PATTERN = r"^([0-9]+(ms|s|m|h))+$"
_QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Rule = dict[str, str]
"""One entry of ``x-kubernetes-validations``."""


class ApiModel(BaseModel):
    """Reads what the API server returned: camelCase, unknown fields ignored (the server prunes)."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


def rule(expression: str, message: str, *, field_path: str | None = None) -> Rule:
    """A CEL rule and what a person reads when it does not hold."""
    made = {"rule": expression, "message": message}
    if field_path:
        made["fieldPath"] = field_path
    return made


def rules(*made: Rule) -> ConfigDict:
    """The CEL rules of a whole object, for its ``model_config``."""
    extra: dict[str, Any] = {"x-kubernetes-validations": list(made)}
    return ConfigDict(json_schema_extra=extra)


def described(
    text: str,
    *,
    unset: str | None = None,
    zero: str | None = None,
    empty: str | None = None,
    cel: Sequence[Rule] = (),
    list_type: Literal["set", "atomic"] | None = None,
    map_key: str | None = None,
    map_type: Literal["atomic"] | None = None,
    **constraints: Any,
) -> Any:
    """A field: optional where ``unset`` says what its absence means, required otherwise.

    ``list_type`` and ``map_key`` say how server-side apply merges a list (a map by that key of its
    items); ``map_type="atomic"`` makes an object one value. ``constraints`` go to pydantic's
    ``Field``.
    """
    parts = [text]
    for label, meaning in (("Unset", unset), ("Zero", zero), ("Empty", empty)):
        if meaning:
            parts.append(f"{label}: {meaning}.")
    extra: dict[str, Any] = {}
    if cel:
        extra["x-kubernetes-validations"] = list(cel)
    if map_key:
        extra |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [map_key]}
    elif list_type:
        extra["x-kubernetes-list-type"] = list_type
    if map_type:
        extra["x-kubernetes-map-type"] = map_type
    if unset is not None and "default" not in constraints:
        constraints["default"] = None
    return Field(description=" ".join(parts), json_schema_extra=extra, **constraints)


def duration(
    text: str, *, low: str, high: str, unset: str | None = None, zero: str | None = None
) -> Any:
    """A duration between two bounds, kept as it was written (``60s`` stays ``60s``); required where
    ``unset`` says nothing."""
    valid = f"!self.matches('{DURATION_PATTERN}')"  # then the pattern's own message is enough
    within = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    return described(
        f"{text} A duration such as 500ms, 30s or 1h30m, from {low} to {high}.",
        unset=unset,
        zero=zero,
        cel=[rule(f"{valid} || ({within})", f"must be from {low} to {high}")],
        pattern=DURATION_PATTERN,
        max_length=32,
    )


def duration_seconds(written: str) -> float:
    """Seconds of a duration as the API writes it; ValueError where it is none."""
    if not re.fullmatch(DURATION_PATTERN, written):
        raise ValueError(f"{written!r} is not a duration such as 500ms, 30s or 1h30m")
    return sum(int(count) * _UNIT_SECONDS[unit] for count, unit in _DURATION_PART.findall(written))


Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]
"""A Kubernetes quantity, kept as it was written: 1, "500m", "16Gi"."""

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_DNS_SUBDOMAIN)]
"""Name of any Kubernetes object."""

KindName = Annotated[
    str, StringConstraints(min_length=1, max_length=NAME_MAX_LENGTH, pattern=_DNS_SUBDOMAIN)
]
"""Name of one of our own objects."""

DataKey = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
]
"""Key within a Secret or ConfigMap."""

ItemName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""Name of an entry of a list."""
