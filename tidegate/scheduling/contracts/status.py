"""``GET /status`` of a sidecar's admin port: what the operator reads back.

All counts named ``*_total`` rise monotonically from the sidecar's start (``started_at`` tells a
restart), so that a reader takes differences between two readings and loses nothing to a missed
one. Histograms are cumulative in time too, not in buckets: ``counts[i]`` is the number of
observations in ``(bounds[i-1], bounds[i]]``, the last count those above every bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import ContractError, Report, described
from tidegate.scheduling.contracts.explanation import LimitUse
from tidegate.scheduling.contracts.limits import SloMetric
from tidegate.scheduling.contracts.policy import SchedulingMode
from tidegate.scheduling.contracts.shared_state import SharedStateStatus

STATUS_VERSION = 1

LATENCY_BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0,
    5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 300.0, 600.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket; seconds."""

    bounds: tuple[float, ...] = described("Upper bounds, rising.", default=LATENCY_BOUNDS_SECONDS)
    counts: tuple[int, ...] = described("One more than bounds.", default=())
    sum: float = described("Sum of the observations.", default=0.0, low=0)

    def __post_init__(self) -> None:
        if self.counts and len(self.counts) != len(self.bounds) + 1:
            raise ContractError("counts: must be one more than bounds")
        if self.bounds == LATENCY_BOUNDS_SECONDS:  # once, not in each of thousands that are kept
            object.__setattr__(self, "bounds", LATENCY_BOUNDS_SECONDS)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last refusal of a tenant's request."""

    reason: str = described("The outcome, as in the metric tidegate_requests_total.")
    at: float = described("Wall clock, seconds since the epoch.", low=0)
    limit: str | None = described("The rate limit that refused it; null: none did.", default=None)


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """One tenant on one sidecar."""

    name: str = described("namespace/name.")
    tier: str = described("Its tier.")
    queued: int = described("Requests waiting.", default=0, low=0)
    running: int = described("Requests in the engine.", default=0, low=0)
    service_tokens_total: int = described("Prompt and output tokens served.", default=0, low=0)
    requests_total: Mapping[str, int] = described(
        "Ended requests by outcome.", default_factory=dict
    )
    last_refusal: Refusal | None = described("Unset: none yet.", default=None)
    ttft_seconds: Histogram | None = described(
        "Arrival to first token; unset: no request yet.", default=None
    )
    engine_time_ms_total: float = described(
        "Milliseconds of the engine's busy time that it was charged.", default=0.0, low=0
    )
    limits: tuple[LimitUse, ...] = described("Its rate limits.", default=())
    oldest_wait_seconds: float = described(
        "How long that has waited which waits longest; 0: none waits.", default=0.0, low=0
    )


