"""What happened so far: counts and latencies by tier and tenant, kept once for both readers.

``GET /status`` (the operator) and ``/metrics`` (Prometheus) show the same numbers, so they are
counted in one place, in plain integers: a request costs a few additions, and text is made only when
somebody asks. Totals only rise; rows of tenants that left the policy go, and every row of the
policy in force is there from the start, at zero.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, MutableMapping
from typing import TypeVar

from tidegate.scheduling import request as scheduling
from tidegate.scheduling.contracts import LATENCY_BOUNDS_SECONDS, Histogram, Policy, Refusal
from tidegate.scheduling.finish_time import FLAGGED_ABOVE, Skew, SkewCause
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.slo_tally import Ending, SloTally

UNKNOWN = ""
"""Tier and tenant of a request that ended before its key was known."""
WAITS_ENDED = (
    Outcome.QUEUE_WAIT_EXCEEDED,
    Outcome.DEADLINE_EXCEEDED,
    Outcome.CLIENT_CLOSED,
)
"""Ends of requests in the queue that are counted each by itself; the rest (drained, handed back,
revoked) together: a scrape writes thirty lines for each, of every tier."""


Row = TypeVar("Row")


class LatencyCounter:
    """A histogram of seconds that is being counted."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation; clocks that step back count as 0."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def histogram(self) -> Histogram:
        """As the status contract has it."""
        return Histogram(counts=tuple(self.counts), sum=self.sum)


SKEW_BOUNDS = (-0.9, -0.75, -0.5, -0.3, -0.1, 0.0, 0.1, FLAGGED_ABOVE, 0.5, 1.0, 2.0, 4.0)
"""Of vft_skew's histogram; ratios."""


