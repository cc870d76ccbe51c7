"""A pool's `kvPools` and `prefill` as the policy has them. Pure.

Tiers that the pool does not serve (their TenantTier is missing) take no part; what was to be theirs
alone falls to the tiers that are in none of ``kvPools``.
"""

from __future__ import annotations

from collections.abc import Collection

from tidegate.scheduling.contracts import KvPool, PrefillLimits
from tidegate_operator.api.kv import DEFAULT_BUDGET_PERCENT
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.findings import Fault
from tidegate_operator.tier_policy import not_served


def kv_pools(pool: ServingPool, served: Collection[str]) -> tuple[tuple[KvPool, ...], list[Fault]]:
    """The parts of the KV cache over the tiers that are served, by name."""
    made: list[KvPool] = []
    faults: list[Fault] = []
    for part in sorted(pool.spec.kv_pools or (), key=lambda part: part.name):
        tiers = tuple(sorted(name for name in part.tiers if name in served))
        faults += not_served(pool, f"spec.kvPools[{part.name}]", part.tiers, served)
        if tiers:
            lendable, borrowed = part.lendable_percent, part.borrow_limit_percent
            made.append(KvPool(part.name, tiers, part.percent, lendable, borrowed))
    return tuple(made), faults


def prefill_limits(pool: ServingPool) -> PrefillLimits:
    """The pool's budget, its default resolved."""
    spec = pool.spec.prefill
    if spec is None:
        return PrefillLimits()
    return PrefillLimits(
        spec.budget_percent or DEFAULT_BUDGET_PERCENT,
        spec.tokens_per_step,
        spec.chunk_tokens,
        spec.long_prompt_tokens,
    )
