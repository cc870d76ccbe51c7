"""Members of a request body, checked one by one: vLLM's messages, in its 400."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.simulator.fake_engine.errors import ApiError

MAX_PRIORITY = 2**63 - 1


def typed(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], what: str) -> Any:
    value = body.get(name)
    if value is None:
        return None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ApiError(400, f"{name} must be {what}", name)
    return value


def integer(body: Mapping[str, Any], name: str, minimum: int, maximum: int = 2**53) -> int | None:
    value = typed(body, name, int, "an integer")
    if value is None:
        return None
    if not minimum <= value <= maximum:
        limit = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        raise ApiError(
            400, f"{name} must be {limit}, got {value}. (parameter={name}, value={value})", name
        )
    return int(value)


def boolean(body: Mapping[str, Any], name: str) -> bool:
    return bool(typed(body, name, bool, "a boolean"))


def model_name(body: Mapping[str, Any]) -> str | None:
    model: str | None = typed(body, "model", str, "a string")
    return model


def cache_salt(body: Mapping[str, Any]) -> str:
    salt: str | None = typed(body, "cache_salt", str, "a non-empty string if provided")
    if salt == "":
        raise ApiError(400, "cache_salt must be a non-empty string if provided", "cache_salt")
    return salt or ""


def priority(body: Mapping[str, Any]) -> int:
    """vLLM's, lower is earlier."""
    return integer(body, "priority", -MAX_PRIORITY, MAX_PRIORITY) or 0
