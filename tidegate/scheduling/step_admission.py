"""Whether a waiting request may enter the step: a seat, free blocks, its pool's quota.

Theory of operation: two ways in. What fits into the nominal blocks of its pool is *own*: it takes
any free block that is not promised to a running prompt of an equal or higher tier, and where there
are too few, victims give theirs up (``preemption``): pools above nominal, which borrowed them, and
lower tiers of its own pool above their reservation. Everything else *borrows*: it needs room in the
quota beside the growth of all who run and free blocks beside what all who run are promised; nobody
makes way for it. Who is not protected leaves a watermark free.

For a seat, a protected tier or one below its reserved seats may have a victim too. Claims keep
reservations from being eaten request by request: a free seat that a tier below its reserved seats
waits for is not given to another, nor are nominal blocks lent whose owner waits (``kv_quota``).

Bounds: an own request enters in the step it is looked at, or nobody of lower tiers holds more than
is reserved for them; the victims free the least that the rules find to be enough.

Invariants: seats and blocks never go below zero; no victim without an entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.scheduling.kv_projection import project, whole_blocks
from tidegate.scheduling.kv_quota import KvQuota
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState, Veto
from tidegate.scheduling.preemption import Excess, Holdings, Need, choose_victims, freed_blocks
from tidegate.scheduling.step_policy import StepPolicy


class Admission:
    """Seats and blocks that are left in a step. ``running`` and ``prefilling`` (those
    of them that have not computed their prompt) are by tier; victims leave ``running``."""

    __slots__ = (
        "_cached", "_heads", "_held", "_holdings", "_pending_blocks", "_plan", "_policy", "_quota",
        "_running", "_seat_claims", "_seats_held", "_watermark_blocks", "free_blocks", "free_seats",
        "uncommitted",
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
    ) -> None:
        self._policy, self._plan, self._running = policy, plan, running
        self._cached, self._held, self._heads = cached_blocks, state.held_blocks_by_pool, heads
        self._quota: KvQuota | None = None
        self._holdings = Holdings(running)
        self._pending_blocks = state.pending_free_blocks
        self.free_blocks = state.free_blocks
        self.free_seats = policy.engine.max_num_seqs - len(state.running)
        size = policy.engine.block_size
        self.uncommitted = [
            sum([max(whole_blocks(one, size) - one.blocks, 0) for one in prefills])
            for prefills in prefilling
        ]
        """By tier: blocks that its running prompts need and do not have yet."""
        self._watermark_blocks = policy.watermark_blocks if state.running else 0
        self._seats_held = [len(those) for those in running]
        self._seat_claims = [
            head is not None and held < tier.reserved_seats
            for head, held, tier in zip(heads, self._seats_held, policy.tiers, strict=True)
        ]

    @property
    def quota(self) -> KvQuota:
        """The pools; counted when first asked for, since most steps admit nobody."""
        if self._quota is None:
            claims = [0] * len(self._policy.pools)
            for head in self._heads:
                if head is not None:
                    pool = self._policy.tiers[head.tier].pool
                    blocks = project(head, self._policy.engine.block_size)
                    claims[pool] = max(claims[pool], blocks)
            self._quota = KvQuota(self._policy, self._running, self._cached, self._held, claims)
        return self._quota

    def enter(self, request: PlanRequest) -> Veto | None:
        """Let it in and take what it needs, with victims if it may have them; or why not."""
        policy = self._policy
        tier = policy.tiers[request.tier]
        seats_short = int(self._seats_for(request.tier) <= 0)
        if seats_short and not self._may_take_seat(request.tier):
            return Veto.NO_SEAT  # before the pools are counted: the usual step of a full engine
        quota = self.quota
        new = whole_blocks(request, policy.engine.block_size)
        new = max(new - request.shared_hit_blocks - request.blocks, 0)
        own = quota.is_own(request)
        if not own and not quota.fits(request):
            return Veto.KV_QUOTA
        short = new - self._free_for(request.tier, own)
        over_quota = quota.held[tier.pool] + new - quota.limit(tier.pool) if own else 0
        if short > 0 or over_quota > 0 or seats_short:
            veto = self._make_way(request, own, short, over_quota, seats_short)
            if veto is not None:
                return veto
        self.free_blocks -= new
        self.free_seats -= 1
        self._seats_held[request.tier] += 1
        self._seat_claims[request.tier] = False
        quota.admit(request, new)
        return None

    def _make_way(
        self, request: PlanRequest, own: bool, short: int, over_quota: int, seats_short: int
    ) -> Veto | None:
        """Preempt for a waiting request, or why not."""
        if 0 < short <= self._pending_blocks:
            self._pending_blocks -= short
            return Veto.KV_PENDING
        blocks = max(short, over_quota, 0)
        if blocks and not own:
            return Veto.KV_FULL
        if self.make_room(request, Need(blocks, seats_short), other_pools=over_quota < blocks):
            return None
        return Veto.KV_FULL if blocks else Veto.NO_SEAT

    def _may_take_seat(self, index: int) -> bool:
        tier = self._policy.tiers[index]
        return tier.protected or self._seats_held[index] < tier.reserved_seats

    def commit(self, request: PlanRequest, blocks: int) -> None:
        """A running prompt takes blocks that it was promised."""
        self.free_blocks -= blocks
        self.uncommitted[request.tier] -= blocks

    def make_room(self, request: PlanRequest, need: Need, *, other_pools: bool = True) -> bool:
        """Preempt for a request, all that it needs or nobody."""
        by_blocks = need.blocks > 0
        excess = self.kv_excess(request.tier, other_pools) if by_blocks else self._seat_excess()
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
        self.free_seats += 1
        self._seats_held[victim.tier] -= 1
        quota.release(victim, freed)
        self._holdings.remove(victim)

    def kv_excess(self, beneficiary: int, other_pools: bool = True) -> Excess:
        """What tiers hold above their KV reservation, as a tier that needs blocks sees it."""
        policy, quota = self._policy, self.quota
        pools, own = len(policy.pools), policy.tiers[beneficiary].pool
        above = [
            (held - terms.nominal_blocks) * other_pools
            for held, terms in zip(quota.held, policy.pools, strict=True)
        ]
        above += [
            held - tier.reserved_blocks
            for held, tier in zip(quota.held_by_tier, policy.tiers, strict=True)
        ]
        return Excess(
            [pools + i if tier.pool == own else tier.pool for i, tier in enumerate(policy.tiers)],
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

    def _seats_for(self, index: int) -> int:
        claims = self._seat_claims
        return self.free_seats - sum(claims) + claims[index]

    def _seat_excess(self) -> Excess:
        return Excess(
            range(len(self._running)),
            [
                held - tier.reserved_seats
                for held, tier in zip(self._seats_held, self._policy.tiers, strict=True)
            ],
        )
