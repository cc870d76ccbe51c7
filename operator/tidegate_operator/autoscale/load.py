"""What the sidecars of one group say of the promised tiers' queues and service: pure.

The difference of two readings of each sidecar, over the last :data:`RATE_SECONDS`, summed over the
pods. A sidecar that serves and was not read lately makes the whole unknown: what it does not say
could be the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import SidecarStatus, SloMetric, TierPolicy, TierStatus
from tidegate.scheduling.outcomes import Outcome
from tidegate_operator.autoscale.capacity import Rate
from tidegate_operator.autoscale.decision import RATE_SECONDS
from tidegate_operator.autoscale.signals import WAIT_PART, TierWait
from tidegate_operator.figures import Reading, counted_from
from tidegate_operator.latency_buckets import Buckets

WAITED_TOO_LONG = (Outcome.THROTTLED, Outcome.QUEUE_WAIT_EXCEEDED)
"""How requests end that more pods would have served."""
STALE_SECONDS = 30.0
"""Older readings say nothing of now."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """The promised tiers of one group."""

    waits: tuple[TierWait, ...]
    """Of tiers with a promise that a wait can break."""
    rate: Rate

    @property
    def short(self) -> bool:
        """Whether one waits, or is refused, beyond what its promise bears."""
        return any(wait.short for wait in self.waits)


def wait_limit_seconds(tier: TierPolicy) -> float | None:
    """How long requests of the tier may wait with its promises safe; None: no promise says."""
    targets = [
        target
        for metric in (SloMetric.TIME_TO_FIRST_TOKEN, SloMetric.END_TO_END)
        if (target := tier.slo_seconds(metric)) is not None
    ]
    return WAIT_PART * min(targets) if targets else None


def group_load(
    pods: Mapping[str, Sequence[Reading]], tiers: Iterable[TierPolicy], now_seconds: float
) -> GroupLoad | str:
    """From the readings of each ready pod, oldest first, on the reader's monotonic clock; text: why
    nothing is known."""
    if not pods:
        return "no pod serves"
    promised = [tier for tier in tiers if tier.slo_objectives]
    sums = {tier.name: _Sum() for tier in promised}
    short: list[float] = []
    for pod, readings in pods.items():
        pair = _pair(readings, now_seconds)
        if pair is None:
            return f"the sidecar of pod {pod} was not read lately"
        own = {tier.name: _Sum() for tier in promised}
        for each in (sums, own):
            _add(each, *pair)
        if any(wait.short for wait in _waits(own, promised)):
            short.append(sum(found.tokens_per_second for found in own.values()))
    return GroupLoad(
        tuple(_waits(sums, promised)),
        Rate(
            sum(found.tokens_per_second for found in sums.values()),
            sum(found.queued * found.tokens_per_request() for found in sums.values()),
            sum(found.queue_growth * found.tokens_per_request() for found in sums.values()),
            _busy([readings[-1].status for readings in pods.values()]),
            sum(found.refused_per_second * found.tokens_per_request() for found in sums.values()),
            sum(short) / len(short) if short else None,
        ),
    )


def _waits(sums: Mapping[str, _Sum], tiers: Iterable[TierPolicy]) -> Iterator[TierWait]:
    """Of the tiers with a promise that a wait can break."""
    for tier in tiers:
        limit = wait_limit_seconds(tier)
        if limit is not None:
            found = sums[tier.name]
            budget = 1 - max(promise.ratio_percent for promise in tier.slo_objectives) / 100
            yield TierWait(tier.name, limit, found.wait_seconds(), found.refused_ratio(), budget)


def _busy(pods: Sequence[SidecarStatus]) -> float | None:
    """How busy the pods are just now, each by what it has least of left: a start of a request at
    once, or KV cache. Averaged over time, the former is the part in which prompts wait for others.
    """
    parts = []
    for pod in pods:
        if pod.gate is None or pod.engine is None or pod.engine.kv_used_ratio is None:
            return None
        parts.append(max(float(pod.gate.not_started > 0), pod.engine.kv_used_ratio))
    return sum(parts) / len(parts)


@dataclass(slots=True)
class _Sum:
    """One tier over the pods of the group."""

    queued: int = 0
    queue_growth: float = 0.0
    """Requests per second."""
    refused: int = 0
    """For what they would have waited, as all below in the time that is looked at."""
    refused_per_second: float = 0.0
    tokens_per_second: float = 0.0
    tokens: int = 0
    dispatched: int = 0
    waits: Buckets = field(default_factory=Buckets)

    def add(self, new: TierStatus, old: TierStatus | None, seconds: float) -> None:
        tokens = new.service_tokens_total - (old.service_tokens_total if old else 0)
        refused = _refused(new) - (_refused(old) if old else 0)
        self.refused += refused
        self.refused_per_second += refused / seconds
        self.queued += new.queued
        self.queue_growth += (new.queued - (old.queued if old else 0)) / seconds
        self.tokens += tokens
        self.tokens_per_second += tokens / seconds
        self.waits.add(new.queue_seconds, old.queue_seconds if old else None)

    def tokens_per_request(self) -> float:
        """Tokens that one request gets, of those dispatched lately; 0 where none was."""
        dispatched = sum(self.waits.counts)
        return self.tokens / dispatched if dispatched else 0.0

    def refused_ratio(self) -> float:
        """Of those that were dispatched or refused."""
        ended = self.refused + sum(self.waits.counts)
        return self.refused / ended if ended else 0.0

    def wait_seconds(self) -> float | None:
        """What all but 5% of those dispatched waited; where none was, and some wait, the whole time
        that was looked at."""
        milliseconds = self.waits.quantile_ms(0.95)
        if milliseconds is None:
            return RATE_SECONDS if self.queued else None
        return milliseconds / 1000


def _refused(tier: TierStatus) -> int:
    return sum(tier.requests_total.get(str(outcome), 0) for outcome in WAITED_TOO_LONG)


def _add(sums: Mapping[str, _Sum], new: Reading, old: Reading) -> None:
    before = {tier.name: tier for tier in old.status.tiers}
    for tier in new.status.tiers:
        if tier.name in sums:
            seconds = new.at_seconds - old.at_seconds
            sums[tier.name].add(tier, counted_from(before.get(tier.name), tier), seconds)


def _pair(readings: Sequence[Reading], now_seconds: float) -> tuple[Reading, Reading] | None:
    """The newest reading, and that of its run from :data:`RATE_SECONDS` before, or the oldest."""
    if not readings or now_seconds - readings[-1].at_seconds > STALE_SECONDS:
        return None
    new = readings[-1]
    run = [r for r in readings if r.status.started_at == new.status.started_at and r is not new]
    if not run:
        return None
    old = [r for r in run if new.at_seconds - r.at_seconds >= RATE_SECONDS]
    return new, (old[-1] if old else run[0])
