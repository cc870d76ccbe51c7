"""What an owner of a pool allows its scaling to do, with every default resolved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class ScalingSignal(StrEnum):
    """What speaks for more pods, or against fewer.

    Alerts: alerts of the pool's rules that fire. BurnRate: an error budget that is being spent
    faster than it lasts. QueueWait: how long requests with a promise wait in the sidecars' queues.
    """

    ALERTS = "Alerts"
    BURN_RATE = "BurnRate"
    QUEUE_WAIT = "QueueWait"


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one direction may go."""

    window_seconds: float
    """How long what asks for a step must have held without a break, since the last step too."""
    cooldown_seconds: float
    """Between a step of either direction and one of this."""
    max_step: int | None
    """Most pods at once; None: as many as are needed."""


UP = Pace(0.0, 60.0, None)
"""At once by need; the pause lets readings show the step before."""
DOWN = Pace(600.0, 300.0, 1)


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The bounds and the pace of one group."""

    minimum: int
    maximum: int
    signals: Collection[ScalingSignal] = tuple(ScalingSignal)
    up: Pace = UP
    down: Pace = DOWN


@dataclass(frozen=True, slots=True)
class PoolScaling:
    """What the owner of a pool allows."""

    group: ScalingPolicy
    most: int | None = None
    """Pods in all groups together; None: as many as each may have."""
