"""What a group of simulated requests experienced. Pure: records in, figures out.

The unhappy count. Every percentile and every objective is over all requests that were sent; one
that was refused, broke, never started or had not ended at the end of the run has no first token or
no end in time, stands as infinite among the latencies and as a miss among the objectives. A policy
therefore cannot look fast by refusing, and a starved tenant cannot vanish from the figures.

A request that ended with fewer than two tokens has no inter-token latency; it is in no such
percentile and meets such an objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isinf

from tidegate.scheduling.contracts.limits import SloMetric, SloObjective
from tidegate.scheduling.contracts.simulation_report import (
    Latencies,
    ObjectiveFigures,
    SimulatedFigures,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.simulation.result import RequestRecord, percentile

Objectives = Sequence[SloObjective]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is measured, in seconds of virtual time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def holds(self, time: float) -> bool:
        return self.start <= time < self.end


def served_tokens(record: RequestRecord, window: Window) -> float:
    """Tokens served within the window: the prompt at the first token, output evenly from there.

    A request that has not ended is being served until the end of the window.
    """
    begin = record.first_token
    if begin is None:
        return 0.0
    prompt = record.prompt_tokens if window.holds(begin) else 0
    end = window.end if record.finished is None else record.finished
    span = end - begin
    if span <= 0:
        return prompt + (record.output_tokens if window.holds(begin) else 0)
    overlap = min(end, window.end) - max(begin, window.start)
    return prompt + record.output_tokens * max(0.0, overlap) / span


def group_figures(
    records: Sequence[RequestRecord],
    objectives: Objectives,
    window: Window,
    *,
    served: float,
    everything: float,
    good: int,
) -> SimulatedFigures:
    """The figures of the requests that arrived in the window.

    ``served`` tokens of ``everything`` were theirs; ``good`` of them met the objectives of their
    tier. ``objectives`` are those to be listed (none where the group spans several tiers).
    """
    started = [record for record in records if record.first_token is not None]
    admitted_tokens = sum(record.prompt_tokens for record in started)
    refused = Counter(
        record.outcome.value
        for record in records
        if record.outcome not in (None, Outcome.COMPLETED)
    )
    ok = sum(record.outcome is Outcome.COMPLETED for record in records)
    return SimulatedFigures(
        sent=len(records),
        ok=ok,
        refused=dict(refused.most_common()),
        unfinished=len(records) - ok - refused.total(),
        prompt_tokens=admitted_tokens,
        output_tokens=sum(record.output_tokens for record in records),
        tokens_per_second=served / window.seconds if window.seconds > 0 else 0.0,
        share=served / everything if everything > 0 else 0.0,
        goodput_per_second=good / window.seconds if window.seconds > 0 else 0.0,
        ttft_seconds=latencies(record.ttft_seconds for record in records),
        e2e_seconds=latencies(record.response_seconds for record in records),
        itl_seconds=latencies(present(map(mean_gap_seconds, records))),
        longest_gap_seconds=latencies(present(map(longest_gap_seconds, records))),
        preemptions=sum(record.preemptions for record in records),
        recomputed_tokens=sum(record.recomputed_tokens for record in records),
        cached_ratio=(
            sum(record.cached_tokens for record in started) / admitted_tokens
            if admitted_tokens
            else None
        ),
        objectives=tuple(_attained(objective, records) for objective in objectives),
    )


def meets(record: RequestRecord, objectives: Objectives) -> bool:
    """Whether the request was answered and met every objective."""
    return record.outcome is Outcome.COMPLETED and all(
        _met(record, objective) for objective in objectives
    )


def mean_gap_seconds(record: RequestRecord) -> float | None:
    """Mean time between its tokens; infinite unless it was answered; None: fewer than two."""
    return record.seconds_per_output_token if record.outcome is Outcome.COMPLETED else inf


def longest_gap_seconds(record: RequestRecord) -> float | None:
    """Longest time between two of its tokens; infinite and None as above."""
    if record.outcome is not Outcome.COMPLETED:
        return inf
    return record.itl_max_seconds if record.output_tokens >= 2 else None


def latencies(values: Iterable[float]) -> Latencies | None:
    """Percentiles of latencies, infinite ones as null; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None

    def at(percent: float) -> float | None:
        value = percentile(ordered, percent)
        return None if isinf(value) else value

    return Latencies(at(50), at(95), at(99))


def present(values: Iterable[float | None]) -> list[float]:
    """Those that are not None."""
    return [value for value in values if value is not None]


def _met(record: RequestRecord, objective: SloObjective) -> bool:
    match objective.metric:
        case SloMetric.TIME_TO_FIRST_TOKEN:
            latency: float | None = record.ttft_seconds
        case SloMetric.END_TO_END:
            latency = record.response_seconds
        case SloMetric.INTER_TOKEN_LATENCY:
            latency = mean_gap_seconds(record)
    return latency is None or latency <= objective.target_seconds


def _attained(objective: SloObjective, records: Sequence[RequestRecord]) -> ObjectiveFigures:
    """One that broke after its first token missed; one still streaming at the end has its TTFT."""
    good = sum(
        record.outcome in (None, Outcome.COMPLETED) and _met(record, objective)
        for record in records
    )
    percent = 100.0 * good / len(records) if records else None
    return ObjectiveFigures(
        metric=objective.metric,
        target_seconds=objective.target_seconds,
        ratio_percent=objective.ratio_percent,
        attained_percent=percent,
        met=None if percent is None else percent >= objective.ratio_percent,
    )
