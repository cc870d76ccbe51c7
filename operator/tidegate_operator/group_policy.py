"""A pool's engine groups and fallback as the policy has them. Pure.

Every tier that is served has a home: one that no group names is at home in the first, as where
there is no router the pool's Service leads there. A tier may run in its home and, where that lets
requests spill, in every group; in the fallback if that is for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.scheduling.contracts import (
    FALLBACK_GROUP,
    EngineGroupPolicy,
    EngineLimits,
    KvPool,
    Spill,
)
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import engine_limits
from tidegate_operator.fallback import fallback_pool
from tidegate_operator.findings import Fault
from tidegate_operator.kv_parts import parts_in_group
from tidegate_operator.tier_policy import not_served


def group_policies(
    pool: ServingPool, served: Sequence[str], parts: Sequence[KvPool]
) -> tuple[EngineGroupPolicy, ...]:
    """The engine groups, in the order of the spec; ``served`` are the names of all tiers."""
    groups = pool.spec.engine_groups or ()
    homes = {
        group.name: tuple(tier for tier in served if tier in (group.tiers or ()))
        for group in groups
    }
    homeless = set(served).difference(*homes.values())
    if groups:
        first = groups[0].name
        homes[first] = tuple(t for t in served if t in homeless or t in homes[first])
    spills = {group.name: group.spill or Spill.WHEN_IDLE for group in groups}
    anywhere = {
        tier for name, tiers in homes.items() if spills[name] is Spill.WHEN_IDLE for tier in tiers
    }
    return tuple(
        EngineGroupPolicy(
            name, tiers, spills[name], parts_in_group(parts, served, anywhere.union(tiers))
        )
        for name, tiers in homes.items()
    )


def fallback_policy(
    pool: ServingPool, served: Sequence[str], parts: Sequence[KvPool], engine: EngineLimits
) -> EngineGroupPolicy | None:
    """The fallback; ``engine`` are the limits of all other engines."""
    spec = pool.spec.fallback
    if spec is None:
        return None
    tiers = tuple(tier for tier in served if tier in spec.tiers)
    own = engine_limits(fallback_pool(pool).spec.engine.args or (), pool.spec.model.task)
    return EngineGroupPolicy(
        FALLBACK_GROUP,
        tiers,
        kv_pools=parts_in_group(parts, served, tiers),
        engine=None if own == engine else own,
    )


def unknown_tiers(pool: ServingPool, served: Collection[str]) -> list[Fault]:
    """Tiers that groups or fallback name and the pool does not serve."""
    named = [
        (f"spec.engineGroups[{group.name}]", group.tiers or ())
        for group in pool.spec.engine_groups or ()
    ]
    if pool.spec.fallback is not None:
        named.append(("spec.fallback", pool.spec.fallback.tiers))
    return [fault for field, tiers in named for fault in not_served(pool, field, tiers, served)]
