"""What the scheduler knows of each tier, tenant and dispatched request, and its snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.scheduling.contracts import TenantPolicy, TierPolicy
from tidegate.scheduling.cost import OutputMean
from tidegate.scheduling.deficit_round_robin import Account, DeficitRoundRobin
from tidegate.scheduling.drain_rate import DrainRate
from tidegate.scheduling.lazy_heap import Entry
from tidegate.scheduling.request import Request
from tidegate.scheduling.tenant_queue import TenantQueue
from tidegate.scheduling.tiers import UNCHARGED, Grant, TierAccount


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


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """One tier at one moment."""

    name: str
    queued: int
    running: int
    service_tokens_total: int
    """Prompt and output tokens served; only rises."""


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

    __slots__ = ("account", "output_mean", "policy", "queued", "robin", "running", "service")

    def __init__(self, policy: TierPolicy, served_tokens: float) -> None:
        self.policy = policy
        self.account: TierAccount[TierState] = TierAccount(self, policy, served_tokens)
        self.robin: DeficitRoundRobin[TenantState] = DeficitRoundRobin(
            policy.fairness.quantum_in_force
        )
        self.output_mean = OutputMean()
        self.queued = 0
        self.running = 0
        self.service = ServiceTotal()


class TenantState:
    """One tenant; ``policy`` unset: it has left the policy but still has requests in flight."""

    __slots__ = (
        "account",
        "arrival_entry",
        "at_limit",
        "drain_rate",
        "in_flight",
        "name",
        "output_mean",
        "policy",
        "queue",
        "service",
        "tier",
    )

    def __init__(self, policy: TenantPolicy, tier: TierState, in_arrival_order: bool) -> None:
        self.name = policy.name
        self.policy: TenantPolicy | None = policy
        self.tier = tier
        self.queue: TenantQueue[TenantState] = TenantQueue(tier.policy.queue, in_arrival_order)
        self.account: Account[TenantState] = Account(self, policy.weight)
        self.account.tag = tier.robin.virtual_time
        self.in_flight = 0
        self.at_limit = False
        """It left the round robin with requests waiting, for want of a place in flight."""
        self.arrival_entry: Entry | None = None
        """Its place in the arrival order, in that mode."""
        self.output_mean = OutputMean()
        self.drain_rate = DrainRate()
        self.service = ServiceTotal()

    def may_dispatch(self) -> bool:
        """Something waits, and its limit in flight leaves room."""
        limit = self.tier.policy.max_in_flight
        return self.queue.size > 0 and (limit is None or self.in_flight < limit)


class Flight:
    """One dispatched request and what was charged for it."""

    __slots__ = (
        "charged_tokens",
        "contended",
        "grant",
        "order",
        "request",
        "served_tokens",
        "started",
        "tenant",
        "tier",
        "unit",
    )

    def __init__(
        self, request: Request, tenant: TenantState, order: int, charged_tokens: float
    ) -> None:
        self.request = request
        self.tenant = tenant
        self.tier = tenant.tier
        """Which dispatched it: its account is settled there though the tenant may have moved."""
        self.order = order
        self.unit = self.tier.policy.fairness.unit
        self.charged_tokens = charged_tokens
        self.contended = False
        self.grant: Grant = UNCHARGED
        self.started = False
        self.served_tokens = 0
