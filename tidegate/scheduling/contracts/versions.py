"""A policy for a sidecar of the version before.

An operator is upgraded before the sidecars of its pools, which it does not restart for that. So it
writes, per pool, the version that its sidecars read: its own or the one before. What the earlier
one did not know is left at its default there, and who wrote it is told what that is.

Invariants: what :func:`as_of` returns is read by that version, field by field and value by value;
for the newest version it is the policy itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from tidegate.scheduling.contracts.codec import newer_fields
from tidegate.scheduling.contracts.limits import RateLimit
from tidegate.scheduling.contracts.policy import POLICY_VERSION, Policy
from tidegate.scheduling.contracts.scenario import Endpoint

NEWER_ENDPOINTS: dict[int, frozenset[Endpoint]] = {
    1: frozenset({Endpoint.RESPONSES, Endpoint.RERANK, Endpoint.SCORE}),
}
"""By version: endpoints that a sidecar which reads that one neither knows nor serves."""


def as_of(policy: Policy, version: int) -> tuple[Policy, tuple[str, ...]]:
    """The policy as that version has it, and the fields that are lost, each named once."""
    if version >= POLICY_VERSION:
        return policy, ()
    lost: set[str] = set()
    known: Policy = _known(replace(policy, version=version), version, "", lost)
    return known, tuple(sorted(lost))


def _known(value: Any, version: int, path: str, lost: set[str]) -> Any:
    """The value as the version has it; None: it is an item that means nothing there."""
    if isinstance(value, tuple):
        kept = (_known(item, version, f"{path}[]", lost) for item in value)
        return tuple(item for item in kept if item is not None)
    if isinstance(value, RateLimit):
        return _known_endpoints(value, version)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    newer = newer_fields(type(value), version)
    made: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        where = f"{path}.{field.name}" if path else field.name
        if field.name not in newer:
            made[field.name] = _known(inner, version, where, lost)
        elif inner != newer[field.name]:
            lost.add(where)
    return type(value)(**made)


def _known_endpoints(limit: RateLimit, version: int) -> RateLimit | None:
    """A limit of endpoints that are not served there limits nothing: None."""
    unknown = NEWER_ENDPOINTS.get(version, frozenset())
    kept = tuple(endpoint for endpoint in limit.endpoints if endpoint not in unknown)
    if kept == limit.endpoints:
        return limit
    return replace(limit, endpoints=kept) if kept else None
