"""Fields as rows of a table: what is found without the field, and what with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from support.pool_calls import PoolCalls
from support.tier_probes import Probe

Spec = dict[str, Any]
Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """A field: the tenant of its tier finds one thing without it, and another with it."""

    path: str
    tier: str
    probe: Probe
    without: Any
    """What it finds, or a check of that."""
    with_it: Any
    spec: Spec = field(default_factory=dict)
    """What the tier is given."""
    base: Spec = field(default_factory=dict)
    """What it had before."""
    here: Spec = field(default_factory=dict)
    """What the pool's own entry for the tier is given."""


def above(number: float) -> Check:
    return lambda found: found > number


def at_most(number: float) -> Check:
    return lambda found: found <= number


def about_an_hour(seconds: float) -> bool:
    return abs(seconds - 3_600) < 90


def until_tomorrow(seconds: float) -> bool:
    """In UTC, as the next."""
    return abs(seconds - (86_400 - time.time() % 86_400)) < 90


def until_next_month(seconds: float) -> bool:
    now = datetime.now(UTC)
    month = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return abs(seconds - (month - now).total_seconds()) < 90


async def unexpected(
    calls: PoolCalls, rows: Sequence[Row], expected: Callable[[Row], Any]
) -> dict[str, Any]:
    """What is found by the probes that find anything else, one after the other."""
    wrong = {}
    for row in rows:
        found = await row.probe(calls, row.tier)
        if not fits(expected(row), found):
            wrong[row.path] = found
    return wrong


def fits(wanted: Any, found: Any) -> bool:
    return bool(wanted(found) if callable(wanted) else wanted == found)
