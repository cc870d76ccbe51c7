"""Promises kept: of each objective of a tier, the requests that count and those that were in time.

Counted here, at the source, against the target in force when the request ended, since no histogram
has a bucket at every target. Which request counts for an objective, and how:

* the first token came, or the request ran to its end, or two tokens came: by the time measured;
* it ended without that and the pool is why (engine failed or away, queue wait, throttled): a miss.
  A throttled one counts because a promise is not kept by refusing everybody;
* its client left, or its own deadline passed, without that: a miss once the target has passed, else
  it says nothing;
* it was refused for what its client can change (key, body, limits, a full queue of its own), or
  sent elsewhere: it does not count.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.scheduling.contracts import SloMetric, TierPolicy
from tidegate.scheduling.outcomes import Outcome

_MISSED = frozenset(
    {
        Outcome.ENGINE_FAILED,
        Outcome.ENGINE_REFUSED,
        Outcome.NO_ENGINE,
        Outcome.QUEUE_WAIT_EXCEEDED,
        Outcome.THROTTLED,
    }
)
_GAVE_UP = frozenset({Outcome.CLIENT_CLOSED, Outcome.DEADLINE_EXCEEDED})


class Ending(NamedTuple):
    """How a request ended; seconds, None where it did not come to that."""

    outcome: Outcome
    duration: float
    first_token: float | None = None
    """From its arrival."""
    inter_token: float | None = None
    """Mean gap between its tokens."""


class SloCount:
    """One objective of one tier."""

    __slots__ = ("good", "requests", "target_seconds")

    def __init__(self, target_seconds: float) -> None:
        self.target_seconds = target_seconds
        self.requests = 0
        self.good = 0


class SloTally:
    """The objectives of one tier."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[SloMetric, SloCount] = {}

    def apply_policy(self, policy: TierPolicy) -> None:
        """The objectives in force; what was counted of them stays."""
        before = self.counts
        self.counts = {}
        for objective in policy.slo_objectives:
            count = before.get(objective.metric) or SloCount(objective.target_seconds)
            count.target_seconds = objective.target_seconds
            self.counts[objective.metric] = count

    def ended(self, ending: Ending) -> None:
        """Count one request."""
        for metric, count in self.counts.items():
            good = in_time(metric, count.target_seconds, ending)
            if good is not None:
                count.requests += 1
                count.good += good


def in_time(metric: SloMetric, target_seconds: float, ending: Ending) -> bool | None:
    """Whether a promise was kept; None: the request says nothing of it."""
    if metric is SloMetric.TIME_TO_FIRST_TOKEN:
        measured = ending.first_token
    elif metric is SloMetric.INTER_TOKEN_LATENCY:
        measured = ending.inter_token
        if measured is None:
            return None
    else:
        measured = ending.duration if ending.outcome is Outcome.COMPLETED else None
    if measured is not None:
        return measured <= target_seconds
    if ending.outcome is Outcome.COMPLETED:  # nothing was streamed: its end was its first token
        return ending.duration <= target_seconds
    if ending.outcome in _MISSED:
        return False
    if ending.outcome in _GAVE_UP and ending.duration > target_seconds:
        return False
    return None
