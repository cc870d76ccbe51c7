"""The smallest host that a step planner can have: counters, no engine, no I/O.

It does what a plan says and checks that it could be done: tokens, seats and blocks conserved, no
victim served, nothing granted to whom it is not due. Blocks are a single pool as vLLM's: blank ones
are used first, then cached ones, least recently freed first. A request with a ``history`` finds
the blocks that the one before it with the same history left; two of them never run at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import (
    KvPool,
    ModelPolicy,
    Policy,
    Preemption,
    PrefillLimits,
    TierPolicy,
)
from tidegate.scheduling.step_plan import (
    EngineSize,
    PlanRequest,
    StepPlan,
    StepPlanner,
    StepPolicy,
    StepState,
    StepTimeModel,
    compile_step_policy,
)

T0 = TierPolicy(name="t0", priority=300)
T1 = TierPolicy(name="t1", priority=200)
T2 = TierPolicy(name="t2", priority=100, preemption=Preemption(evictable=True))
T3 = TierPolicy(name="t3", priority=0, preemption=Preemption(evictable=True))
TIERS = (T0, T1, T2, T3)


def step_policy(
    tiers: tuple[TierPolicy, ...] = TIERS,
    *,
    kv_pools: tuple[KvPool, ...] = (),
    prefill: PrefillLimits | None = None,
    total_blocks: int = 1_000,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 2_048,
) -> StepPolicy:
    """The terms of a policy on an engine of that size."""
    policy = Policy(
        version=1,
        generation=1,
        pool="test/pool",
        model=ModelPolicy(name="model"),
        tiers=tiers,
        kv_pools=kv_pools,
        prefill=prefill or PrefillLimits(),
    )
    size = EngineSize(total_blocks, block_size, max_num_seqs, max_num_batched_tokens)
    return compile_step_policy(policy, size)


@dataclass(slots=True)
class Job:
    """A request and what became of it."""

    request: PlanRequest
    output_tokens: int
    history: str
    arrived_step: int
    admitted_step: int | None = None
    first_token_step: int | None = None
    finished_step: int | None = None
    said_tokens: int = 0
    hit_tokens: int = 0
    computed_total: int = 0
    """Prompt and output tokens computed, again and again if preempted."""
    cached_head: int = 0
    """Blocks that it holds and did not compute."""


@dataclass
class StepHost:
    """Runs steps of ``policy``; every one takes ``step_seconds``."""

    policy: StepPolicy
    step_seconds: float = 0.02
    step_time: StepTimeModel | None = None
    tells_phases: bool = False
    """As the plug-in does: the same tuple while nobody came or went, and who prefills."""
    steps: int = 0
    now: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    running: list[PlanRequest] = field(default_factory=list)
    waiting: list[PlanRequest] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    prefill_tokens: list[tuple[int, int]] = field(default_factory=list)
    """By step: prefill tokens and decodes, paused ones counted."""
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.planner = StepPlanner(self.policy)
        self._told: tuple[PlanRequest, ...] = ()
        self.blank = self.policy.engine.total_blocks
        self.cached: OrderedDict[tuple[str, int], int] = OrderedDict()
        """(history, index) to pool, least recently freed first."""

    def add(
        self,
        tier: str,
        prompt: int,
        output: int = 8,
        *,
        tenant: str = "",
        history: str = "",
        expected: int = 0,
        weight: int = 1,
    ) -> Job:
        """A request arrives."""
        number = len(self.jobs)
        request = PlanRequest(
            id=f"r{number}",
            tier=self.policy.tier_index(tier),
            tenant=tenant or tier,
            sequence=number,
            prompt_tokens=prompt,
            max_output_tokens=output,
            expected_output_tokens=expected,
            weight=weight,
        )
        job = Job(request, output, history or f"h{number}", self.steps)
        self.jobs[request.id] = job
        self.waiting.append(request)
        return job

    def state(self) -> StepState:
        """What the planner is told."""
        by_tier: list[list[PlanRequest]] = [[] for _ in self.policy.tiers]
        for request in sorted(self.waiting, key=lambda one: one.sequence):
            by_tier[request.tier].append(request)
        running, prefilling = self._running()
        cached = [0] * len(self.policy.pools)
        for pool in self.cached.values():
            cached[pool] += 1
        return StepState(
            now=self.now,
            running=running,
            prefilling=prefilling,
            waiting=by_tier,
            free_blocks=self.free_blocks,
            cached_blocks_by_pool=cached,
            step_time=self.step_time,
            lookup=self._look_up,
        )

    def _running(self) -> tuple[Sequence[PlanRequest], list[PlanRequest] | None]:
        if not self.tells_phases:
            return self.running, None
        if list(self._told) != self.running:
            self._told = tuple(self.running)
        return self._told, [one for one in self._told if one.total_tokens - one.computed_tokens > 1]

    @property
    def free_blocks(self) -> int:
        """Blank or cached."""
        return self.blank + len(self.cached)

    def held(self, *tiers: str) -> int:
        """Blocks that running requests of these tiers hold."""
        indices = {self.policy.tier_index(tier) for tier in tiers}
        return sum(one.blocks for one in self.running if one.tier in indices)

    def step(self, count: int = 1) -> StepPlan:
        """Run so many steps; the last plan."""
        for _ in range(count):
            plan = self.planner.plan(self.state())
            self.plans.append(plan)
            self._apply(plan)
            self.steps += 1
            self.now += self.step_seconds
        return self.plans[-1]

    def drain(self, at_most: int = 100_000) -> None:
        """Step until nothing is left."""
        for _ in range(at_most):
            if not self.running and not self.waiting:
                return
            self.step()
        raise AssertionError(f"{len(self.running)} run and {len(self.waiting)} wait after all")

    def _look_up(self, request: PlanRequest) -> None:
        job, size = self.jobs[request.id], self.policy.engine.block_size
        most = (request.total_tokens - 1) // size
        hits = 0
        while hits < most and (job.history, hits) in self.cached:
            hits += 1
        request.cached_hit_tokens = hits * size

    def _apply(self, plan: StepPlan) -> None:
        ids = {one.id for one in self.running}
        assert len(set(plan.preempted_for)) == len(plan.preempt), "each victim once"
        gone = {one.id for one in plan.preempt}
        assert gone <= ids
        assert not gone & (plan.grants.keys() | plan.paused | {one.id for one in plan.admit})
        for victim in plan.preempt:
            self._preempt(victim, plan)
        entering = {one.id for one in plan.admit}
        assert len(entering) == len(plan.admit)
        assert plan.grants.keys() <= entering | {one.id for one in self.running}
        decodes = [one for one in self.running if one.total_tokens - one.computed_tokens <= 1]
        self.prefill_tokens.append((sum(plan.grants.values()), len(decodes)))
        tokens = sum(plan.grants.values())
        tokens += sum(one.decode_tokens for one in decodes if one.id not in plan.paused)
        assert tokens <= self.policy.engine.max_num_batched_tokens
        for request in plan.admit:
            self._admit(request, plan)
        assert len(self.running) <= self.policy.engine.max_num_seqs
        prefills = [one for one in self.running if one not in decodes]
        for request in decodes:
            assert request.id not in plan.grants
            if request.id not in plan.paused:
                self._compute(request, 1)
        for request in prefills:
            assert request.id not in plan.paused
            if granted := plan.grants.get(request.id):
                self._compute(request, granted)
        for request in [one for one in self.running if self._is_done(one)]:
            self.running.remove(request)
            self._release(request, plan)
            self.jobs[request.id].finished_step = self.steps
        held = sum(one.blocks for one in self.running)
        assert self.blank + len(self.cached) + held == self.policy.engine.total_blocks

    def _admit(self, request: PlanRequest, plan: StepPlan) -> None:
        job, size = self.jobs[request.id], self.policy.engine.block_size
        assert request.not_before <= self.now
        self.waiting.remove(request)
        self._look_up(request)
        hits = request.cached_hit_tokens // size
        for index in range(hits):
            del self.cached[job.history, index]
        assert plan.grants[request.id] > 0
        # vLLM lets a request in only where its whole prompt fits.
        assert -(-request.total_tokens // size) - hits <= self.free_blocks
        request.blocks = hits
        request.computed_tokens = request.cached_hit_tokens
        if job.admitted_step is None:
            job.admitted_step = self.steps
            job.hit_tokens = request.cached_hit_tokens
        self.running.append(request)

    def _compute(self, request: PlanRequest, tokens: int) -> None:
        job, size = self.jobs[request.id], self.policy.engine.block_size
        assert 0 < tokens <= request.total_tokens - request.computed_tokens
        request.computed_tokens += tokens
        job.computed_total += tokens
        while request.blocks * size < request.computed_tokens:
            if self.blank:
                self.blank -= 1
            else:
                assert self.cached, "the plan promised a block that is not there"
                self.cached.popitem(last=False)
            request.blocks += 1
        if request.computed_tokens == request.total_tokens:
            request.total_tokens += 1
            job.said_tokens += 1
            if job.first_token_step is None:
                job.first_token_step = self.steps

    def _is_done(self, request: PlanRequest) -> bool:
        job = self.jobs[request.id]
        return job.said_tokens >= job.output_tokens

    def _preempt(self, victim: PlanRequest, plan: StepPlan) -> None:
        self.running.remove(victim)
        self._release(victim, plan)
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.append(victim)
        self.planner.preempted(victim, self.now, len(self.waiting))

    def _release(self, request: PlanRequest, plan: StepPlan) -> None:
        job, size = self.jobs[request.id], self.policy.engine.block_size
        pool = self.policy.tiers[request.tier].pool
        full = request.computed_tokens // size
        for index in reversed(range(request.blocks)):
            key = (job.history, index)
            if index < full and pool not in plan.unhash_pools and key not in self.cached:
                self.cached[key] = pool
            else:
                self.blank += 1
        request.blocks = 0
