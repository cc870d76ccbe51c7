"""What the scheduler tells of its tiers and tenants at one moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant at one moment."""

    name: str
    tier: str
    queued: int
    queued_bytes: int
    running: int
    service_tokens_total: int
    """Prompt and output tokens served; only rises."""
    longest_wait_seconds: float
    """Of those that wait now; 0 when none does."""
    engine_ms_total: float = 0.0
    """EngineTime that it was charged, where the host reports the engine's steps; only rises."""


class Backlog(NamedTuple):
    """What one tenant of which something waits was given so far."""

    tenant: str
    tier: str
    unit: FairnessUnit
    weight: int
    backlogs: int
    """How often its queue began to fill: unchanged, it never was empty."""
    given: float
    """In the unit; only rises."""


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """One tier at one moment."""

    name: str
    queued: int
    running: int
    service_tokens_total: int
    """Prompt and output tokens served; only rises."""
    engine_ms_total: float = 0.0
    """EngineTime of its tenants, and what it made others compute again; only rises."""


@dataclass(slots=True)
class ShadowFigures:
    """What Shadow would have done otherwise, counted since the scheduler began."""

    dispatches: int = 0
    other_tenant: int = 0
    """Of them, those where fair order would have served another tenant."""
    refused: Counter[Outcome] = field(default_factory=Counter)
    """Requests that would have been refused, by why."""
