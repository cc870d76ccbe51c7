"""Continuous batching by steps, after vLLM's V1 scheduler.

A step spends a token budget. First the running requests, in list order: a decode takes one token,
a prompt its next chunk; one that gets no KV block evicts victims until it does. Then, only if
nobody was preempted in this step, the waiting ones, in queue order: each takes a seat if its
*whole* sequence fits into the free blocks, and the first that does not fit stops the scan (there
is no overtaking, and admission never preempts). A victim loses all its blocks and computes prompt
and output again when it comes back; blocks that are still cached by then are hit.

A request whose sequence is computed to its end yields one token. State after ``step(now)`` is the
state at the end of that step; callers show the outcome at ``StepResult.ends_at``.

Invariants: at most ``max_num_seqs`` run, at most ``max_num_batched_tokens`` are computed in a
step, blocks are conserved, a request ends exactly once with exactly its target of tokens
(preempted or not), and while there is work every step computes something, but one in
which the first running request is the victim of its own growth (vLLM's scan stops there too), and
one whose plug-in lets nobody do anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.simulator.engine_model.hook import StepDecisions, StepHook
from tidegate.simulator.engine_model.kv_cache import Block, KvCache
from tidegate.simulator.engine_model.request import EngineRequest, RequestState
from tidegate.simulator.engine_model.result import StepResult
from tidegate.simulator.engine_model.step_time import StepTimeModel
from tidegate.simulator.engine_model.waiting import SchedulingPolicy, make_queue

NULL_BLOCKS = 1
"""vLLM's block pool keeps its first block as a placeholder and never gives it out."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and policy, named like vLLM's flags. ``long_prefill_token_threshold`` 0: no cap.

    Of ``num_gpu_blocks`` all but ``NULL_BLOCKS`` can be used.
    """

    step_time: StepTimeModel
    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.num_gpu_blocks <= NULL_BLOCKS:
            raise ValueError(f"num_gpu_blocks must be at least {NULL_BLOCKS + 1}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return (self.num_gpu_blocks - NULL_BLOCKS) * self.block_size


@dataclass(slots=True)
class EngineTotals:
    """Counters since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0


@dataclass(slots=True)
class _Plan:
    """What a step has decided so far."""

    budget: int
    rows: list[tuple[EngineRequest, int]] = field(default_factory=list)
    first_scheduled: list[EngineRequest] = field(default_factory=list)
    preempted: list[EngineRequest] = field(default_factory=list)
    decisions: StepDecisions = field(default_factory=StepDecisions)


