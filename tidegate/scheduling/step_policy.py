"""The terms of a step plan, compiled once from a policy for one engine.

Percents become blocks, seats and tokens here, rounded down, so that their sums never exceed the
engine. Tiers are ordered by falling priority (equal ones as listed); every tier has a KV pool:
those that the policy puts into none share what the pools leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.scheduling.contracts import Policy, SloMetric, TierPolicy


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Sizes of the engine that is planned for, named like vLLM's."""

    total_blocks: int
    """KV blocks that can be allocated."""
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """One KV pool, in blocks."""

    name: str
    tiers: tuple[int, ...]
    """Indices of those that share it."""
    nominal_blocks: int
    lendable_blocks: int
    borrow_limit_blocks: int

    @property
    def is_rest(self) -> bool:
        """What the policy's pools leave, for the tiers that it puts into none."""
        return not self.name


@dataclass(frozen=True, slots=True)
class TierTerms:
    """One tier."""

    name: str
    priority: int
    evictable: bool
    pool: int
    """Index of its KV pool."""
    reserved_percent: int
    """Of prefill tokens, while it wants them."""
    reserved_seats: int
    reserved_blocks: int
    """Of its pool's nominal ones, against higher tiers of the same pool."""
    inter_token_seconds: float | None
    """Objective; None: none."""
    backoff_per_queued_request_seconds: float
    backoff_max_seconds: float
    max_preemptions: int
    draft_tokens: int | None = None
    """Most of one request in a step; None: as many as the engine drafts."""

    @property
    def protected(self) -> bool:
        """It is never preempted or paused for another, and others may be for it."""
        return not self.evictable

    @property
    def paces_tokens(self) -> bool:
        """It has an objective for the time between two tokens, which a pause would break."""
        return self.inter_token_seconds is not None


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """Everything that a step plan goes by. Fields below ``engine`` are not in the API."""

    tiers: tuple[TierTerms, ...]
    pools: tuple[PoolTerms, ...]
    prefill_budget_tokens: int
    """Per step, while anything decodes."""
    chunk_tokens: int
    """Most of one prompt in one step."""
    long_prompt_tokens: int
    """More than this still to be computed is a long prompt."""
    engine: EngineSize
    watermark_blocks: int
    """Kept free of admissions, for the growth of those that run."""
    max_paused_steps: int = 3
    """Most steps in a row in which a tier stands back for protected prompts; 0: none ever does."""
    step_seconds_cap: float | None = None
    """On the predicted time of a step in which anything decodes, as an InterTokenLatency objective
    of all tiers would, but that it does not bind the highest tier's prompts while others stand
    back for them; None: those of the tiers alone."""
    drafts_yield: bool = True
    """Draft tokens give way to prompts where both do not fit the step."""
    cache_hold_seconds: float = 600.0
    """How long the cached blocks of a pool without requests count as its own."""

    def tier_index(self, name: str) -> int:
        """Index of a tier; KeyError: there is none of that name."""
        for index, tier in enumerate(self.tiers):
            if tier.name == name:
                return index
        raise KeyError(name)


def kv_pool_names(policy: Policy) -> tuple[str, ...]:
    """Of the pools that the terms of ``policy`` have, whatever the engine: the last may be empty,
    for tiers that are in none."""
    owned = {tier for pool in policy.kv_pools for tier in pool.tiers}
    rest = any(tier.name not in owned for tier in policy.tiers)
    return tuple(pool.name for pool in policy.kv_pools) + (("",) if rest else ())


WATERMARK_RATIO = 0.01
"""Share of the blocks that admission leaves free: what vLLM's first block manager used. Growth is
projected besides, so it only has to cover one step of those who outgrow their projection."""


def compile_step_policy(policy: Policy, engine: EngineSize) -> StepPolicy:
    """The terms of ``policy`` on an engine of that size."""
    ordered = sorted(policy.tiers, key=lambda tier: -tier.priority)
    index_of = {tier.name: index for index, tier in enumerate(ordered)}
    pools = tuple(
        PoolTerms(
            pool.name,
            tuple(sorted(index_of[tier] for tier in pool.tiers)),
            _part(engine.total_blocks, pool.percent),
            _part(engine.total_blocks, _unless_none(pool.lendable_percent, pool.percent)),
            _part(engine.total_blocks, _unless_none(pool.borrow_limit_percent, 100)),
        )
        for pool in policy.kv_pools
    )
    pool_of = {tier: index for index, pool in enumerate(policy.kv_pools) for tier in pool.tiers}
    if others := tuple(index for tier, index in index_of.items() if tier not in pool_of):
        rest = engine.total_blocks - sum(pool.nominal_blocks for pool in pools)
        pools += (PoolTerms("", others, rest, rest, engine.total_blocks),)
    prefill = policy.prefill
    budget = prefill.budget_tokens(engine.max_num_batched_tokens)
    return StepPolicy(
        tiers=tuple(
            _tier_terms(tier, pool_of.get(tier.name, len(pools) - 1), pools, engine)
            for tier in ordered
        ),
        pools=pools,
        prefill_budget_tokens=budget,
        chunk_tokens=prefill.chunk_tokens or engine.max_num_batched_tokens,
        long_prompt_tokens=prefill.long_prompt_tokens or budget,
        engine=engine,
        watermark_blocks=int(engine.total_blocks * WATERMARK_RATIO),
    )


def _tier_terms(
    tier: TierPolicy, pool: int, pools: tuple[PoolTerms, ...], engine: EngineSize
) -> TierTerms:
    preemption = tier.preemption
    return TierTerms(
        name=tier.name,
        priority=tier.priority,
        evictable=preemption.evictable,
        pool=pool,
        reserved_percent=tier.reserved_percent,
        reserved_seats=_part(engine.max_num_seqs, tier.reserved_percent),
        reserved_blocks=_part(pools[pool].nominal_blocks, tier.reserved_percent),
        inter_token_seconds=tier.slo_seconds(SloMetric.INTER_TOKEN_LATENCY),
        backoff_per_queued_request_seconds=preemption.backoff_per_queued_request_seconds,
        backoff_max_seconds=preemption.backoff_max_seconds,
        max_preemptions=preemption.max_per_request,
        draft_tokens=tier.draft_tokens,
    )


def _part(whole: int, percent: int) -> int:
    return whole * percent // 100


def _unless_none(percent: int | None, otherwise: int) -> int:
    return otherwise if percent is None else percent
