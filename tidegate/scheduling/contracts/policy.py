"""``policy.json``: what the operator compiled from TenantTier, Tenant and ServingPool objects.

One document per pool, read by every sidecar of it (from a file, or posted to its admin port).
Large tenant lists are cut into shards of one generation: shard 0 carries everything but the tenants
beyond its own slice, the others carry tenants only. A set whose shards do not all name the same
generation and count is not applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

from tidegate.scheduling.contracts.codec import ContractError, described
from tidegate.scheduling.contracts.engine_group import EngineGroupPolicy, check_kv_pools
from tidegate.scheduling.contracts.limits import (
    EngineLimits,
    Fairness,
    KvPool,
    OutputLimits,
    Preemption,
    PrefillLimits,
    PromptLimit,
    QueueLimits,
    RateLimit,
    SloMetric,
    SloObjective,
    unique,
)
from tidegate.scheduling.contracts.observability import Observability
from tidegate.scheduling.contracts.shared_state import SharedState

POLICY_VERSION = 2
"""2: what fields `since` it say; a reader of 2 reads 1 too."""


class SchedulingMode(StrEnum):
    """How a pool orders its requests; hot.

    Tidegate: by tier, fair share and priority. Shadow: by arrival alone, while everything is
    decided and measured as if it were in force. FirstComeFirstServed: by arrival alone.
    """

    TIDEGATE = "Tidegate"
    SHADOW = "Shadow"
    FIRST_COME_FIRST_SERVED = "FirstComeFirstServed"


class BetweenTiers(StrEnum):
    """How the excess above the reservations is shared between tiers.

    Strict: by priority, the higher first. Weighted: in proportion to their weights.
    """

    STRICT = "Strict"
    WEIGHTED = "Weighted"


class Stop(StrEnum):
    """Whether a tenant is served: Hold takes no new request, HoldAndDrain drops queued ones too."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class Task(StrEnum):
    """What a pool's model does."""

    GENERATE = "Generate"
    EMBED = "Embed"


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What one class of customers is promised in this pool."""

    name: str = described("Name of the TenantTier.", low=1, high=63)
    priority: int = described(
        "Order between tiers, higher first.", default=0, low=-(2**31), high=2**31 - 1
    )
    reserved_percent: int = described(
        "Percent of the engine's busy time guaranteed while the tier is backlogged; of its tokens "
        "where it embeds.",
        default=0,
        low=0,
        high=100,
    )
    max_percent: int = described(
        "Most it takes of that while other tiers wait, in percent.",
        default=100,
        low=1,
        high=100,
    )
    output: OutputLimits = described("Output tokens.", default_factory=OutputLimits)
    max_in_flight: int | None = described(
        "Most requests of one tenant in the engine; null: no such limit.", default=None, low=1
    )
    fairness: Fairness = described("Between its tenants.", default_factory=Fairness)
    queue: QueueLimits = described("Queue of one tenant.", default_factory=QueueLimits)
    weight: int = described(
        "Share of the excess where `between_tiers` is Weighted.", default=1, low=1, high=1000
    )
    prompt_limit: PromptLimit | None = described(
        "The largest prompt; null: what the model takes.", default=None
    )
    rate_limits: tuple[RateLimit, ...] = described(
        "Each holds for each tenant by itself, and all at once.", default=(), high=16
    )
    preemption: Preemption = described("Its running requests.", default_factory=Preemption)
    slo_objectives: tuple[SloObjective, ...] = described(
        "What its tenants are promised.", default=(), high=3
    )
    draft_tokens: int | None = described(
        "Most draft tokens of one of its requests that a step verifies, by the plug-in; 0: none; "
        "null: as many as the engine drafts.",
        default=None,
        low=0,
        high=1_024,
        since=2,
    )

    def __post_init__(self) -> None:
        unique([limit.name for limit in self.rate_limits], "rate_limits")
        unique([objective.metric for objective in self.slo_objectives], "slo_objectives")

    def rate_limits_of(self, tenant: TenantPolicy) -> tuple[RateLimit, ...]:
        """One of its tenants' limits: its own, the tenant's in the place of those so named."""
        limits = {limit.name: limit for limit in (*self.rate_limits, *tenant.rate_limits)}
        return tuple(limits.values())

    def slo_seconds(self, metric: SloMetric) -> float | None:
        """The target promised for a metric; None: nothing is."""
        for objective in self.slo_objectives:
            if objective.metric is metric:
                return objective.target_seconds
        return None


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant of the pool."""

    name: str = described("namespace/name of the Tenant; the tenant's id.", low=1, high=317)
    tier: str = described("Name of its tier; one of `tiers`.", low=1, high=63)
    weight: int = described("Share within the tier.", default=1, low=1, high=1000)
    stop: Stop = described("Whether it is served.", default=Stop.NONE)
    rate_limits: tuple[RateLimit, ...] = described(
        "In the place of its tier's of the same name, and in addition to the others.",
        default=(),
        high=16,
    )
    models: tuple[str, ...] = described(
        "The models that it may call, by the names that clients send; empty: all.",
        default=(),
        high=64,
    )

    cache_scope: str | None = described(
        "Who shares its prefix cache: the tenants with the same scope; null: all that have none.",
        default=None,
        low=1,
        high=600,
        since=2,
    )

    uid: str | None = described(
        "UID of the Tenant, under which pods with `shared_state` count together; null: its name.",
        default=None,
        low=1,
        high=317,
        since=2,
    )

    def __post_init__(self) -> None:
        unique([limit.name for limit in self.rate_limits], "rate_limits")


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """The model that the pool serves."""

    name: str = described("Name that clients send.", low=1, high=253)
    task: Task = described("What it does.", default=Task.GENERATE)
    max_model_len_tokens: int | None = described(
        "Context length; null: the engine's own, read from its /v1/models.", default=None, low=1
    )
    media_domains: tuple[str, ...] = described(
        "Hosts, in lower case, from which the engine may fetch images; empty: none, images come "
        "as data: URLs.",
        default=(),
        high=64,
        since=2,
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """Position of this document in a set of one generation."""

    index: int = described("Position, from 0.", low=0, high=15)
    count: int = described("Number of shards in the set.", low=1, high=16)


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything a sidecar needs to schedule for its pool."""

    version: int = described(
        "Version of this contract.", low=POLICY_VERSION - 1, high=POLICY_VERSION
    )
    generation: int = described(
        "Rises with every change; a lower one is refused, the same one must be the same content.",
        low=0,
    )
    pool: str = described("namespace/name of the ServingPool.", low=1, high=317)
    model: ModelPolicy = described("The model.")
    tiers: tuple[TierPolicy, ...] = described("Tiers served here.", default=(), high=64)
    tenants: tuple[TenantPolicy, ...] = described("Tenants served here.", default=())
    scheduling_mode: SchedulingMode = described(
        "How requests are ordered.", default=SchedulingMode.TIDEGATE
    )
    between_tiers: BetweenTiers = described("Above reservations.", default=BetweenTiers.STRICT)
    engine: EngineLimits = described("The engine's limits.", default_factory=EngineLimits)
    kv_pools: tuple[KvPool, ...] = described(
        "Parts of the KV cache; a tier in none of them shares what they leave.",
        default=(),
        high=64,
    )
    prefill: PrefillLimits = described("Prefills in a step.", default_factory=PrefillLimits)
    observability: Observability = described(
        "Where it tells of its requests.", default_factory=Observability, since=2
    )
    shared_state: SharedState | None = described(
        "Where the pods count together; null: each counts for itself.", default=None, since=2
    )
    engine_groups: tuple[EngineGroupPolicy, ...] = described(
        "Where each tier is at home; a tier in none of them is at home in all.",
        default=(),
        high=64,
        since=2,
    )
    fallback: EngineGroupPolicy | None = described(
        "The group that serves when no other can; null: none does.", default=None, since=2
    )
    routed: bool = described(
        "All that clients send comes by a router: sidecars with the routers' keys serve what those "
        "signed and, a moment after the change, nothing else.",
        default=False,
        since=2,
    )
    stream_keep_alive_seconds: float | None = described(
        "How often a stream that waits for its first event is sent an SSE comment, the first of "
        "which commits status 200; null: nothing is sent before the first event.",
        default=None,
        low=0.01,
        high=3_600.0,
        since=2,
    )
    shard: Shard | None = described("Unset: the document is whole.", default=None)

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        unique(names, "tiers")
        check_kv_pools(self.kv_pools)
        self._check_groups()
        if sum(tier.reserved_percent for tier in self.tiers) > 100:
            raise ContractError("tiers: reserved_percent sums to more than 100")
        unique([tenant.name for tenant in self.tenants], "tenants")
        if self.shard is None or self.shard.index == 0:
            self._check_named(set(names))

    def _check_groups(self) -> None:
        groups = self.groups
        unique([group.name for group in groups], "engine_groups and fallback")
        homes = [tier for group in self.engine_groups for tier in group.tiers]
        unique(homes, "engine_groups: tiers")

    def _check_named(self, known: set[str]) -> None:
        lists = [(f"kv_pools: {pool.name!r}", pool.tiers) for pool in self.kv_pools]
        for group in self.groups:
            lists.append((f"engine_groups: {group.name!r}", group.tiers))
            lists += [
                (f"engine_groups: {group.name!r}: kv_pools: {pool.name!r}", pool.tiers)
                for pool in group.kv_pools or ()
            ]
        for where, tiers in lists:
            if strangers := sorted(set(tiers) - known):
                raise ContractError(f"{where} lists {strangers[0]!r}, not one of tiers")
        for tenant in self.tenants:
            if tenant.tier not in known:
                raise ContractError(
                    f"tenants: {tenant.name!r} is in tier {tenant.tier!r}, not one of tiers"
                )

    @property
    def groups(self) -> tuple[EngineGroupPolicy, ...]:
        """All engine groups, the fallback last."""
        return self.engine_groups if self.fallback is None else (*self.engine_groups, self.fallback)

    def in_group(self, name: str) -> Policy:
        """The policy as it holds in the engines of a group: its own parts of the KV cache and
        limits, and no draft for tiers that are at home elsewhere."""
        group = next((group for group in self.groups if group.name == name), None)
        if group is None:
            return self
        elsewhere = {t for other in self.engine_groups if other is not group for t in other.tiers}
        return replace(
            self,
            tiers=tuple(
                replace(tier, draft_tokens=0) if tier.name in elsewhere else tier
                for tier in self.tiers
            ),
            kv_pools=self.kv_pools if group.kv_pools is None else group.kv_pools,
            engine=group.engine or self.engine,
        )


class Sharded(Protocol):
    """A document that may be one of a set."""

    @property
    def shard(self) -> Shard | None:
        """Unset: it is whole."""

    @property
    def generation(self) -> int:
        """The same in all of a set."""


S = TypeVar("S", bound=Sharded)


def complete_set(shards: Sequence[S], what: str = "shards") -> list[S]:
    """The documents in their order; :class:`ContractError` where they are mixed or one is missing.

    ``what`` they are, for the error.
    """
    ordered = sorted(shards, key=_place)
    counts = {each.shard.count if each.shard else 1 for each in ordered}
    places = [_place(each) for each in ordered]
    generations = {each.generation for each in ordered}
    if len(counts) != 1 or places != list(range(*counts)) or len(generations) != 1:
        raise ContractError(
            f"{what} {places} of {sorted(counts)} with generations {sorted(generations)} "
            "are not one complete set"
        )
    return ordered


def _place(document: Sharded) -> int:
    return document.shard.index if document.shard else 0


def merge_shards(shards: Sequence[Policy]) -> Policy:
    """The whole policy of a complete set of shards; :class:`ContractError` where it is mixed."""
    if not shards:
        raise ContractError("no policy document")
    ordered = complete_set(shards)
    tenants = tuple(tenant for policy in ordered for tenant in policy.tenants)
    return replace(ordered[0], tenants=tenants, shard=None)
