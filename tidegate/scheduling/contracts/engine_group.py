"""The engine groups of a pool: whose home each is, and what holds in its engines alone.

A group's engines differ from another's by their draft, so a tier is served best at home. What a
group says of KV pools and engine replaces what the policy says for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import ContractError, described
from tidegate.scheduling.contracts.limits import EngineLimits, KvPool, unique

FALLBACK_GROUP = "fallback"
"""The engine group of a pool's fallback."""


class Spill(StrEnum):
    """Whether requests may leave a home that has pods.

    Never: they wait there. WhenIdle: while it is busy and another group has idle capacity they go
    there. From a home without a pod that serves they go wherever there is one.
    """

    NEVER = "Never"
    WHEN_IDLE = "WhenIdle"


@dataclass(frozen=True, slots=True)
class EngineGroupPolicy:
    """One engine group, or the fallback."""

    name: str = described("Its name, as its sidecars know it.", low=1, high=63)
    tiers: tuple[str, ...] = described(
        "Whose home it is; of the fallback: whom it serves, while no other group can.",
        default=(),
        high=64,
    )
    spill: Spill = described("Whether its tiers may be served elsewhere.", default=Spill.WHEN_IDLE)
    kv_pools: tuple[KvPool, ...] | None = described(
        "Parts of the KV cache of its engines, over the tiers that may run there; null: as the "
        "policy's `kv_pools`.",
        default=None,
        high=64,
    )
    engine: EngineLimits | None = described(
        "Its engines' limits; null: as the policy's `engine`.", default=None
    )

    def __post_init__(self) -> None:
        unique(self.tiers, "tiers")
        check_kv_pools(self.kv_pools or ())


def check_kv_pools(pools: tuple[KvPool, ...]) -> None:
    """:class:`ContractError` where they are not parts of one cache."""
    unique([pool.name for pool in pools], "kv_pools")
    unique([tier for pool in pools for tier in pool.tiers], "kv_pools: tiers")
    if sum(pool.percent for pool in pools) > 100:
        raise ContractError("kv_pools: percent sums to more than 100")