@dataclass(frozen=True, slots=True)
class SloStatus:
    """One objective of a tier; the target in force when each request ended."""

    metric: SloMetric = described("What is promised.")
    requests_total: int = described("Requests that count for it.", default=0, low=0)
    good_total: int = described("Of them, those within the target.", default=0, low=0)
    refused_total: int | None = described(
        "Of them, those that the pool refused or failed before anything could be measured; the "
        "rest were late. Unset: a sidecar that does not tell them apart.",
        default=None,
        low=0,
    )


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier on one sidecar."""

    name: str = described("Name of the TenantTier.")
    queued: int = described("Requests waiting.", default=0, low=0)
    running: int = described("Requests in the engine.", default=0, low=0)
    service_tokens_total: int = described("Prompt and output tokens served.", default=0, low=0)
    requests_total: Mapping[str, int] = described(
        "Ended requests by outcome.", default_factory=dict
    )
    queue_seconds: Histogram = described("Arrival to dispatch.", default_factory=Histogram)
    ttft_seconds: Histogram = described("Arrival to first token.", default_factory=Histogram)
    duration_seconds: Histogram = described("Arrival to end.", default_factory=Histogram)
    inter_token_seconds: Histogram = described(
        "Mean gap between the tokens of a request.", default_factory=Histogram
    )
    engine_time_ms_total: float = described(
        "Milliseconds of the engine's busy time that it was charged.", default=0.0, low=0
    )
    slo: tuple[SloStatus, ...] = described("Its objectives.", default=())
    preemptions_total: int = described(
        "How often one of its requests was taken off the engine, by the sidecar or its plug-in.",
        default=0,
        low=0,
    )
    vft_skew_flagged_total: int = described(
        "Requests that ended more than 0.30 later than estimated at their dispatch.",
        default=0,
        low=0,
    )
    prompts_truncated_total: int = described(
        "Prompts above the limit that were cut.", default=0, low=0
    )
    prompts_best_effort_total: int = described(
        "Prompts above the limit that were served last.", default=0, low=0
    )
    drafted_tokens_total: int = described(
        "Draft tokens of its requests that were verified; only a plug-in tells.", default=0, low=0
    )
    accepted_tokens_total: int = described("Of them, those that became output.", default=0, low=0)
    kv_held_blocks: int | None = described(
        "KV blocks of its requests in the engine, as the sidecar estimates them or its plug-in "
        "tells; null: nobody counts them.",
        default=None,
        low=0,
    )
    max_service_gap: float = described(
        "Largest difference, by weight, of what two tenants that waited throughout the last 30 s "
        "were given, in the tier's fairness unit; 0: there were no two.",
        default=0.0,
        low=0,
    )
    oldest_wait_seconds: float = described(
        "How long that has waited which waits longest; 0: none waits.", default=0.0, low=0
    )


@dataclass(frozen=True, slots=True)
class KvPoolStatus:
    """One KV pool, in blocks, as the sidecar estimates it or its plug-in tells."""

    name: str = described("Of the policy's; empty: the tiers in none.", high=63)
    nominal_blocks: int = described("Its own.", default=0, low=0)
    held_blocks: int = described("By its requests in the engine.", default=0, low=0)
    borrowed_blocks: int = described("Of those, above its own.", default=0, low=0)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine as its sidecar sees it; null: not known (never zero for unknown)."""

    ready: bool = described("Its health endpoint answers.")
    running: int | None = described("Sequences it runs.", default=None, low=0)
    waiting: int | None = described("Sequences in its own queue.", default=None, low=0)
    kv_used_ratio: float | None = described("KV cache in use, 0..1.", default=None, low=0)
    kv_blocks: int | None = described("KV blocks in all.", default=None, low=0)
    kv_block_tokens: int | None = described("Tokens of one block.", default=None, low=1)
    metrics_error: str | None = described(
        "What its metrics have not told for a minute or more, of what the gate goes by, and why; "
        "null: nothing.",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class GateStatus:
    """The gate between our queue and the engine's."""

    window: int = described("Engine sequences that may be dispatched without progress.", low=1)
    not_started: int = described("Dispatched without first token.", low=0)


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """A sample of the traffic, taken because a tier's first tokens were slow."""

    name: str = described("As `GET /profiles/NAME` has it.", low=1, high=253)
    tier: str = described("The tier.")
    at: float = described("When it was found slow; wall clock, seconds since the epoch.", low=0)
    p99_over_baseline: float = described(
        "Its 99th percentile of the time to first token then, by the median of those of the last "
        "hour.",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class SidecarStatus(Report):
    """The answer of ``GET /status``."""

    version: int = described("Version of this contract.", low=STATUS_VERSION, high=STATUS_VERSION)
    pool: str = described("namespace/name of the ServingPool.")
    started_at: float = described("Wall clock of the start, seconds since the epoch.", low=0)
    policy_generation: int = described("Generation in force.", low=0)
    policy_error: str | None = described(
        "Why the newest policy was not applied; null: it was.", default=None
    )
    scheduling_mode: SchedulingMode = described("In force.", default=SchedulingMode.TIDEGATE)
    draining: bool = described("No new request is taken.", default=False)
    engine: EngineStatus | None = described("The engine.", default=None)
    gate: GateStatus | None = described("The gate.", default=None)
    shared_state: SharedStateStatus | None = described(
        "The server in which the pods count together; null: the policy names none.", default=None
    )
    tiers: tuple[TierStatus, ...] = described("Every tier of the policy.", default=())
    tenants: tuple[TenantStatus, ...] = described("Tenants with any request yet.", default=())
    kv_pools: tuple[KvPoolStatus, ...] = described(
        "KV pools; none where the policy has none and no tier may be preempted.", default=()
    )
    reads_policy: int = described(
        "The highest version of policy.json that it reads; absent: 1. Before a policy is in force "
        "the answer is 503 and has this field too.",
        default=1,
        low=1,
    )
    last_sample: TrafficSample | None = described(
        "The newest sample of its traffic; null: none was taken yet.", default=None
    )