class SkewCounter:
    """A histogram of vft_skew."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(SKEW_BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, ratio: float) -> None:
        """Count one request that ran to its end."""
        self.counts[bisect_left(SKEW_BOUNDS, ratio)] += 1
        self.sum += ratio


class TierTally:
    """One tier."""

    __slots__ = (
        "best_effort",
        "duration",
        "inter_token",
        "outcomes",
        "preemptions",
        "queue",
        "recomputed_tokens",
        "skew",
        "skew_flagged",
        "slo",
        "truncated",
        "ttft",
        "waits_ended",
    )

    def __init__(self) -> None:
        self.best_effort = 0
        """Prompts above the limit that were served in the lowest place."""
        self.truncated = 0
        """Prompts above the limit that were cut."""
        self.preemptions = 0
        self.recomputed_tokens = 0
        """Lost by those, and to be computed again."""
        self.outcomes: dict[Outcome, int] = {}
        self.slo = SloTally()
        self.skew = SkewCounter()
        self.skew_flagged = dict.fromkeys(SkewCause, 0)
        self.queue = LatencyCounter()
        """Of those that left it for the engine."""
        self.waits_ended: dict[Outcome | None, LatencyCounter] = {
            outcome: LatencyCounter() for outcome in (*WAITS_ENDED, None)
        }
        """Of those that ended in it; None: otherwise than by :data:`WAITS_ENDED`."""
        self.ttft = LatencyCounter()
        self.inter_token = LatencyCounter()
        self.duration = LatencyCounter()


class TenantTally:
    """One tenant."""

    __slots__ = ("last_refusal", "outcomes", "tier", "ttft")

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self.outcomes: dict[Outcome, int] = {}
        self.last_refusal: Refusal | None = None
        self.ttft: LatencyCounter | None = None


class Tally:
    """All tiers and tenants of the policy in force."""

    def __init__(self) -> None:
        self.tiers: dict[str, TierTally] = {}
        self.tenants: dict[str, TenantTally] = {}
        self.on_first_token: Callable[[str, float], None] | None = None
        """Told the tier, and the seconds until then."""
        self.unknown: dict[Outcome, int] = {}
        """Ended before a tenant was known."""
        self.rate_limited: dict[str, int] = {}
        """Refused by each rate limit of the policy, by its name."""

    def apply_policy(self, policy: Policy) -> None:
        """Rows for what is new, none for what has gone."""
        tiers = {tier.name for tier in policy.tiers}
        tenants = {tenant.name: tenant.tier for tenant in policy.tenants}
        _keep(self.tiers, tiers)
        _keep(self.tenants, tenants)
        limits = {limit.name for tier in policy.tiers for limit in tier.rate_limits}
        limits |= {limit.name for tenant in policy.tenants for limit in tenant.rate_limits}
        _keep(self.rate_limited, limits)
        for name in limits:
            self.rate_limited.setdefault(name, 0)
        for tier_row in policy.tiers:
            self.tiers.setdefault(tier_row.name, TierTally()).slo.apply_policy(tier_row)
        for name, tier in tenants.items():
            self.tenants.setdefault(name, TenantTally(tier)).tier = tier

    def admitted(self, request: scheduling.Request) -> None:
        """A request was queued, maybe with a prompt above its tier's limit."""
        if request.truncate_to_tokens is None and not request.best_effort:
            return
        if (tier := self._tier_of(request.tenant)) is not None:
            if request.best_effort:
                tier.best_effort += 1
            else:
                tier.truncated += 1

    def not_admitted(self, refusal: scheduling.Refusal) -> None:
        """A request was refused by prompt limit, throttle or a rate limit; ``ended`` follows."""
        if refusal.limit in self.rate_limited:
            self.rate_limited[refusal.limit] += 1

    def dispatched(self, tenant: str, waited_seconds: float) -> None:
        """A request left the queue for the engine."""
        if (tier := self._tier_of(tenant)) is not None:
            tier.queue.observe(waited_seconds)

    def left_queue(self, tenant: str, outcome: Outcome, waited_seconds: float) -> None:
        """A request ended while it was queued."""
        if (tier := self._tier_of(tenant)) is not None:
            counters = tier.waits_ended
            counters[outcome if outcome in counters else None].observe(waited_seconds)

    def first_token(self, tenant: str, ttft_seconds: float) -> None:
        """The first token of a request came."""
        row = self.tenants.get(tenant)
        if row is None:
            return
        if row.ttft is None:
            row.ttft = LatencyCounter()
        row.ttft.observe(ttft_seconds)
        if row.tier in self.tiers:
            self.tiers[row.tier].ttft.observe(ttft_seconds)
            if self.on_first_token is not None:
                self.on_first_token(row.tier, ttft_seconds)

    def preempted(self, tenant: str, lost_tokens: int) -> None:
        """A request was taken off the engine, and will be computed again."""
        if (tier := self._tier_of(tenant)) is not None:
            tier.preemptions += 1
            tier.recomputed_tokens += lost_tokens

    def skewed(self, tenant: str, skew: Skew) -> None:
        """A request ended so much later (or earlier) than was estimated at its dispatch."""
        if (tier := self._tier_of(tenant)) is not None:
            tier.skew.observe(skew.ratio)
            if skew.cause is not None:
                tier.skew_flagged[skew.cause] += 1

    def ended(
        self,
        tenant: str,
        outcome: Outcome,
        duration_seconds: float,
        first_token_seconds: float | None = None,
        inter_token_seconds: float | None = None,
        limit: str | None = None,
    ) -> None:
        """A request ended; called exactly once for each. ``limit``: the rate limit that refused
        it."""
        row = self.tenants.get(tenant)
        tier = self._tier_of(tenant)
        if row is None or tier is None:
            _count(self.unknown, outcome)
            return
        _count(row.outcomes, outcome)
        _count(tier.outcomes, outcome)
        if tier.slo.counts:
            tier.slo.ended(
                Ending(outcome, duration_seconds, first_token_seconds, inter_token_seconds)
            )
        if outcome is Outcome.COMPLETED:
            tier.duration.observe(duration_seconds)
            if inter_token_seconds is not None:
                tier.inter_token.observe(inter_token_seconds)
        elif outcome not in (Outcome.CLIENT_CLOSED, Outcome.HANDED_BACK):
            row.last_refusal = Refusal(outcome.value, time.time(), limit)

    def _tier_of(self, tenant: str) -> TierTally | None:
        row = self.tenants.get(tenant)
        return None if row is None else self.tiers.get(row.tier)


def _keep(rows: MutableMapping[str, Row], names: Iterable[str]) -> None:
    for gone in set(rows) - set(names):
        del rows[gone]


def _count(outcomes: dict[Outcome, int], outcome: Outcome) -> None:
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