class Engine:
    """One engine replica, steered by ``hook`` where it has one. Not thread-safe; single caller."""

    def __init__(self, config: EngineConfig, hook: StepHook | None = None) -> None:
        self.config = config
        self.hook = hook
        self.kv = KvCache(
            config.num_gpu_blocks - NULL_BLOCKS, enable_prefix_caching=config.enable_prefix_caching
        )
        self.totals = EngineTotals()
        self.running: list[EngineRequest] = []
        self.waiting = make_queue(config.scheduling_policy)
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self.running) or len(self.waiting) > 0

    def add(self, request: EngineRequest) -> None:
        """Queue a new request. ValueError: it could never fit, or it was added before."""
        if request.arrival_number >= 0:
            raise ValueError(f"request {request.request_id} was added before")
        # The last token generated is never read, so it needs no slot.
        needed = request.prompt_tokens + max(request.output_tokens_target - 1, 0)
        if needed > self.config.kv_capacity_tokens:
            raise ValueError(
                f"request {request.request_id} needs {needed} KV tokens, the engine has "
                f"{self.config.kv_capacity_tokens}"
            )
        request.arrival_number = self._arrivals
        request.arrived_step = self.totals.steps
        self._arrivals += 1
        self.waiting.add(request)

    def abort(self, request: EngineRequest, now: float) -> bool:
        """End a request and free its blocks. False: it had ended already."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._release(request)
        elif request.state in (RequestState.WAITING, RequestState.PREEMPTED):
            self.waiting.remove(request)
        else:
            return False
        request.state = RequestState.ABORTED
        request.finished_at = now
        return True

    def step(self, now: float) -> StepResult:
        """Run one step that starts at ``now``. RuntimeError: there is no work."""
        if not self.has_work:
            raise RuntimeError("step without work")
        plan = _Plan(budget=self.config.max_num_batched_tokens)
        if self.hook is not None:
            self._follow(self.hook, plan, now)
        hooked = len(plan.preempted)
        self._schedule_running(plan)
        if len(plan.preempted) == hooked:
            self._admit_waiting(plan)
        return self._execute(plan, now)

    def _follow(self, hook: StepHook, plan: _Plan, now: float) -> None:
        """Take over what the plug-in decides; ValueError: not of those that run."""
        decisions = hook.plan(self, now)
        if decisions is None:
            return
        plan.decisions = decisions
        for victim in decisions.preempt:
            self.running.remove(victim)
            self._preempt(victim, plan)
        if decisions.order is not None:
            if len(decisions.order) != len(self.running):
                raise ValueError("the order of the plug-in is not one of those that run")
            self.running = list(decisions.order)

    def _chunk_tokens(self, wanted: int, budget: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        return min(wanted, budget, threshold) if threshold else min(wanted, budget)

    def _schedule_running(self, plan: _Plan) -> None:
        block_size = self.config.block_size
        running, rows = self.running, plan.rows
        most_tokens = plan.decisions.most_tokens
        index = 0
        while index < len(running) and plan.budget > 0:
            request = running[index]
            computed = request.computed_tokens
            tokens = request.prompt_tokens + request.output_tokens - computed
            if tokens > 1:
                tokens = self._chunk_tokens(tokens, plan.budget)
            if request.request_id in most_tokens:
                tokens = min(tokens, most_tokens[request.request_id])
                if tokens <= 0:
                    index += 1
                    continue
            slots = computed + tokens - len(request.blocks) * block_size
            if slots > 0:
                before = len(plan.preempted)
                if not self._grow(request, -(-slots // block_size), plan):
                    break
                if len(plan.preempted) > before:
                    # A victim that stood before this one has moved it forward in the list.
                    index = running.index(request, 0, index + 1)
            rows.append((request, tokens))
            plan.budget -= tokens
            index += 1

    def _grow(self, request: EngineRequest, new_blocks: int, plan: _Plan) -> bool:
        """Give blocks to a running request, preempting others; False: it fell itself."""
        while True:
            blocks = self.kv.allocate(new_blocks)
            if blocks is not None:
                request.blocks.extend(blocks)
                return True
            victim = self.running.pop(self.waiting.victim_index(self.running))
            self._preempt(victim, plan)
            if victim is request:
                return False

    def _preempt(self, victim: EngineRequest, plan: _Plan) -> None:
        for index, (request, tokens) in enumerate(plan.rows):
            if request is victim:
                del plan.rows[index]
                plan.budget += tokens
                break
        self._release(victim)
        victim.state = RequestState.PREEMPTED
        victim.preemptions += 1
        victim.lost_tokens = victim.computed_tokens
        self.totals.preemptions += 1
        victim.computed_tokens = 0
        plan.preempted.append(victim)
        self.waiting.restore(victim)

    def _release(self, request: EngineRequest) -> None:
        if self.hook is not None and not self.hook.keeps_cached(request):
            self.kv.forget(request.blocks)
        self.kv.release(request.blocks)

    def _admit_waiting(self, plan: _Plan) -> None:
        block_size = self.config.block_size
        admit = plan.decisions.admit
        chosen = None if admit is None else iter(admit)
        while (
            len(self.waiting) and plan.budget > 0 and len(self.running) < self.config.max_num_seqs
        ):
            request = self.waiting.peek() if chosen is None else next(chosen, None)
            if request is None or plan.decisions.most_tokens.get(request.request_id, 1) <= 0:
                break
            # At least the last token is computed, or nothing could be sampled.
            hits = self.kv.lookup(request.block_hash, (request.total_tokens - 1) // block_size)
            whole = -(-request.total_tokens // block_size)
            if not self.kv.fits(hits, whole - len(hits)):
                break
            if chosen is None:
                self.waiting.pop()
            else:
                self.waiting.remove(request)
            self._seat(request, hits, plan)

    def _seat(self, request: EngineRequest, hits: list[Block], plan: _Plan) -> None:
        block_size = self.config.block_size
        cached_tokens = len(hits) * block_size
        tokens = self._chunk_tokens(request.total_tokens - cached_tokens, plan.budget)
        tokens = min(tokens, plan.decisions.most_tokens.get(request.request_id, tokens))
        self.kv.take(hits)
        request.blocks.extend(hits)
        blocks = self.kv.allocate(-(-(cached_tokens + tokens) // block_size) - len(hits))
        assert blocks is not None, "fits() was asked for more"
        request.blocks.extend(blocks)
        request.computed_tokens = cached_tokens
        if request.state is RequestState.PREEMPTED:
            recomputed = max(request.lost_tokens - cached_tokens, 0)
            request.lost_tokens = 0
            request.recomputed_tokens += recomputed
            self.totals.recomputed_tokens += recomputed
        else:
            request.cached_tokens = cached_tokens
            self.totals.prefix_queries_tokens += request.prompt_tokens
            self.totals.prefix_hits_tokens += cached_tokens
            plan.first_scheduled.append(request)
        request.state = RequestState.RUNNING
        self.running.append(request)
        plan.rows.append((request, tokens))
        plan.budget -= tokens

    def _execute(self, plan: _Plan, now: float) -> StepResult:
        """Compute the rows: time them, advance them, sample, finish."""
        number = self.totals.steps
        self.totals.steps += 1
        running, waiting = len(self.running), len(self.waiting)
        free_blocks = self.kv.free_blocks
        decode_tokens = prefill_tokens = kv_tokens_read = 0
        pairs = 0.0
        for request, tokens in plan.rows:
            if tokens == 1 and request.computed_tokens >= request.prompt_tokens:
                decode_tokens += 1
                kv_tokens_read += request.computed_tokens + 1
            else:
                prefill_tokens += tokens
                pairs += tokens * (request.computed_tokens + tokens / 2)
        duration = self.config.step_time.seconds(
            prefill_tokens + decode_tokens, kv_tokens_read, pairs
        )
        for request in plan.first_scheduled:
            request.first_scheduled_at = now
            request.first_scheduled_step = number
        sampled, finished = self._advance(plan, now + duration)
        return StepResult(
            number=number,
            started_at=now,
            duration_seconds=duration,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            kv_tokens_read=kv_tokens_read,
            running=running,
            waiting=waiting,
            free_seats=self.config.max_num_seqs - running,
            free_blocks=free_blocks,
            first_scheduled=tuple(plan.first_scheduled),
            preempted=tuple(plan.preempted),
            sampled=tuple(sampled),
            finished=tuple(finished),
        )

    def _advance(
        self, plan: _Plan, ends_at: float
    ) -> tuple[list[EngineRequest], list[EngineRequest]]:
        block_size = self.config.block_size
        caching = self.config.enable_prefix_caching
        sampled: list[EngineRequest] = []
        finished: list[EngineRequest] = []
        for request, tokens in plan.rows:
            before = request.computed_tokens
            request.computed_tokens = after = before + tokens
            if caching and before // block_size != after // block_size:
                self._publish(request, before // block_size, after // block_size)
            if after < request.prompt_tokens + request.output_tokens:
                continue
            if request.first_token_at is None:
                request.first_token_at = ends_at
                self.totals.prompt_tokens += request.prompt_tokens
            if request.output_tokens_target:
                request.output_tokens += 1
                sampled.append(request)
            if request.output_tokens == request.output_tokens_target:
                self._finish(request, ends_at)
                finished.append(request)
        self.totals.generation_tokens += len(sampled)
        if finished:
            self.running = [r for r in self.running if r.state is RequestState.RUNNING]
        return sampled, finished

    def _publish(self, request: EngineRequest, first: int, end: int) -> None:
        """Blocks ``first`` to ``end`` (exclusive) have become full."""
        for index in range(first, end):
            self.kv.publish(request.blocks[index], request.block_hash(index))

    def _finish(self, request: EngineRequest, ends_at: float) -> None:
        self._release(request)
        request.state = RequestState.FINISHED
        request.finished_at = ends_at

    def check(self) -> None:
        """Raise AssertionError if blocks or seats do not add up. For tests; linear in blocks."""
        self.kv.check(block for request in self.running for block in request.blocks)
        assert len(self.running) <= self.config.max_num_seqs
        assert all(not request.blocks for request in self.waiting)
