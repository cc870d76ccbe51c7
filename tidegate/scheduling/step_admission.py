"""Whether a waiting request may enter the step: a seat, free blocks, its pool's quota.

Theory of operation: three ways in. What fits into the nominal blocks of its pool is *own*: it takes
any free block that is not promised to a running prompt of an equal or higher tier, and where there
are too few, victims give theirs up (``preemption``): pools above nominal, which borrowed them, and
lower tiers of its own pool above their reservation. What is protected may *displace* besides what
lower tiers borrowed or hold of the rest, up to its borrow limit. Everything else *borrows*: it
needs room in the quota beside the growth of all who run and free blocks beside what all who run are
promised; nobody makes way for it. Who is not protected leaves a watermark free.

An evictable tier above its reservation is no better than the tiers below it in its own pool but for
its turn: it waits until some of them have ended, and they leave it room meanwhile (``kv_quota``).
Long prompts of batch work would otherwise have several times their own tokens computed twice.
For a seat, too, only a protected tier or one below its reserved seats may have a victim
(``step_seats``). Claims keep reservations from being eaten request by request: nominal blocks whose
owner waits are not lent.

Bounds: an own request of a protected tier enters in the step it is looked at, or nobody of lower
tiers holds more than is reserved for them; one of an evictable tier, when those who ran before it
have ended; the victims free the least that the rules find to be enough.
Source: design section 6 (KV quota, preemption); source 000, incident B; Kueue, as ``kv_quota``.

Invariants: seats and blocks never go below zero; no victim without an entry.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tidegate.scheduling.kv_projection import project, whole_blocks
from tidegate.scheduling.kv_quota import KvQuota
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState, Veto
from tidegate.scheduling.preemption import Excess, Holdings, Need, choose_victims, freed_blocks
from tidegate.scheduling.step_policy import StepPolicy
from tidegate.scheduling.step_seats import Seats


class Admission:
    """Seats and blocks that are left in a step. ``running`` and ``prefilling`` (those
    of them that have not computed their prompt) are by tier; victims leave ``running``."""

    __slots__ = (
        "_cached", "_heads", "_held", "_holdings", "_pending_blocks", "_plan", "_policy", "_quota",
        "_rest", "_running", "_watermark_blocks", "free_blocks", "seats", "uncommitted",
    )  # fmt: skip

    def __init__(
        self,
        policy: StepPolicy,
        state: StepState,
        plan: StepPlan,
        running: Sequence[list[PlanRequest]],
        prefilling: Sequence[Sequence[PlanRequest]],
        cached_blocks: Sequence[int],
        heads: Sequence[PlanRequest | None],
        kept_seats: int = 0,
    ) -> None:
        self._policy, self._plan, self._running = policy, plan, running
        self._cached, self._held, self._heads = cached_blocks, state.held_blocks_by_pool, heads
        self._quota: KvQuota | None = None
        self._rest = tuple(i for i, pool in enumerate(policy.pools) if pool.is_rest)
        self._holdings = Holdings(running)
        self._pending_blocks = state.pending_free_blocks
        self.free_blocks = state.free_blocks
        self.seats = Seats(policy, running, heads, kept_seats)
        size = policy.engine.block_size
        self.uncommitted = [
            sum([max(whole_blocks(one, size) - one.blocks, 0) for one in prefills])
            for prefills in prefilling
        ]
        """By tier: blocks that its running prompts need and do not have yet."""
        self._watermark_blocks = policy.watermark_blocks if state.running else 0

    @property
    def quota(self) -> KvQuota:
        """The pools; counted when first asked for, since most steps admit nobody."""
        if self._quota is None:
            size = self._policy.engine.block_size
            claims = [0 if head is None else project(head, size) for head in self._heads]
            self._quota = KvQuota(self._policy, self._running, self._cached, self._held, claims)
        return self._quota

    def enter(self, request: PlanRequest) -> Veto | None:
        """Let it in and take what it needs, with victims if it may have them; or why not."""
        policy = self._policy
        tier = policy.tiers[request.tier]
        seats_short = not self.seats.is_free_for(request.tier)
        if seats_short and not self.seats.may_take(request.tier):
            return Veto.NO_SEAT  # before the pools are counted: the usual step of a full engine
        quota = self.quota
        new = whole_blocks(request, policy.engine.block_size)
        new = max(new - request.shared_hit_blocks - request.blocks, 0)
        own = quota.is_own(request)
        displaces = not own and quota.displaces(request)
        if not (own or displaces or quota.fits(request)):
            return Veto.KV_QUOTA
        short = new - self._free_for(request.tier, own or displaces)
        if 0 < short <= self._pending_blocks:
            self._pending_blocks -= short
            return Veto.KV_PENDING
        over_quota = quota.held[tier.pool] + new - quota.limit(tier.pool) if own else 0
        blocks = max(short, over_quota, 0)
        if blocks:
            each = self._each_yields(request, new) if own or displaces else ()
            others = displaces or (own and over_quota < blocks)
            excess = self.kv_excess(request.tier, others, each + self._rest * displaces)
            if not self._take(request, Need(blocks, int(seats_short)), excess):
                return Veto.KV_FULL
        elif seats_short and not self._take(request, Need(0, 1), self.seats.excess()):
            return Veto.NO_SEAT
        self.free_blocks -= new
        self.seats.give(request.tier)
        quota.admit(request, new)
        return None

    def _each_yields(self, request: PlanRequest, new_blocks: int) -> tuple[int, ...]:
        """Its own pool, where tiers below it have to give way to it."""
        tier = self._policy.tiers[request.tier]
        held = self.quota.held_by_tier[request.tier]
        within = held + new_blocks <= tier.reserved_blocks
        return (tier.pool,) if tier.protected or within else ()

    def commit(self, request: PlanRequest, blocks: int) -> None:
        """A running prompt takes blocks that it was promised."""
        self.free_blocks -= blocks
        self.uncommitted[request.tier] -= blocks

    def make_room(self, request: PlanRequest, blocks: int) -> bool:
        """Preempt for a running request's blocks, all that it needs or nobody."""
        return self._take(request, Need(blocks, 0), self.kv_excess(request.tier))

    def _take(self, request: PlanRequest, need: Need, excess: Excess) -> bool:
        victims = choose_victims(
            self._policy, self._holdings, request.tier, need, excess, self._plan.grants
        )
        for victim in victims or ():
            self.preempt(victim, request)
        return victims is not None

    def preempt(self, victim: PlanRequest, beneficiary: PlanRequest) -> None:
        """A running request gives up its seat and its blocks."""
        quota = self.quota  # counts those that run, so before the victim goes
        self._plan.preempt.append(victim)
        self._plan.preempted_for[victim.id] = beneficiary.id
        self._running[victim.tier].remove(victim)
        whole = whole_blocks(victim, self._policy.engine.block_size)
        if victim.total_tokens - victim.computed_tokens > 1:
            self.uncommitted[victim.tier] -= max(whole - victim.blocks, 0)
        freed = freed_blocks(victim)
        self.free_blocks += freed
        self.seats.take_back(victim.tier)
        quota.release(victim, freed)
        self._holdings.remove(victim)

    def kv_excess(
        self, beneficiary: int, other_pools: bool = True, each: Collection[int] | None = None
    ) -> Excess:
        """What tiers hold too much, as one that needs blocks sees it: of the pools ``each`` (None:
        its own) every tier what is above its reservation, the other pools what is above nominal."""
        policy, quota = self._policy, self.quota
        pools, own = len(policy.pools), policy.tiers[beneficiary].pool
        each = (own,) if each is None else each
        above = [
            (held - terms.nominal_blocks) * (other_pools and pool != own)
            for pool, (held, terms) in enumerate(zip(quota.held, policy.pools, strict=True))
        ]
        above += [
            held - tier.reserved_blocks
            for held, tier in zip(quota.held_by_tier, policy.tiers, strict=True)
        ]
        return Excess(
            [pools + i if tier.pool in each else tier.pool for i, tier in enumerate(policy.tiers)],
            above,
        )

    def _free_for(self, index: int, own: bool) -> int:
        """Free blocks not promised to running prompts that one of that tier gives way to."""
        tiers = self._policy.tiers
        least = tiers[index].priority if own else -math.inf
        promised = zip(self.uncommitted, tiers, strict=True)
        free = self.free_blocks - sum(
            [blocks for blocks, tier in promised if tier.priority >= least]
        )
        return free if tiers[index].protected else free - self._watermark_blocks
