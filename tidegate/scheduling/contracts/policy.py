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

from tidegate.scheduling.contracts.codec import ContractError, described

POLICY_VERSION = 1

DEFAULT_QUEUE_REQUESTS = 5_000
DEFAULT_QUEUE_BYTES = 256 * 1024 * 1024
DEFAULT_QUEUE_WAIT_SECONDS = 120.0
DEFAULT_OUTPUT_TOKENS = 1_024


class SchedulingMode(StrEnum):
    """How a pool orders its requests; hot."""

    TIDEGATE = "Tidegate"
    FIRST_COME_FIRST_SERVED = "FirstComeFirstServed"


class BetweenTiers(StrEnum):
    """How the excess above the reservations is shared between tiers."""

    STRICT = "Strict"


class FairnessUnit(StrEnum):
    """In what the tenants of a tier are compared."""

    REQUESTS = "Requests"
    TOKENS = "Tokens"


class Stop(StrEnum):
    """Whether a tenant is served: Hold takes no new request, HoldAndDrain drops queued ones too."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class Task(StrEnum):
    """What a pool's model does."""

    GENERATE = "Generate"
    EMBED = "Embed"


DEFAULT_QUANTUM = {FairnessUnit.REQUESTS: 1, FairnessUnit.TOKENS: 2_048}


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one tenant's queue; beyond them a request is refused at once."""

    max_requests: int = described(
        "Most requests of one tenant that wait.", default=DEFAULT_QUEUE_REQUESTS, low=0
    )
    max_bytes: int = described(
        "Most bytes of request bodies of one tenant that wait.",
        default=DEFAULT_QUEUE_BYTES,
        low=0,
    )
    max_wait_seconds: float = described(
        "Longest wait in the queue; a request that waited longer ends with 504.",
        default=DEFAULT_QUEUE_WAIT_SECONDS,
        low=0.001,
        high=86_400.0,
    )


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Output tokens of one request."""

    default_tokens: int = described(
        "Output length assumed and sent where the client names none.",
        default=DEFAULT_OUTPUT_TOKENS,
        low=1,
    )
    max_tokens: int | None = described(
        "Most output tokens a client may ask for; null: as many as the model allows.",
        default=None,
        low=1,
    )


@dataclass(frozen=True, slots=True)
class Fairness:
    """Deficit round robin between the tenants of a tier."""

    unit: FairnessUnit = described("Unit of cost.", default=FairnessUnit.TOKENS)
    quantum: int | None = described(
        "Credit of one turn at weight 1, in `unit`; null: 1 request or 2048 tokens.",
        default=None,
        low=1,
    )

    @property
    def quantum_in_force(self) -> int:
        return self.quantum if self.quantum is not None else DEFAULT_QUANTUM[self.unit]


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What one class of customers is promised in this pool."""

    name: str = described("Name of the TenantTier.", low=1, high=63)
    priority: int = described(
        "Order between tiers, higher first.", default=0, low=-(2**31), high=2**31 - 1
    )
    reserved_percent: int = described(
        "Share of the engine's service guaranteed while the tier is backlogged.",
        default=0,
        low=0,
        high=100,
    )
    max_percent: int = described(
        "Most of the engine's service it takes while other tiers wait.",
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


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant of the pool."""

    name: str = described("namespace/name of the Tenant; the tenant's id.", low=1, high=317)
    tier: str = described("Name of its tier; one of `tiers`.", low=1, high=63)
    weight: int = described("Share within the tier.", default=1, low=1, high=1000)
    stop: Stop = described("Whether it is served.", default=Stop.NONE)


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """The model that the pool serves."""

    name: str = described("Name that clients send.", low=1, high=253)
    task: Task = described("What it does.", default=Task.GENERATE)
    max_model_len_tokens: int | None = described(
        "Context length; null: the engine's own, read from its /v1/models.", default=None, low=1
    )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the gate may know of the engine before it has measured it."""

    max_num_seqs: int | None = described(
        "Sequences that the engine runs at once; null: learned from its metrics.",
        default=None,
        low=1,
    )
    max_num_batched_tokens: int | None = described(
        "Tokens of one engine step; null: 2048 assumed.", default=None, low=1
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """Position of this document in a set of one generation."""

    index: int = described("Position, from 0.", low=0, high=15)
    count: int = described("Number of shards in the set.", low=1, high=16)


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything a sidecar needs to schedule for its pool."""

    version: int = described("Version of this contract.", low=POLICY_VERSION, high=POLICY_VERSION)
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
    shard: Shard | None = described("Unset: the document is whole.", default=None)

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if twice := _duplicate(names):
            raise ContractError(f"tiers: {twice!r} is listed twice")
        if sum(tier.reserved_percent for tier in self.tiers) > 100:
            raise ContractError("tiers: reserved_percent sums to more than 100")
        if twice := _duplicate([tenant.name for tenant in self.tenants]):
            raise ContractError(f"tenants: {twice!r} is listed twice")
        if self.shard is None or self.shard.index == 0:
            known = set(names)
            for tenant in self.tenants:
                if tenant.tier not in known:
                    raise ContractError(
                        f"tenants: {tenant.name!r} is in tier {tenant.tier!r}, not one of tiers"
                    )


def merge_shards(shards: Sequence[Policy]) -> Policy:
    """The whole policy of a complete set of shards; :class:`ContractError` where it is mixed."""
    ordered = sorted(shards, key=lambda policy: policy.shard.index if policy.shard else 0)
    if not ordered:
        raise ContractError("no policy document")
    first = ordered[0]
    count = first.shard.count if first.shard else 1
    places = [policy.shard.index if policy.shard else 0 for policy in ordered]
    counts = {policy.shard.count if policy.shard else 1 for policy in ordered}
    generations = {policy.generation for policy in ordered}
    if places != list(range(count)) or counts != {count} or len(generations) != 1:
        raise ContractError(
            f"shards {places} of {sorted(counts)} with generations {sorted(generations)} "
            "are not one complete set"
        )
    tenants = tuple(tenant for policy in ordered for tenant in policy.tenants)
    return replace(first, tenants=tenants, shard=None)


def _duplicate(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
