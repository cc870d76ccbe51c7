"""KV pools: who may hold how many blocks, what is lent, and what is given back.

Theory of operation: vLLM has one block pool without owners, so a quota is accounting (nominal
quota, lending and borrowing limits as in Kubernetes' Kueue). A pool uses what its requests hold,
shared blocks once, and what is cached of it; a protected cache without an upper bound starves the
rest of the node, so beyond the nominal share the cache is anybody's (source 000, incident B; seen
in simulation). Growth of a running request is never refused, hence admission counts projected
blocks (``kv_projection``).

A pool may use its nominal blocks plus what it borrows: at most its borrow limit, and at most what
the others lend together: of each, what is lendable and neither projected, cached, nor wanted by its
own first waiting request. Blocks that no pool owns are lent too. What is borrowed comes back in
two ways: a borrower gets no more while the lender wants its own, and ``preemption`` takes from
pools above nominal.

Bound: with projections that hold, admission never takes a pool beyond nominal + min(borrow limit,
what is lent); a lender waits for borrowers of equal or higher priority at most until they end.

Invariants: the sum of what pools may use never exceeds the engine's blocks; with everything
lendable, no limits and nobody else there, a pool may use all of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tidegate.scheduling.kv_projection import entry_of, peak_fits, project
from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy


class KvQuota:
    """The pools during one step; ``running`` is by tier, all else by pool.

    ``cached_blocks`` are free but keep content of the pool; ``held_blocks`` count a shared block
    once (None: nothing is shared); ``claims`` are projected blocks of who waits first.
    """

    __slots__ = (
        "_added", "_block_size", "_cached", "_claims", "_entries", "_policy", "_projected",
        "_running", "_shared", "held", "held_by_tier",
    )  # fmt: skip

    def __init__(
        self,
        policy: StepPolicy,
        running: Sequence[Sequence[PlanRequest]],
        cached_blocks: Sequence[int],
        held_blocks: Sequence[int] | None,
        claims: Sequence[int],
    ) -> None:
        self._policy = policy
        self._block_size = block_size = policy.engine.block_size
        self._running = running
        self._cached = cached_blocks
        self._claims = list(claims)
        self._projected: list[int] = []
        for tier in running:
            for one in [one for one in tier if one.projected_blocks < one.blocks]:
                project(one, block_size)
            self._projected.append(sum([one.projected_blocks for one in tier]))
        self.held_by_tier = [sum([one.blocks for one in tier]) for tier in running]
        sums = [self._sum(self.held_by_tier, pool) for pool in range(len(policy.pools))]
        self.held = sums if held_blocks is None else list(held_blocks)
        self._shared = [total - once for total, once in zip(sums, self.held, strict=True)]
        self._added: list[list[PlanRequest]] = [[] for _ in running]
        self._entries: dict[tuple[int, ...], list[int]] = {}

    def _sum(self, by_tier: Sequence[int], pool: int) -> int:
        return sum([by_tier[tier] for tier in self._policy.pools[pool].tiers])

    def is_own(self, request: PlanRequest) -> bool:
        """Whether it fits into the nominal blocks of its pool, lower tiers there that yield not
        counted: then it may take back what others borrowed."""
        pool = self._policy.tiers[request.tier].pool
        return self._fits(request, self._policy.pools[pool].nominal_blocks)

    def fits(self, request: PlanRequest) -> bool:
        """Whether it fits with what its pool may borrow; and so that requests never wait for each
        other in a ring, whether nothing runs at all, or it could never borrow enough while its pool
        holds nothing and nobody else asks."""
        pool = self._policy.tiers[request.tier].pool
        if self._fits(request, self.limit(pool)) or not any(self._projected):
            return True
        if self._sum(self._projected, pool) or request.projected_blocks <= self._most_ever(pool):
            return False
        return not any(claim for other, claim in enumerate(self._claims) if other != pool)

    def _most_ever(self, pool: int) -> int:
        """Blocks that a pool may use while nobody else is there."""
        pools = self._policy.pools
        own = pools[pool]
        lent = self._policy.engine.total_blocks - own.nominal_blocks
        lent -= sum(
            [
                terms.nominal_blocks - terms.lendable_blocks
                for other, terms in enumerate(pools)
                if other != pool
            ]
        )
        return own.nominal_blocks + min(own.borrow_limit_blocks, lent)

    def limit(self, pool: int) -> int:
        """Blocks that a pool may use now: nominal and borrowed."""
        terms = self._policy.pools[pool]
        return terms.nominal_blocks + max(min(terms.borrow_limit_blocks, self._lent_to(pool)), 0)

    def _lent_to(self, borrower: int) -> int:
        pools = self._policy.pools
        lent = self._policy.engine.total_blocks
        for pool, terms in enumerate(pools):
            lent -= terms.nominal_blocks
            if pool == borrower:
                continue
            projected = self._sum(self._projected, pool) - self._shared[pool]
            used = max(projected, self.held[pool] + self._cached[pool]) + self._claims[pool]
            unused = max(terms.nominal_blocks - used, 0)
            lent += min(terms.lendable_blocks, unused)
            lent -= max(projected - terms.nominal_blocks, 0)
        return lent

    def _fits(self, request: PlanRequest, limit: int) -> bool:
        tiers = self._counted_for(request.tier)
        shared = self._shared[self._policy.tiers[request.tier].pool] + request.shared_hit_blocks
        blocks = project(request, self._block_size)
        if sum([self._projected[tier] for tier in tiers]) - shared + blocks <= limit:
            return True
        entries = self._entries.get(tiers)
        if entries is None:
            pace = self._policy.prefill_budget_tokens
            entries = [entry_of(one, pace) for tier in tiers for one in self._running[tier]]
            entries += [entry_of(one, pace) for tier in tiers for one in self._added[tier]]
            entries.sort()
            self._entries[tiers] = entries
        own = entry_of(request, self._policy.prefill_budget_tokens)
        insort(entries, own)
        fits = peak_fits(entries, limit + shared, self._block_size)
        entries.remove(own)
        return fits

    def _counted_for(self, index: int) -> tuple[int, ...]:
        tiers = self._policy.tiers
        own = tiers[index]
        return tuple(
            [
                other
                for other in self._policy.pools[own.pool].tiers
                if not tiers[other].evictable or tiers[other].priority >= own.priority
            ]
        )

    def admit(self, request: PlanRequest, new_blocks: int) -> None:
        """It enters and takes so many blocks that nobody held."""
        pool = self._policy.tiers[request.tier].pool
        self._added[request.tier].append(request)
        self._projected[request.tier] += request.projected_blocks
        self._shared[pool] += request.shared_hit_blocks
        self.held[pool] += new_blocks
        self.held_by_tier[request.tier] += new_blocks
        self._claims[pool] = 0
        for tiers, entries in self._entries.items():
            if request.tier in tiers:
                insort(entries, entry_of(request, self._policy.prefill_budget_tokens))

    def release(self, request: PlanRequest, freed_blocks: int) -> None:
        """A running one goes; the caller has taken it out of ``running``."""
        pool = self._policy.tiers[request.tier].pool
        self._projected[request.tier] -= request.projected_blocks
        self.held[pool] -= freed_blocks
        self.held_by_tier[request.tier] -= request.blocks
        self._shared[pool] -= request.blocks - freed_blocks
        for tiers, entries in self._entries.items():
            if request.tier in tiers:
                entries.remove(entry_of(request, self._policy.prefill_budget_tokens))
