"""What happened when, of a surge and the group of engines that grew for it: pure.

Moments come from whoever saw them, on one clock (seconds since the epoch): the cluster's objects, a
Prometheus, an Alertmanager. Requests come from the load generator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate_operator.slo.windows import BURN_WINDOWS

from tidegate.load import Sample, SampleState

BACK_SECONDS = 60.0
"""For so long a promise is kept again before it counts as kept again."""


class Event(StrEnum):
    """What is told of a run."""

    LOAD = "load begins"
    SURGE = "surge begins"
    BROKEN = "first promise broken"
    FIRES = "alert fires"
    TOLD = "Alertmanager tells"
    GROWS = "operator adds pods"
    READY = "pod Ready"
    BACK = "promise kept again"
    SURGE_ENDS = "surge ends"
    CLEARED = "alert cleared"
    RESOLVED = "Alertmanager: resolved"
    SHRINKS = "operator takes pods away"
    DRAINS = "pod drains"
    GONE = "pod is gone"
    SAYS = "condition Autoscaling"
    END = "load ends"


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """One event."""

    at: float
    event: Event
    text: str = ""


@dataclass(frozen=True, slots=True)
class Promise:
    """Of a tier: the part of its requests that get their first token in time."""

    target_seconds: float
    ratio: float

    def kept(self, sample: Sample) -> bool:
        """Refused and failed ones were not served in time either."""
        return sample.first_token is not None and (
            sample.first_token - sample.began <= self.target_seconds
        )


def first(moments: Sequence[Moment], event: Event, since: float = 0.0) -> Moment | None:
    """The earliest such moment from a time on."""
    return min((m for m in moments if m.event is event and m.at >= since), default=None)


def seconds_between(start: Moment | None, end: Moment | None) -> float | None:
    """None where one of the two never was."""
    return None if start is None or end is None else end.at - start.at


def kept_ratio(samples: Sequence[Sample], promise: Promise, begin: float, end: float) -> float:
    """Of the requests that were due between two times of the run; 1 where none was."""
    due = [promise.kept(sample) for sample in samples if begin <= sample.began < end]
    return sum(due) / len(due) if due else 1.0


def kept_again(samples: Sequence[Sample], promise: Promise, since: float) -> float | None:
    """When, of the run's seconds, requests began to be served as promised again for
    :data:`BACK_SECONDS`; None: they never were."""
    later = sorted((s for s in samples if s.began >= since), key=lambda s: s.began)
    times = [sample.began for sample in later]
    broken = [0]
    for sample in later:
        broken.append(broken[-1] + (not promise.kept(sample)))
    for start, begin in enumerate(times):
        if begin + BACK_SECONDS > times[-1]:
            return None
        end = bisect_left(times, begin + BACK_SECONDS)
        if broken[end] - broken[start] <= (1 - promise.ratio) * (end - start) + 1e-9:
            return begin
    return None


def lost_since(samples: Sequence[Sample], since: float) -> list[Sample]:
    """Requests that were under way at a time of the run, or came later, and got no answer."""
    return [
        sample
        for sample in samples
        if sample.state is not SampleState.OK and (sample.ended is None or sample.ended >= since)
    ]


def burn_seconds(
    *,
    budget: float,
    broken: float,
    surge_per_second: float,
    history_per_second: float,
) -> float:
    """How long a surge that breaks so many of its promises takes to page: until the hour's ratio
    is over the rate of the first pair of windows, after an hour without a broken one."""
    limit = BURN_WINDOWS[0].rate * budget
    # A second of surge in the place of one of history:
    # broken * surge * t = limit * (history * (3600 - t) + surge * t)
    gain = broken * surge_per_second - limit * (surge_per_second - history_per_second)
    if gain <= 0:
        raise ValueError("such a surge never fires the alert")
    return limit * history_per_second * 3600.0 / gain
