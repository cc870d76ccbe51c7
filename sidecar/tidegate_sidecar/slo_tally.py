"""Promises kept: of each objective of a tier, the requests that count and those that were in time.

Counted here, at the source, against the target in force when the request ended, since no histogram
has a bucket at every target. Which request counts for an objective, and how:

* the first token came, or the request ran to its end, or two tokens came: by the time measured;
* it ended without that and the pool is why (engine failed or away, queue wait, throttled): a miss,
  counted as refused. A throttled one counts because a promise is not kept by refusing everybody;
* its client left, or its own deadline passed, without that: late once the target has passed, else
  it says nothing;
* it was refused for what its client can change (key, body, limits, a full queue of its own), or
  sent elsewhere: it does not count.
"""

from __future__ import annotations

from enum import Enum, auto
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


class Verdict(Enum):
    """What one request says of a promise."""

    KEPT = auto()
    LATE = auto()
    REFUSED = auto()
    """The pool ended it before anything could be measured."""


class SloCount:
    """One objective of one tier."""

    __slots__ = ("good", "refused", "requests", "target_seconds")

    def __init__(self, target_seconds: float) -> None:
        self.target_seconds = target_seconds
        self.requests = 0
        self.good = 0
        self.refused = 0
        """Of those that are not good; the others were late."""

    def count(self, verdict: Verdict) -> None:
        """Count one request."""
        self.requests += 1
        if verdict is Verdict.KEPT:
            self.good += 1
        elif verdict is Verdict.REFUSED:
            self.refused += 1


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
            verdict = judged(metric, count.target_seconds, ending)
            if verdict is not None:
                count.count(verdict)


def judged(metric: SloMetric, target_seconds: float, ending: Ending) -> Verdict | None:
    """Whether a promise was kept, and how it was broken; None: the request says nothing of it."""
    if metric is SloMetric.TIME_TO_FIRST_TOKEN:
        measured = ending.first_token
    elif metric is SloMetric.INTER_TOKEN_LATENCY:
        measured = ending.inter_token
        if measured is None:
            return None
    else:
        measured = ending.duration if ending.outcome is Outcome.COMPLETED else None
    if measured is None and ending.outcome is Outcome.COMPLETED:
        measured = ending.duration  # nothing was streamed: its end was its first token
    if measured is not None:
        return Verdict.KEPT if measured <= target_seconds else Verdict.LATE
    if ending.outcome in _MISSED:
        return Verdict.REFUSED
    if ending.outcome in _GAVE_UP and ending.duration > target_seconds:
        return Verdict.LATE
    return None
