"""JSON Schema (2020-12, as OpenAPI 3.1 has it) of contracts, from their annotations.

What ``codec.decode`` takes fits the schema of its class; the other way round it may still refuse
what no schema says: rules between fields (``__post_init__``) and text that is no Unicode. Of a
``Report`` the schema is what this version writes; ``decode`` also takes what a later one adds.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tidegate.scheduling.contracts.codec import MAX_INTEGER

Schema = dict[str, Any]
REFERENCE = "#/components/schemas/"


def component_schemas(*kinds: type) -> dict[str, Schema]:
    """The schemas of these contracts and of all that they hold, by class name."""
    found: dict[str, Schema] = {}
    for kind in kinds:
        _schema_of(kind, found)
    return found


def _schema_of(kind: Any, found: dict[str, Schema]) -> Schema:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arm for arm in typing.get_args(kind) if arm is not type(None))
        return {"anyOf": [_schema_of(inner, found), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(typing.get_args(kind)[0], found)}
    if origin in (dict, Mapping):
        values = _schema_of(typing.get_args(kind)[1], found)
        return {"type": "object", "additionalProperties": values}
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in found:
            found[name] = {}  # a contract may hold its like
            found[name].update(_object(typing.cast(type, kind), found))
        return {"$ref": REFERENCE + name}
    if issubclass(kind, StrEnum):
        return {"type": "string", "enum": [member.value for member in kind]}
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    schema: Schema = {"type": names[kind]}
    if kind is int:
        schema |= {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
    return schema


def _object(cls: type, found: dict[str, Schema]) -> Schema:
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for field in dataclasses.fields(cls):
        schema = _schema_of(hints[field.name], found)
        _bound(schema, field.metadata)
        if text := field.metadata.get("description"):
            schema = schema | {"description": text}
        properties[field.name] = schema
        if field.default is field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    return {
        "type": "object",
        "description": (cls.__doc__ or "").split("\n\n")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _bound(schema: Schema, metadata: Mapping[str, Any]) -> None:
    """The field's ``low`` and ``high``: of a number, or of a length."""
    inner = schema["anyOf"][0] if "anyOf" in schema else schema
    names = {
        "integer": ("minimum", "maximum"),
        "number": ("minimum", "maximum"),
        "string": ("minLength", "maxLength"),
        "array": ("minItems", "maxItems"),
        "object": ("minProperties", "maxProperties"),
    }.get(inner.get("type", ""))
    for key, name in zip(("low", "high"), names or (), strict=False):
        if metadata.get(key) is not None:
            inner[name] = metadata[key]
