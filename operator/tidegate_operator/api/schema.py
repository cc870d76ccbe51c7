"""From a pydantic model to the structural OpenAPI v3 schema that a CRD takes.

pydantic writes JSON Schema 2020-12: ``$ref``, ``title``, ``anyOf [X, null]`` for optional
fields. The API server wants one tree without any of it. What this module does not know how to
translate it refuses, so that no constraint is lost in silence. ``unbounded`` names each list,
map and string without an upper bound: with such, CEL rules cost too much to be admitted and one
object could fill etcd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "description", "type", "format", "default", "enum", "minimum", "maximum", "minLength",
    "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type",
    "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "anyOf",
    "x-kubernetes-validations", "required", "properties",
    "additionalProperties", "items",
)  # fmt: skip
"""What a structural schema takes, in the order in which it is written."""
_DROPPED = frozenset({"title", "propertyNames"})
"""A title repeats the name. Keys of maps cannot be constrained by a structural schema."""
_NULL = {"type": "null"}
_RULES = "x-kubernetes-validations"


class SchemaError(ValueError):
    """A model that has no structural schema; the message names the field."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model."""
    generated = model.model_json_schema(by_alias=True, mode="validation")
    definitions = generated.pop("$defs", {})
    return _translate(generated, definitions, model.__name__)


def _translate(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    node = _inlined(node, definitions)
    if node.get("type") == "integer":
        node.setdefault("format", "int64")
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if unknown := node.keys() - set(_KEPT) - _DROPPED:
        raise SchemaError(f"{path}: {min(unknown)} has no place in a structural schema")
    translated: Schema = {key: node[key] for key in _KEPT if key in node}
    if translated.get("default", ...) is None:
        del translated["default"]
    if "properties" in translated:
        translated["properties"] = {
            name: _translate(child, definitions, f"{path}.{name}")
            for name, child in translated["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(translated.get(key), dict):
            translated[key] = _translate(translated[key], definitions, f"{path}[]")
    if "anyOf" in translated and not translated.get("x-kubernetes-int-or-string"):
        raise SchemaError(f"{path}: only int-or-string may have several types")
    return translated


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Without ``$ref`` and without the null arm of optional fields; the outer description wins."""
    node = dict(node)
    while "$ref" in node or _NULL in node.get("anyOf", ()):
        outer = dict(node)
        if "$ref" in outer:
            inner = definitions[outer.pop("$ref").removeprefix("#/$defs/")]
        else:
            arms = [arm for arm in outer.pop("anyOf") if arm != _NULL]
            inner = arms[0] if len(arms) == 1 else {"anyOf": arms}
        both = [*inner.get(_RULES, ()), *outer.get(_RULES, ())]
        node = {**inner, **outer, **({_RULES: both} if both else {})}
    return node


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node of a structural schema with its path: ``spec.tiers[].name``."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")


def unbounded(schema: Schema) -> list[str]:
    """Paths whose size nothing limits."""
    return [path for path, node in walk(schema) if not _is_bounded(node)]


def _is_bounded(node: Schema) -> bool:
    match node.get("type"):
        case "array":
            return "maxItems" in node and "x-kubernetes-list-type" in node
        case "string":
            return "enum" in node or "maxLength" in node or node.get("format") == "date-time"
        case "object":
            return "additionalProperties" not in node or "maxProperties" in node
        case "integer":
            return "minimum" in node
        case "boolean":
            return True
        case _:
            return bool(node.get("x-kubernetes-int-or-string"))
