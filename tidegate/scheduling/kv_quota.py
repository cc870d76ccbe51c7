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

But for reservations nobody was promised the *rest*, what named pools leave to tiers in none, nor
what is lent. There priority rules: within its borrow limit a protected tier may have what evictable
tiers below it borrowed or hold of the rest (:meth:`KvQuota.displaces`), never a pool's percent.

Inside a pool a request leaves room, unless within its tier's reservation, for the first that waits
of each tier above: who may not have others preempted gets its turn so.

Bound: with projections that hold, admission never takes a pool beyond nominal + min(borrow limit,
what is lent or displaced); a lender waits for borrowers of equal or higher priority at most until
they end.

Invariants: the sum of what pools may use never exceeds the engine's blocks; with everything
lendable, no limits and nobody else there, a pool may use all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.scheduling.kv_projection import Projections, project
from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy


class KvQuota:
    """The pools during one step.

    ``running`` and ``claims``, projected blocks of who waits first, are by tier; by pool are
    ``cached_blocks``, free but with content, and ``held_blocks``, shared ones once (None: none is).
    """

    __slots__ = ("_cached", "_claims", "_policy", "_projected", "_shared", "held", "held_by_tier")

    def __init__(
        self,
        policy: StepPolicy,
        running: Sequence[Sequence[PlanRequest]],
        cached_blocks: Sequence[int],
        held_blocks: Sequence[int] | None,
        claims: Sequence[int],
    ) -> None:
        self._policy = policy
        self._cached = cached_blocks
        self._claims = list(claims)
        self._projected = Projections(policy, running)
        self.held_by_tier = [sum([one.blocks for one in tier]) for tier in running]
        sums = [self._sum(self.held_by_tier, pool) for pool in range(len(policy.pools))]
        self.held = sums if held_blocks is None else list(held_blocks)
        self._shared = [total - once for total, once in zip(sums, self.held, strict=True)]

    def _sum(self, by_tier: Sequence[int], pool: int) -> int:
        return sum([by_tier[tier] for tier in self._policy.pools[pool].tiers])

    def is_own(self, request: PlanRequest) -> bool:
        """Whether it fits into the nominal blocks of its pool, lower tiers there that yield not
        counted: then it may take back what others borrowed."""
        pool = self._policy.tiers[request.tier].pool
        return self._fits(request, self._policy.pools[pool].nominal_blocks)

    def displaces(self, request: PlanRequest) -> bool:
        """Whether it is protected and fits with what its pool may borrow once lower tiers yield."""
        tier = self._policy.tiers[request.tier]
        terms = self._policy.pools[tier.pool]
        if not tier.protected or not terms.borrow_limit_blocks:
            return False
        lent = self._lent_to(tier.pool, tier.priority)
        borrowed = max(min(terms.borrow_limit_blocks, lent), 0)
        return self._fits(request, terms.nominal_blocks + borrowed)

    def fits(self, request: PlanRequest) -> bool:
        """Whether it fits with what its pool may borrow; and so that requests never wait for each
        other in a ring, whether nothing runs at all, or it could never borrow enough while its pool
        holds nothing and nobody else asks."""
        pool = self._policy.tiers[request.tier].pool
        projected = self._projected.blocks
        if self._fits(request, self.limit(pool)) or not any(projected):
            return True
        if self._sum(projected, pool) or request.projected_blocks <= self._most_ever(pool):
            return False
        return not any(
            claim and self._policy.tiers[tier].pool != pool
            for tier, claim in enumerate(self._claims)
        )

    def _most_ever(self, pool: int) -> int:
        """Blocks that a pool may use while nobody else is there."""
        pools = self._policy.pools
        own = pools[pool]
        lent = self._policy.engine.total_blocks - own.nominal_blocks
        lent -= sum(
            [each.nominal_blocks - each.lendable_blocks for each in pools if each is not own]
        )
        return own.nominal_blocks + min(own.borrow_limit_blocks, lent)

    def limit(self, pool: int) -> int:
        """Blocks that a pool may use now: nominal and borrowed."""
        terms = self._policy.pools[pool]
        return terms.nominal_blocks + max(min(terms.borrow_limit_blocks, self._lent_to(pool)), 0)

    def _lent_to(self, borrower: int, above: float = -math.inf) -> int:
        """What others lend a pool; negative: what they have of it. ``above``: evictable tiers below
        that priority count as gone where nothing was promised to them."""
        lent = self._policy.engine.total_blocks
        for pool, terms in enumerate(self._policy.pools):
            lent -= terms.nominal_blocks
            if pool == borrower:
                continue
            going = self._going(terms.tiers, above)
            projected = self._sum(self._projected.blocks, pool) - self._shared[pool]
            used, promised = max(projected, self.held[pool] + self._cached[pool]), terms.tiers
            if terms.is_rest:
                used -= going
                promised = tuple([tier for tier in promised if not self._goes(tier, above)])
            used += max([self._claims[tier] for tier in promised], default=0)
            lent += min(terms.lendable_blocks, max(terms.nominal_blocks - used, 0))
            lent -= max(projected - going - terms.nominal_blocks, 0)
        return lent

    def _goes(self, index: int, above: float) -> bool:
        tier = self._policy.tiers[index]
        return tier.evictable and tier.priority < above

    def _going(self, tiers: Sequence[int], above: float) -> int:
        return sum(
            [
                max(self._projected.blocks[tier] - self._policy.tiers[tier].reserved_blocks, 0)
                for tier in tiers
                if self._goes(tier, above)
            ]
        )

    def _fits(self, request: PlanRequest, limit: int) -> bool:
        pool = self._policy.tiers[request.tier].pool
        limit += self._shared[pool] + request.shared_hit_blocks - self._taken_above(request)
        return self._projected.fit(request, self._counted_for(request.tier), limit)

    def _taken_above(self, request: PlanRequest) -> int:
        """Of its pool's blocks, those that are not for it: claimed by who waits first of the tiers
        above, and of the rest those that were displaced."""
        policy, own = self._policy, self._policy.tiers[request.tier]
        terms = policy.pools[own.pool]
        taken = max(-self._lent_to(own.pool, own.priority), 0) if terms.is_rest else 0
        blocks = project(request, policy.engine.block_size)
        if self._projected.blocks[request.tier] + blocks > own.reserved_blocks:
            taken += sum(
                [
                    self._claims[tier]
                    for tier in terms.tiers
                    if policy.tiers[tier].priority > own.priority
                ]
            )
        return taken

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
        self._projected.add(request)
        self._shared[pool] += request.shared_hit_blocks
        self.held[pool] += new_blocks
        self.held_by_tier[request.tier] += new_blocks
        self._claims[request.tier] = 0

    def release(self, request: PlanRequest, freed_blocks: int) -> None:
        """A running one goes; the caller has taken it out of ``running``."""
        pool = self._policy.tiers[request.tier].pool
        self._projected.remove(request)
        self.held[pool] -= freed_blocks
        self.held_by_tier[request.tier] -= request.blocks
        self._shared[pool] -= request.blocks - freed_blocks
