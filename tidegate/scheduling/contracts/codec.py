"""JSON in and out of frozen dataclasses, strictly.

Every contract between two parts of Tidegate is a frozen dataclass with a ``version`` field. This
module is the one way from JSON to it and back. Theory of operation: the dataclass's annotations are
the schema, of which a decoder is made once per type. It refuses, naming the path, whatever does not
fit: a missing or unknown field, a wrong type (booleans are not integers, non-finite numbers are not
numbers), an integer beyond what a double holds, a string that is no Unicode text, a value outside
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
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
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
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        newer = newer_fields(type(value))
        told = {name: getattr(value, name) for name in _names(type(value))}
        return {
            name: encode(inner)
            for name, inner in told.items()
            if name not in newer or inner != newer[name]
        }
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
    try:
        return typing.cast(T, _decoder(typing.cast(Any, cls), not issubclass(cls, Report))(data))
    except _Misfit as misfit:
        where = "".join(reversed(misfit.steps))
        raise ContractError(f"{path or cls.__name__}{where}: {misfit}") from None


@cache
def newer_fields(cls: type, version: int = 1) -> Mapping[str, Any]:
    """Fields of a dataclass that came after that version of its contract, and their defaults."""
    return {
        f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        for f in dataclasses.fields(cls)
        if f.metadata.get("since", 1) > version
    }


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class _Misfit(Exception):
    """What does not fit, and the steps to where it is, the innermost first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.steps: list[str] = []

    def under(self, step: str) -> _Misfit:
        self.steps.append(step)
        return self


_Decoder = Callable[[Any], Any]


@cache
def _decoder(kind: Any, strict: bool) -> _Decoder:
    """What decodes a value of one kind; an annotation is looked at once, not at each value."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arm for arm in typing.get_args(kind) if arm is not type(None))
        decode_present = _decoder(inner, strict)
        return lambda data: None if data is None else decode_present(data)
    if origin is tuple:
        return _list_decoder(_decoder(typing.get_args(kind)[0], strict))
    if origin in (dict, Mapping):
        return _mapping_decoder(_decoder(typing.get_args(kind)[1], strict))
    if dataclasses.is_dataclass(kind):
        return partial(_decode_dataclass, typing.cast(type, kind), strict)
    if issubclass(kind, StrEnum):
        return partial(_decode_enum, kind)
    return partial(_decode_scalar, kind)


def _list_decoder(decode_item: _Decoder) -> _Decoder:
    def decode_list(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _Misfit(f"expected a list, got {_shown(data)}")
        items = []
        for item in data:
            try:
                items.append(decode_item(item))
            except _Misfit as misfit:
                raise misfit.under(f"[{len(items)}]") from None
        return tuple(items)

    return decode_list


def _mapping_decoder(decode_item: _Decoder) -> _Decoder:
    def decode_mapping(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise _Misfit(f"expected an object, got {_shown(data)}")
        items = {}
        for key, item in data.items():
            try:
                items[key] = decode_item(item)
            except _Misfit as misfit:
                raise misfit.under(f"[{key!r}]") from None
        return items

    return decode_mapping


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """How a field of a dataclass is read."""

    decode: _Decoder
    is_required: bool
    low: float | None
    high: float | None


@cache
def _members(cls: type, strict: bool) -> Mapping[str, _Member]:
    missing = dataclasses.MISSING
    return {
        f.name: _Member(
            _decoder(_hints(cls)[f.name], strict),
            f.default is f.default_factory is missing,
            f.metadata.get("low"),
            f.metadata.get("high"),
        )
        for f in dataclasses.fields(cls)
    }


def _decode_dataclass(cls: type, strict: bool, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _Misfit(f"expected an object, got {_shown(data)}")
    members = _members(cls, strict)
    if strict and (unknown := data.keys() - members.keys()):
        raise _Misfit(f"unknown field {min(unknown)!r}; known are {sorted(members)}")
    values = {}
    for name, member in members.items():
        try:
            if name in data:
                values[name] = value = member.decode(data[name])
                if value is not None:
                    _check_bounds(value, member)
            elif member.is_required:
                raise _Misfit("required")
        except _Misfit as misfit:
            raise misfit.under(f".{name}") from None
    try:
        return cls(**values)
    except ContractError as error:
        raise _Misfit(str(error)) from None


def _check_bounds(value: Any, member: _Member) -> None:
    low, high = member.low, member.high
    if low is high is None:
        return
    size = len(value) if isinstance(value, str | tuple | dict) else value
    if low is not None and size < low:
        raise _Misfit(f"must be at least {low}, got {_shown(value)}")
    if high is not None and size > high:
        raise _Misfit(f"must be at most {high}, got {_shown(value)}")


def _decode_enum(cls: type[StrEnum], data: Any) -> StrEnum:
    try:
        return cls(data)
    except ValueError:
        allowed = ", ".join(cls)
        raise _Misfit(f"expected one of {allowed}; got {_shown(data)}") from None


def _decode_scalar(kind: type, data: Any) -> Any:
    if kind is float and type(data) is int:
        try:
            data = float(data)
        except OverflowError:
            raise _Misfit("expected a finite number, got a larger one") from None
    if type(data) is int and abs(data) > MAX_INTEGER:
        raise _Misfit("expected an integer that a double holds, got a larger one")
    if isinstance(data, str) and not data.isascii() and not _is_text(data):
        raise _Misfit("expected a string of Unicode text")
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        names = {
            int: "an integer",
            float: "a finite number",
            str: "a string",
            bool: "true or false",
        }
        raise _Misfit(f"expected {names[kind]}, got {_shown(data)}")
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
