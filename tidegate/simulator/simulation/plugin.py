"""The plug-in's place: the production step planner as a hook of the engine model.

It keeps one ``PlanRequest`` per sequence that the engine has, brings its counters up to date before
each step, asks the planner, and translates its plan into the engine's decisions. Which requests are
the engine's is told by the front at dispatch (in production: signed headers); everything else the
hook sees for itself, as the plug-in does inside vLLM.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.kv_room import held_by_tier, held_ratio, room_by_tier
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.scheduling.step_policy import EngineSize, StepPolicy, compile_step_policy
from tidegate.simulator.engine_model import (
    Engine,
    EngineConfig,
    EngineRequest,
    RequestState,
    StepDecisions,
    StepTimeModel,
)
from tidegate.simulator.engine_model.engine import NULL_BLOCKS
from tidegate.simulator.engine_model.kv_cache import Block
from tidegate.simulator.simulation.request import SimRequest


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Variations for comparison; without them the policy's terms hold as they are."""

    pause: bool = True
    step_seconds_cap: float | None = None
    """The prefill budget is what fits into a step of that length, in the place of the percent."""
    knows_step_time: bool = False
    """The planner has the engine's step-time model, so that its budgets are time."""
    drafts_yield: bool = True


class PluginHook:
    """One engine's plug-in."""

    def __init__(
        self, policy: Policy, config: EngineConfig, options: PluginOptions | None = None
    ) -> None:
        options = options or PluginOptions()
        size = EngineSize(
            total_blocks=config.num_gpu_blocks - NULL_BLOCKS,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.terms = _varied(compile_step_policy(policy, size), options)
        self.planner = StepPlanner(self.terms)
        self.vetoes: Counter[str] = Counter()
        timed = options.knows_step_time or options.step_seconds_cap is not None
        timed |= any(tier.paces_tokens for tier in self.terms.tiers)  # then it learns one
        self._step_time: StepTimeModel | None = config.step_time if timed else None
        self._weights = {tenant.name: tenant.weight for tenant in policy.tenants}
        self._sequences: dict[str, tuple[PlanRequest, EngineRequest]] = {}
        self._running: dict[str, PlanRequest] = {}
        self._waiting: list[list[PlanRequest]] = [[] for _ in self.terms.tiers]
        self._admitted: list[PlanRequest] = []
        self._unhash: frozenset[int] = frozenset()
        self._causes: dict[str, str] = {}
        self._state: StepState | None = None
        """What the last step found."""

    def arrived(
        self, request: SimRequest, engine_request: EngineRequest, sequence: int, expected: int
    ) -> None:
        """The front sends it now; ``expected``: 90th percentile of its output."""
        tier = self.terms.tier_index(request.tier)
        one = PlanRequest(
            id=request.id,
            tier=tier,
            tenant=request.tenant,
            sequence=sequence,
            prompt_tokens=request.planned.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            expected_output_tokens=expected,
            weight=self._weights.get(request.tenant, 1),
        )
        engine_request.cache_group = self.terms.tiers[tier].pool
        self._sequences[request.id] = (one, engine_request)
        self._waiting[tier].append(one)

    def cause_of(self, request_id: str) -> str | None:
        """The tier for which it was preempted last; None: for its own growth."""
        return self._causes.get(request_id)

    def keeps_cached(self, request: EngineRequest) -> bool:
        return request.cache_group not in self._unhash

    def plan(self, engine: Engine, now: float) -> StepDecisions:
        admitted = self._follow(engine, now)
        lookups = _Lookups(engine, self._sequences)
        cached = engine.kv.cached_by_group
        self._state = StepState(
            now=now,
            running=list(self._running.values()),
            waiting=self._waiting,
            free_blocks=engine.kv.free_blocks,
            cached_blocks_by_pool=[cached[pool] for pool in range(len(self.terms.pools))],
            held_blocks_by_pool=self._held_blocks(),
            step_time=self._step_time,
            lookup=lookups,
        )
        plan = self.planner.plan(self._state)
        for reason in plan.vetoed.values():
            self.vetoes[reason.value] += 1
        return self._decisions(engine, plan, admitted, now)

    def _decisions(
        self, engine: Engine, plan: StepPlan, admitted: bool, now: float
    ) -> StepDecisions:
        self._unhash = plan.unhash_pools
        self._admitted = plan.admit
        victims = []
        for one in plan.preempt:
            self._note_cause(one, plan.preempted_for.get(one.id, one.id))
            victims.append(self._sequences[one.id][1])
            del self._running[one.id]
            self._back(one, now)
        order = None
        if admitted:
            ranked = sorted(self._running.values(), key=lambda one: (one.tier, one.sequence))
            order = [self._sequences[one.id][1] for one in ranked]
        most_tokens = {name: 1 + drafts for name, drafts in plan.drafts.items()}
        most_tokens.update(plan.most_tokens(self._running.values()))
        return StepDecisions(
            preempt=victims,
            order=order,
            most_tokens=most_tokens,
            admit=[self._sequences[one.id][1] for one in plan.admit],
        )

    def _note_cause(self, victim: PlanRequest, beneficiary: str) -> None:
        self._causes.pop(victim.id, None)
        if beneficiary != victim.id and beneficiary in self._sequences:
            tier = self._sequences[beneficiary][0].tier
            self._causes[victim.id] = self.terms.tiers[tier].name

    def _follow(self, engine: Engine, now: float) -> bool:
        """Take note of what the last step did; whether anyone took a seat in it."""
        running = self._running
        seated = engine.running
        admitted = False
        for sequence in seated:
            one = running.get(sequence.request_id)
            if one is None:
                one = self._sequences[sequence.request_id][0]
                self._waiting[one.tier].remove(one)
                running[one.id] = one
                admitted = True
            one.computed_tokens = sequence.computed_tokens
            one.total_tokens = one.prompt_tokens + sequence.output_tokens
            blocks = sequence.blocks
            one.blocks = len(blocks)
            if one.shared_blocks or (blocks and blocks[0].holders > 1):
                one.shared_blocks = _shared_from(blocks, one.shared_blocks)
            one.decode_tokens = 1 + sequence.drafted_tokens
        for one in self._admitted:
            if self._sequences[one.id][1].state is RequestState.FINISHED and one.id not in running:
                self._waiting[one.tier].remove(one)
                self._forget(one)
        if len(running) > len(seated):
            self._drop_those_that_left(now)
        return admitted

    def _drop_those_that_left(self, now: float) -> None:
        for one in list(self._running.values()):
            state = self._sequences[one.id][1].state
            if state is RequestState.RUNNING:
                continue
            del self._running[one.id]
            if state is RequestState.PREEMPTED:  # for its own growth or another's
                self._back(one, now)
            else:
                self._forget(one)

    def _forget(self, one: PlanRequest) -> None:
        del self._sequences[one.id]
        self._causes.pop(one.id, None)

    def _back(self, one: PlanRequest, now: float) -> None:
        """Into waiting, at its own place."""
        one.computed_tokens = one.blocks = one.shared_blocks = 0
        one.preemptions += 1
        insort(self._waiting[one.tier], one, key=lambda each: each.sequence)
        self.planner.preempted(one, now, sum(map(len, self._waiting)))

    def _held_blocks(self) -> list[int] | None:
        """Blocks held, each once per pool; None: nothing is shared."""
        running = self._running.values()
        if not any(one.shared_blocks for one in running):
            return None
        held = [0] * len(self.terms.pools)
        once: list[set[Block]] = [set() for _ in held]
        for one in running:
            pool = self.terms.tiers[one.tier].pool
            held[pool] += one.blocks - one.shared_blocks
            once[pool].update(self._sequences[one.id][1].blocks[: one.shared_blocks])
        return [count + len(those) for count, those in zip(held, once, strict=True)]

    def kv_ratios(self) -> dict[str, float]:
        """What each tier holds of what it could hold now (its own and its room), 0..1."""
        terms, state = self.terms, self._state
        if state is None:
            return {}
        pairs = zip(held_by_tier(terms, state), room_by_tier(terms, state), strict=True)
        ratios = itertools.starmap(held_ratio, pairs)
        return {tier.name: ratio for tier, ratio in zip(terms.tiers, ratios, strict=True)}


class _Lookups:
    """The engine's prefix cache as the planner asks for it."""

    def __init__(
        self, engine: Engine, sequences: dict[str, tuple[PlanRequest, EngineRequest]]
    ) -> None:
        self._engine = engine
        self._sequences = sequences

    def __call__(self, request: PlanRequest) -> None:
        block_size = self._engine.config.block_size
        sequence = self._sequences[request.id][1]
        hits = self._engine.kv.lookup(sequence.block_hash, (request.total_tokens - 1) // block_size)
        request.cached_hit_tokens = len(hits) * block_size
        request.shared_hit_blocks = sum(1 for block in hits if block.holders)


def _shared_from(blocks: Sequence[Block], count: int) -> int:
    """How many of the first blocks others hold too: whoever holds one of a prefix holds those
    before it; ``count``: how many did when last seen."""
    count = min(count, len(blocks))
    while count < len(blocks) and blocks[count].holders > 1:
        count += 1
    while count and blocks[count - 1].holders <= 1:
        count -= 1
    return count


def _varied(terms: StepPolicy, options: PluginOptions) -> StepPolicy:
    if not options.pause:
        terms = replace(terms, max_paused_steps=0)
    return replace(
        terms, step_seconds_cap=options.step_seconds_cap, drafts_yield=options.drafts_yield
    )
