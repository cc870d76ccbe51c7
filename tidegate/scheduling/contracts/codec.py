"""JSON in and out of frozen dataclasses, strictly.

Every contract between two parts of Tidegate is a frozen dataclass with a ``version`` field. This
module is the one way from JSON to it and back. Theory of operation: the dataclass's annotations are
the schema. ``decode`` walks them and refuses, naming the path, whatever does not fit: a missing or
unknown field, a wrong type (booleans are not integers, non-finite numbers are not numbers), an
integer beyond what a double holds, a string that is no Unicode text, a value outside
``low``/``high``, a string outside an enum, a version other than the one this code reads.

Unknown fields are refused where somebody's word is to be put in force, for a part that is silently
left out would be believed to act. What a part tells of itself (:class:`Report`) may come from a
later version than its reader, and such a field is nothing that the reader could miss: there, and
in all that it holds, unknown fields are ignored. The rest is as strict.

A field that came with a later version of its contract (``since``) is written only where it differs
from its default: who reads the version before can read all but what it never knew (see
:mod:`tidegate.scheduling.contracts.versions`).

Invariant: ``decode(cls, encode(value)) == value`` for every value of a contract.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

MAX_INTEGER = 2**53 - 1
"""What all readers of JSON agree on (RFC 7493), and what arithmetic with floats can take."""


class ContractError(ValueError):
    """A document that does not fit its contract; the message names the path and the cure."""


class Report:
    """Base of a contract by which a part tells of itself; who reads it ignores unknown fields."""

    __slots__ = ()


def described(
    text: str,
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
    since: int = 1,
) -> Any:
    """A dataclass field with its description (for ``docs/contracts.md``) and its bounds.

    A ``secret`` is left out of the dataclass's ``repr``, so that no traceback or log shows it.
    ``since`` is the version of the contract that the field came with; above 1 it has a default.
    """
    metadata = {"description": text, "low": low, "high": high, "since": since}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(
            default_factory=default_factory, metadata=metadata, repr=not secret
        )
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def encode(value: Any) -> Any:
    """The JSON value (dicts, lists, strings, numbers) of a contract."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        for name, default in newer_fields(type(value)).items():
            if told[name] == default:
                del told[name]
        return {name: encode(inner) for name, inner in told.items()}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def dumps(value: Any) -> str:
    """Canonical JSON text: sorted keys, so that equal contracts are equal bytes."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(cls: type[T], text: str | bytes, name: str = "") -> T:
    """Decode JSON text; :class:`ContractError` says what is wrong with it and where."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{name or cls.__name__} is not JSON: {error}") from None
    return decode(cls, data, name)


def decode(cls: type[T], data: Any, path: str = "") -> T:
    """Decode a JSON value into ``cls``; :class:`ContractError` says what is wrong and where."""
    strict = not issubclass(cls, Report)
    return typing.cast(T, _decode(cls, data, path or cls.__name__, strict))


@cache
def newer_fields(cls: type, version: int = 1) -> Mapping[str, Any]:
    """Fields of a dataclass that came after that version of its contract, and their defaults."""
    return {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(cls)
        if f.metadata.get("since", 1) > version
    }


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(kind: Any, data: Any, path: str, strict: bool) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arm for arm in typing.get_args(kind) if arm is not type(None))
        return None if data is None else _decode(inner, data, path, strict)
    if origin is tuple:
        if not isinstance(data, list):
            raise ContractError(f"{path}: expected a list, got {_shown(data)}")
        inner = typing.get_args(kind)[0]
        return tuple(_decode(inner, item, f"{path}[{i}]", strict) for i, item in enumerate(data))
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise ContractError(f"{path}: expected an object, got {_shown(data)}")
        inner = typing.get_args(kind)[1]
        return {key: _decode(inner, item, f"{path}[{key!r}]", strict) for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, path, strict)
    if issubclass(kind, StrEnum):
        return _decode_enum(kind, data, path)
    return _decode_scalar(kind, data, path)


def _decode_dataclass(cls: type, data: Any, path: str, strict: bool) -> Any:
    if not isinstance(data, dict):
        raise ContractError(f"{path}: expected an object, got {_shown(data)}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if strict and (unknown := sorted(set(data) - set(fields))):
        raise ContractError(f"{path}: unknown field {unknown[0]!r}; known are {sorted(fields)}")
    values = {}
    for name, field in fields.items():
        where = f"{path}.{name}"
        if name not in data:
            if field.default is field.default_factory is dataclasses.MISSING:
                raise ContractError(f"{where}: required")
            continue
        values[name] = _decode(_hints(cls)[name], data[name], where, strict)
        _check_bounds(values[name], field, where)
    try:
        return cls(**values)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from None


def _check_bounds(value: Any, field: dataclasses.Field[Any], path: str) -> None:
    if value is None or not field.metadata:
        return
    low, high = field.metadata.get("low"), field.metadata.get("high")
    size = len(value) if isinstance(value, str | tuple | dict) else value
    if low is not None and size < low:
        raise ContractError(f"{path}: must be at least {low}, got {_shown(value)}")
    if high is not None and size > high:
        raise ContractError(f"{path}: must be at most {high}, got {_shown(value)}")


def _decode_enum(cls: type[StrEnum], data: Any, path: str) -> StrEnum:
    try:
        return cls(data)
    except ValueError:
        allowed = ", ".join(cls)
        raise ContractError(f"{path}: expected one of {allowed}; got {_shown(data)}") from None


def _decode_scalar(kind: type, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            data = float(data)
        except OverflowError:
            raise ContractError(f"{path}: expected a finite number, got a larger one") from None
    if type(data) is int and abs(data) > MAX_INTEGER:
        raise ContractError(f"{path}: expected an integer that a double holds, got a larger one")
    if isinstance(data, str) and not data.isascii() and not _is_text(data):
        raise ContractError(f"{path}: expected a string of Unicode text")
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        names = {
            int: "an integer",
            float: "a finite number",
            str: "a string",
            bool: "true or false",
        }
        raise ContractError(f"{path}: expected {names[kind]}, got {_shown(data)}")
    return data


def _is_text(data: str) -> bool:
    """No lone surrogate, which JSON can escape and UTF-8 cannot hold."""
    try:
        data.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    """The kind of a value and, of numbers only, the value: a string could be a secret."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
