"""What one engine step does: who is preempted, who enters, who computes how many prompt tokens.

Theory of operation: the steps of source 000's scheduler (decide preemption, order what waits, spend
the prefill budget, allocate blocks) over the modules that know one rule each. Order is by tier
priority, then by the sequence number that was given at dispatch; tenant fairness is not computed
again. Before each step, from counters alone:
1. ``drafts``: how many draft tokens of each decode are verified.
2. ``kv_growth``: the decodes of this step get their blocks; victims where they do not fit.
3. ``prefill_budget``: how many prompt tokens fit beside the decodes.
4. ``prefill_fill``: whose these are, over running prefills and waiting requests, which enter by
   ``step_admission`` when there are tokens for them and, by ``step_seats``, a seat.
5. While a protected prompt is computed, lower evictable tiers stand back: their prompts get no
   tokens, and their decodes pause: they keep their blocks, and the step does not read them.
6. ``cache_share``: whose blocks are given up blank.

Bounds: O(running + looked at) and deterministic: the same states give the same plans. A tier stands
back at most ``max_paused_steps`` steps in a row, then takes part in at least one: under an endless
stream of protected prompts it keeps 1 / (``max_paused_steps`` + 1) of its pace.

Invariants: tokens granted and decodes fit the step; blocks and seats given fit the engine; a victim
is neither granted anything nor let in; unless nobody can, somebody computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tidegate.scheduling.cache_share import CacheUse, blank_runs_short, pools_to_unhash
from tidegate.scheduling.drafts import limit_drafts, yield_to_prefills
from tidegate.scheduling.kv_growth import growth_blocks, growth_victims
from tidegate.scheduling.phases import Phases
from tidegate.scheduling.plan_request import (
    Lookup,
    PlanRequest,
    StepPlan,
    StepState,
    StepTimeModel,
    Veto,
)
from tidegate.scheduling.prefill_budget import step_budget
from tidegate.scheduling.prefill_fill import PrefillFill
from tidegate.scheduling.prefill_line import PrefillLine
from tidegate.scheduling.prefill_shares import PrefillShares
from tidegate.scheduling.recompute import backoff_seconds, past_backoff
from tidegate.scheduling.step_admission import Admission
from tidegate.scheduling.step_policy import EngineSize, StepPolicy, compile_step_policy
from tidegate.scheduling.step_seats import SeatHeadroom

__all__ = [
    "EngineSize",
    "Lookup",
    "PlanRequest",
    "StepPlan",
    "StepPlanner",
    "StepPolicy",
    "StepState",
    "StepTimeModel",
    "Veto",
    "compile_step_policy",
]


_AMPLE_TIMES = 8
"""With so many times the blocks free that all decodes could take, nobody counts them one by one."""


class StepPlanner:
    """Plans the steps of one engine. Not thread-safe; single caller."""

    def __init__(self, policy: StepPolicy) -> None:
        self._policy = policy
        self._shares = PrefillShares(policy)
        self._back_steps = [0] * len(policy.tiers)
        """In a row, until now."""
        self._phases = Phases(len(policy.tiers))
        self._cache_use = CacheUse(policy)
        self._headroom = SeatHeadroom(policy)

    def preempted(self, request: PlanRequest, now: float, queued_requests: int) -> None:
        """The engine preempted it, by plan or by itself; so many wait in the engine."""
        tier = self._policy.tiers[request.tier]
        request.not_before = now + backoff_seconds(tier, queued_requests)

    def plan(self, state: StepState) -> StepPlan:
        """What the step does that begins now."""
        policy = self._policy
        plan = StepPlan()
        prefilling, decoding = self._phases.of(state)
        running = [[*both[0], *both[1]] for both in zip(prefilling, decoding, strict=True)]
        lines = [
            PrefillLine(those, past_backoff(waiting, state.now, plan.vetoed))
            for those, waiting in zip(prefilling, state.waiting, strict=True)
        ]
        limit_drafts(policy, plan, decoding)
        if policy.drafts_yield:
            yield_to_prefills(policy, plan, decoding, [line.wanted_tokens() for line in lines])
        pairs = enumerate(zip(running, lines, strict=True))
        self._cache_use.there([tier for tier, both in pairs if any(both)], state.now)
        keeps, cached = self._cache_use.worth_keeping(state.now), state.cached_blocks_by_pool
        in_force = [blocks * keep for blocks, keep in zip(cached, keeps, strict=True)]
        heads = [line.head for line in lines]
        kept = self._headroom.begin(len(state.running))
        admission = Admission(policy, state, plan, running, prefilling, in_force, heads, kept)
        self._grow(admission, running, decoding)
        back = self._standing_back(lines)
        if any(lines):
            first = bool(back) and bool(lines[0]) and policy.tiers[0].protected
            budget = step_budget(policy, decoding, state.step_time, back, first)
            fill = PrefillFill(policy, plan, lines, self._shares, budget, admission, state.lookup)
            if not fill.fill(back, decoding):
                back = ()
        self._pause(plan, back, decoding)
        if not plan.grants and not any(decoding) and not state.pending_free_blocks:
            self._break_deadlock(admission, running)
        self._cache_use.entered(plan.admit, state.now)
        self._headroom.planned(len(state.running), len(plan.preempt), plan.admit)
        if blank_runs_short(policy, cached, admission.free_blocks):
            plan.unhash_pools = pools_to_unhash(policy, admission.quota.held, cached, keeps)
        return plan

    def _grow(
        self,
        admission: Admission,
        running: Sequence[Sequence[PlanRequest]],
        decoding: Sequence[list[PlanRequest]],
    ) -> None:
        """Blocks for those that decode into the next one, first of all."""
        size = self._policy.engine.block_size
        most = sum(
            [len(those) + sum([one.decode_tokens for one in those]) // size for those in decoding]
        )
        if most * _AMPLE_TIMES <= admission.free_blocks:
            admission.free_blocks -= most
            return
        growing = [
            one
            for those in decoding
            for one in those
            if one.computed_tokens + one.decode_tokens > one.blocks * size
        ]
        wanted = sum([growth_blocks(one, size) for one in growing])
        if wanted > admission.free_blocks:
            for victim, beneficiary in growth_victims(
                self._policy, running, growing, admission.free_blocks, admission.kv_excess
            ):
                admission.preempt(victim, beneficiary)
                if victim in decoding[victim.tier]:
                    decoding[victim.tier].remove(victim)
                if victim in growing:
                    wanted -= growth_blocks(victim, size)
        admission.free_blocks -= wanted

    def _standing_back(self, lines: Sequence[PrefillLine]) -> Collection[int]:
        """Tiers that stand back in this step if a protected prompt above them gets tokens."""
        tiers, most = self._policy.tiers, self._policy.max_paused_steps
        pairs = zip(tiers, lines, strict=True)
        above = next((tier.priority for tier, line in pairs if line and tier.protected), -math.inf)
        return [
            index
            for index, tier in enumerate(tiers)
            if tier.evictable
            and tier.priority < above
            and not tier.paces_tokens
            and self._back_steps[index] < most
        ]

    def _pause(
        self,
        plan: StepPlan,
        standing_back: Collection[int],
        decoding: Sequence[Sequence[PlanRequest]],
    ) -> None:
        for index, those in enumerate(decoding):
            if index in standing_back:
                self._back_steps[index] += 1
                plan.paused.update([one.id for one in those])
            else:
                self._back_steps[index] = 0
        plan.paused.difference_update(plan.preempted_for)

    def _break_deadlock(
        self, admission: Admission, running: Sequence[Sequence[PlanRequest]]
    ) -> None:
        """Prompts hold all blocks and none can go on: the last gives its up to the first."""
        those = sorted(
            (one for tier in running for one in tier), key=lambda one: (one.tier, one.sequence)
        )
        if len(those) > 1:
            admission.preempt(those[-1], those[0])
