"""What the requests in flight hold of the engine's KV cache, where no plug-in tells it.

Theory of operation: how many blocks the engine has is its own figure. What each request holds is
counted from its prompt and the tokens seen of it, and what it will hold is projected from its
tenant's past (``kv_projection``). Blocks that a tenant's requests are expected to find in the
prefix cache count once for those of it in flight.

Nothing is counted where nothing asks for it (no KV pool, no evictable tier), where the engine does
not tell its blocks, or in the modes that keep arrival order.

Bound: a count is O(requests in flight). It is off by what a tenant's prompts really share, and by
the tokens of a step that has not been seen. Source: design section 2 (KV without the plug-in: by
projected blocks); rounding to blocks and the null block are vLLM's.

Invariants: whoever entered is counted until it left, under the terms in force; nothing is negative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Generic, NamedTuple

from tidegate.scheduling.contracts import Policy, SchedulingMode
from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.kv_projection import project
from tidegate.scheduling.occupant import T
from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.request import Request
from tidegate.scheduling.step_policy import (
    EngineSize,
    StepPolicy,
    compile_step_policy,
    kv_pool_names,
)

MANY_SEATS = 1 << 20
"""Where the engine's seats are not known, none is short."""
NULL_BLOCKS = 1
"""vLLM counts a block that it never gives away."""


class PoolBlocks(NamedTuple):
    """One KV pool now."""

    name: str
    """Empty: of the tiers that are in none."""
    nominal: int
    held: int
    borrowed: int
    """Of those held, the ones above nominal."""


class KvHoldings(Generic[T]):
    """Of one engine."""

    def __init__(self) -> None:
        self.terms: StepPolicy | None = None
        """Of the policy on this engine; unset: nothing is counted."""
        self._policy: Policy | None = None
        self._weights: dict[str, tuple[str, int]] = {}
        """Tier and weight, by tenant."""
        self._blocks: tuple[int, int] | None = None
        """How many the engine has, and the tokens of each."""
        self._held: dict[T, PlanRequest | None] = {}
        """All in flight; None: of no tenant of the policy, or not counted."""

    def apply_policy(self, policy: Policy) -> None:
        """New terms; O(tenants)."""
        self._policy = policy
        self._weights = {row.name: (row.tier, row.weight) for row in policy.tenants}
        self._compile()

    def engine_blocks(self, blocks: int | None, block_tokens: int | None) -> None:
        """What the engine tells of its KV cache; None: nothing."""
        known = (blocks, block_tokens) if blocks and block_tokens else None
        if known != self._blocks:
            self._blocks = known
            self._compile()

    def _compile(self) -> None:
        policy, blocks = self._policy, self._blocks
        self.terms = None
        if policy is not None and blocks is not None and _asks_for_it(policy):
            engine = EngineSize(
                max(blocks[0] - NULL_BLOCKS, 1),
                blocks[1],
                policy.engine.max_num_seqs or MANY_SEATS,
                policy.engine.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS,
            )
            self.terms = compile_step_policy(policy, engine)
        for occupant in self._held:
            self.entered(occupant)

    def tier_of(self, request: Request) -> str:
        """The tier of its tenant; KeyError: that has left the policy."""
        return self._weights[request.tenant][0]

    def entered(self, occupant: T) -> None:
        """It goes to the engine."""
        terms, request = self.terms, occupant.request
        self._held[occupant] = None if terms is None else self.plan_request(terms, request)

    def left(self, occupant: T) -> None:
        """It holds nothing any more."""
        del self._held[occupant]

    def plan_request(self, terms: StepPolicy, request: Request) -> PlanRequest | None:
        """As the rules see it; None: its tenant has left the policy."""
        row = self._weights.get(request.tenant)
        if row is None:
            return None
        return PlanRequest(
            id=request.id,
            tier=terms.tier_index(row[0]),
            tenant=request.tenant,
            sequence=request.sequence or 0,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=max(request.max_output_tokens, 1),
            expected_output_tokens=request.expected_output_tokens,
            weight=row[1],
        )

    def counted(
        self, terms: StepPolicy, without: Collection[T] = ()
    ) -> Iterator[tuple[T, PlanRequest]]:
        """Who is in flight, but for those ``without``, with what it holds by now."""
        size = terms.engine.block_size
        tenants: set[str] = set()
        for occupant, one in self._held.items():
            if one is None or occupant in without:
                continue
            request = occupant.request
            one.total_tokens = request.prompt_tokens + occupant.output_tokens
            one.computed_tokens = max(one.total_tokens - max(occupant.unfilled_tokens, 1), 0)
            one.blocks = -(-one.computed_tokens // size)
            one.preemptions = occupant.preemptions
            one.shared_blocks = 0
            if one.tenant in tenants:
                one.shared_blocks = min(request.expected_cached_tokens // size, one.blocks)
            tenants.add(one.tenant)
            if not one.projected_blocks:
                project(one, size)  # counts from its dispatch on, before it has any
            yield occupant, one

    def pools(self) -> list[PoolBlocks]:
        """Every KV pool; empty ones until the engine has told its blocks."""
        terms = self.terms
        if terms is None:
            policy = self._policy
            named = kv_pool_names(policy) if policy is not None and _counts_blocks(policy) else ()
            return [PoolBlocks(name, 0, 0, 0) for name in named]
        running: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        for _, one in self.counted(terms):
            running[one.tier].append(one)
        return [
            PoolBlocks(pool.name, pool.nominal_blocks, held, max(held - pool.nominal_blocks, 0))
            for pool, held in zip(terms.pools, own_blocks_by_pool(terms, running), strict=True)
        ]

    def held_by_tier(self) -> dict[str, int]:
        """KV blocks of each tier's requests; empty where none are counted."""
        terms = self.terms
        if terms is None:
            return {}
        held = dict.fromkeys((tier.name for tier in terms.tiers), 0)
        for _, one in self.counted(terms):
            held[terms.tiers[one.tier].name] += one.blocks - one.shared_blocks
        return held


def own_blocks_by_pool(terms: StepPolicy, running: Sequence[Sequence[PlanRequest]]) -> list[int]:
    """What these requests, who are by tier, hold in each pool; a shared block is its first
    holder's."""
    held = [0] * len(terms.pools)
    for tier, those in zip(terms.tiers, running, strict=True):
        held[tier.pool] += sum([one.blocks - one.shared_blocks for one in those])
    return held


def _asks_for_it(policy: Policy) -> bool:
    return policy.scheduling_mode is SchedulingMode.TIDEGATE and _counts_blocks(policy)


def _counts_blocks(policy: Policy) -> bool:
    return bool(policy.kv_pools) or any(tier.preemption.evictable for tier in policy.tiers)
