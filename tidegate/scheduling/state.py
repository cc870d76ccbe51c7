"""What the scheduler knows of each tier and tenant."""

from __future__ import annotations

from math import inf

from tidegate.scheduling.contracts import (
    FairnessUnit,
    RateLimit,
    SloMetric,
    Stop,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.contracts.limits import DEFAULT_QUANTUM
from tidegate.scheduling.deficit_round_robin import Account, DeficitRoundRobin
from tidegate.scheduling.drain_rate import DrainRate
from tidegate.scheduling.lazy_heap import Entry
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.snapshots import Backlog
from tidegate.scheduling.tenant_averages import Averages, OutputMean
from tidegate.scheduling.tenant_queue import TenantQueue
from tidegate.scheduling.throttle import Throttle
from tidegate.scheduling.tier_account import TierAccount


class ServiceTotal:
    """Served tokens. A settled request may turn out smaller than what was seen of it, and a
    published total must not fall: then it stands until the true one has caught up."""

    __slots__ = ("_true", "published")

    def __init__(self) -> None:
        self._true = 0
        self.published = 0

    def add(self, tokens: int) -> None:
        """Negative: an earlier count was too high."""
        self._true += tokens
        if self._true > self.published:
            self.published = self._true


class TierState:
    """One tier of the policy in force."""

    __slots__ = (
        "account",
        "averages",
        "engine_ms",
        "first_token_target_seconds",
        "max_in_flight",
        "name",
        "output_mean",
        "policy",
        "quantum",
        "queued",
        "robin",
        "running",
        "service",
        "unit",
    )

    def __init__(
        self, policy: TierPolicy, timed: bool, served: float, batch_tokens: int | None = None
    ) -> None:
        self.name = policy.name
        self.set_policy(policy, timed, batch_tokens)
        self.account: TierAccount[TierState] = TierAccount(self, policy, served)
        self.robin: DeficitRoundRobin[TenantState] = DeficitRoundRobin(self.quantum)
        self.output_mean = OutputMean()
        self.averages = Averages()
        self.queued = 0
        self.running = 0
        self.service = ServiceTotal()
        self.engine_ms = 0.0

    def set_policy(self, policy: TierPolicy, timed: bool, batch_tokens: int | None = None) -> None:
        """New terms; what every decision reads is laid out flat.

        ``timed``: the host reports engine time; where it does not, tokens stand in its place.
        ``batch_tokens``: a full batch of an engine that embeds, where it is known: lists come in
        parts of one, so that a finer quantum would interleave nothing.
        """
        self.policy = policy
        self.unit, quantum = policy.fairness.unit, policy.fairness.quantum
        if self.unit is FairnessUnit.ENGINE_TIME and not timed:
            self.unit, quantum = FairnessUnit.TOKENS, None
        if quantum is None and self.unit is FairnessUnit.TOKENS:
            quantum = batch_tokens
        self.quantum = quantum or DEFAULT_QUANTUM[self.unit]
        target = policy.slo_seconds(SloMetric.TIME_TO_FIRST_TOKEN)
        self.first_token_target_seconds = inf if target is None else target
        self.max_in_flight = inf if policy.max_in_flight is None else policy.max_in_flight


class TenantState:
    """One tenant; ``policy`` unset: it has left the policy but still has requests in flight."""

    __slots__ = (
        "account",
        "arrival_entry",
        "at_limit",
        "averages",
        "backlogs",
        "closed",
        "dispatches",
        "drain_rate",
        "engine_ms",
        "in_flight",
        "name",
        "output_mean",
        "policy",
        "queue",
        "queued_cost",
        "rate_limits",
        "service",
        "throttle",
        "tier",
    )

    def __init__(self, policy: TenantPolicy, tier: TierState, in_arrival_order: bool) -> None:
        self.name = policy.name
        self.tier = tier
        self.queue = TenantQueue(tier.policy.queue, in_arrival_order)
        self.account: Account[TenantState] = Account(self, policy.weight)
        self.account.tag = tier.robin.virtual_time
        self.in_flight = 0
        self.at_limit = False
        """It left the round robin with requests waiting, for want of a place in flight."""
        self.arrival_entry: Entry | None = None
        """Its place in the arrival order, in that mode."""
        self.output_mean = OutputMean()
        self.averages = Averages()
        self.queued_cost = 0.0
        """What all that waits is expected to cost; kept by the outlook."""
        self.drain_rate = DrainRate()
        self.throttle = Throttle()
        self.service = ServiceTotal()
        self.engine_ms = 0.0
        self.backlogs = 0
        """How often its queue began to fill."""
        self.dispatches = 0
        self.set_policy(policy)

    def set_policy(self, policy: TenantPolicy | None) -> None:
        """New terms; its tier's are in force."""
        self.policy = policy
        self.rate_limits: tuple[RateLimit, ...] = ()
        if policy is not None:
            self.rate_limits = self.tier.policy.rate_limits_of(policy)
        self.closed: Outcome | None = None
        """Why it may not submit."""
        if policy is None:
            self.closed = Outcome.FORBIDDEN
        elif policy.stop is not Stop.NONE:
            self.closed = Outcome.HELD

    def lost_place(self) -> Outcome | None:
        """Why none of its requests may wait."""
        if self.policy is not None and self.policy.stop is not Stop.HOLD_AND_DRAIN:
            return None
        return self.closed

    def backlog(self) -> Backlog:
        """As it is now."""
        unit = self.tier.unit
        if unit is FairnessUnit.REQUESTS:
            given: float = self.dispatches
        elif unit is FairnessUnit.TOKENS:
            given = self.service.published
        else:
            given = self.engine_ms
        weight = self.account.weight
        return Backlog(self.name, self.tier.name, unit, weight, self.backlogs, given)

    def may_dispatch(self) -> bool:
        """Something waits, and its limit in flight leaves room."""
        return self.queue.size > 0 and self.in_flight < self.tier.max_in_flight
