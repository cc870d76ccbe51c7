"""What the sidecar says of a request: ``vllm_xargs`` whose names begin with ``tidegate_``.

The sidecar strips them from what clients send, so their content is trusted; but a request that
reached the engine past the sidecar, or one that can't carry any (pooling), has none and is left
alone. One that is unreadable counts as none: no request makes the engine fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIER = "tidegate_tier"
TENANT = "tidegate_tenant"
SEQUENCE = "tidegate_sequence"
WEIGHT = "tidegate_weight"
EXPECTED = "tidegate_expected_tokens"

_MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class RequestTags:
    """Who sent a request and where it stands."""

    tier: str
    tenant: str
    """Any name, the same for all of one tenant; hashed by the sidecar."""
    sequence: int | None
    """Rising in order of dispatch; None: the order of arrival holds."""
    weight: int
    """Of the tenant, within its tier."""
    expected_output_tokens: int
    """90th percentile of its output; 0: as many as it may have."""


def read_tags(xargs: Mapping[str, Any] | None) -> RequestTags | None:
    """The tags of a request; None: it has none, or none that can be read."""
    if not xargs or TIER not in xargs:
        return None
    tier = xargs[TIER]
    sequence = xargs.get(SEQUENCE)
    numbers = (xargs.get(WEIGHT, 1), xargs.get(EXPECTED, 0), 0 if sequence is None else sequence)
    if not isinstance(tier, str) or not all(type(number) is int for number in numbers):
        return None
    weight, expected, place = numbers
    if place < 0:
        return None
    return RequestTags(
        tier=tier,
        tenant=str(xargs.get(TENANT, "")),
        sequence=sequence,
        weight=min(max(weight, 1), _MAX_WEIGHT),
        expected_output_tokens=max(expected, 0),
    )
