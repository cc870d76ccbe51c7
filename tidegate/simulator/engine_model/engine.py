"""Continuous batching by steps, after vLLM's V1 scheduler (0.32.0, ``v1/core/sched``).

A step spends a token budget. First the running requests, in list order: a decode takes one token
and those drafted for it, a prompt its next chunk; one that gets no KV block evicts victims until it
does. Then, only if nobody was preempted in this step, the waiting ones, in queue order: each takes
a seat if its *whole* sequence fits into the free blocks (with the watermark on top, when anything
runs), and the first that does not fit stops the scan (there is no overtaking, and admission never
preempts). A victim loses all its blocks and computes prompt and output again when it comes back;
blocks that are still cached by then are hit. A block can be hit from the moment the step that fills
it was scheduled, by a request admitted in that same step too.

A request whose sequence is computed to its end yields one token. State after ``step(now)`` is the
state at the end of that step; callers show the outcome at ``StepResult.ends_at``.

Invariants: at most ``max_num_seqs`` run, at most ``max_num_batched_tokens`` are computed in a
step, blocks are conserved, a request ends exactly once with exactly its target of tokens
(preempted or not), and while there is work every step computes something, but one in
which the first running request is the victim of its own growth (vLLM's scan stops there too), and
one whose plug-in lets nobody do anything.

Left out: asynchronous scheduling (on GPUs vLLM plans a step while the one before runs, which hides
the overhead and lets an arrival start up to one step later), the padding of a resumed row to the
draft's length, connectors that load KV from elsewhere, LoRA, encoders, several devices' bubbles.
``scripts/bench fidelity`` lays the schedules of both side by side, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.simulator.engine_model.config import NULL_BLOCKS, EngineConfig, EngineTotals
from tidegate.simulator.engine_model.hook import StepDecisions, StepHook
from tidegate.simulator.engine_model.kv_cache import Block, KvCache
from tidegate.simulator.engine_model.request import EngineRequest, RequestState
from tidegate.simulator.engine_model.result import StepResult
from tidegate.simulator.engine_model.speculation import Speculation
from tidegate.simulator.engine_model.waiting import make_queue

__all__ = ["NULL_BLOCKS", "Engine", "EngineConfig", "EngineTotals"]


@dataclass(slots=True)
class _Plan:
    """What a step has decided so far."""

    budget: int
    most_chunk_tokens: int
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
        needed = self._most_slots(request)
        if needed > self.config.kv_capacity_tokens:
            raise ValueError(
                f"request {request.request_id} needs {needed} KV tokens, the engine has "
                f"{self.config.kv_capacity_tokens}"
            )
        request.arrival_number = self._arrivals
        request.arrived_step = self.totals.steps
        self._arrivals += 1
        self.waiting.add(request)

    def _most_slots(self, request: EngineRequest) -> int:
        """KV slots that it has at its longest."""
        # The last token generated is never read, so it needs no slot.
        slots = request.prompt_tokens + max(request.output_tokens_target - 1, 0)
        speculation = self.config.speculation
        if speculation is not None:
            slots += speculation.lookahead_tokens
            drafted = speculation.drafted_for(request.traffic, request.most_drafted_tokens)
            if request.output_tokens_target > 1:
                slots += drafted
        return slots

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
        plan = _Plan(self.config.max_num_batched_tokens, self._most_chunk_tokens())
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

    def _most_chunk_tokens(self) -> int:
        """The most that one request may compute in this step; one alone has no other to starve."""
        config, requests = self.config, len(self.running) + len(self.waiting)
        threshold = config.long_prefill_token_threshold
        if not threshold or requests <= 1:
            return config.max_num_batched_tokens
        if config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // requests)
        return threshold

    def _schedule_running(self, plan: _Plan) -> None:
        block_size, lookahead = self.config.block_size, self.config.lookahead_tokens
        running, rows = self.running, plan.rows
        most_tokens = plan.decisions.most_tokens
        index = 0
        while index < len(running) and plan.budget > 0:
            request = running[index]
            computed = request.computed_tokens
            total = request.prompt_tokens + request.output_tokens
            tokens = total + request.drafted_tokens - computed
            if tokens > 1:
                tokens = min(tokens, plan.budget, plan.most_chunk_tokens)
            if request.request_id in most_tokens:
                tokens = min(tokens, most_tokens[request.request_id])
                if tokens <= 0:
                    index += 1
                    continue
            slots = computed + tokens + lookahead - len(request.blocks) * block_size
            if slots > 0:
                before = len(plan.preempted)
                if not self._grow(request, -(-slots // block_size), plan):
                    break
                if len(plan.preempted) > before:
                    # A victim that stood before this one has moved it forward in the list.
                    index = running.index(request, 0, index + 1)
            full = min(computed + tokens, total) // block_size
            if full > request.published_blocks:
                self._publish(request, full)
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
        victim.computed_tokens = victim.drafted_tokens = victim.published_blocks = 0
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
            cached = len(hits) * block_size
            tokens = min(request.total_tokens - cached, plan.budget, plan.most_chunk_tokens)
            tokens = min(tokens, plan.decisions.most_tokens.get(request.request_id, tokens))
            if not self._may_enter(request, hits, tokens):
                break
            if chosen is None:
                self.waiting.pop()
            else:
                self.waiting.remove(request)
            self._seat(request, hits, tokens, plan)

    def _may_enter(self, request: EngineRequest, hits: list[Block], tokens: int) -> bool:
        """Whether blocks are free for its first ``tokens`` and, by default, for all it has."""
        config = self.config
        slots = len(hits) * config.block_size + tokens + config.lookahead_tokens
        if config.scheduler_reserve_full_isl:
            slots = max(slots, request.total_tokens)
        spare = config.watermark_blocks if self.running else 0
        return self.kv.fits(hits, -(-slots // config.block_size) - len(hits) + spare)

    def _seat(self, request: EngineRequest, hits: list[Block], tokens: int, plan: _Plan) -> None:
        block_size = self.config.block_size
        cached_tokens = len(hits) * block_size
        self.kv.take(hits)
        request.blocks.extend(hits)
        slots = cached_tokens + tokens + self.config.lookahead_tokens
        blocks = self.kv.allocate(-(-slots // block_size) - len(hits))
        assert blocks is not None, "fits() was asked for more"
        request.blocks.extend(blocks)
        request.computed_tokens = cached_tokens
        request.published_blocks = len(hits)
        self._publish(request, (cached_tokens + tokens) // block_size)
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
        decode_rows = decode_tokens = prefill_tokens = kv_tokens_read = 0
        pairs = 0.0
        for request, tokens in plan.rows:
            computed = request.computed_tokens
            output = request.output_tokens
            if computed >= request.prompt_tokens and computed + 1 == request.prompt_tokens + output:
                decode_rows += 1
                decode_tokens += tokens
                kv_tokens_read += computed + tokens
            else:
                prefill_tokens += tokens
                pairs += tokens * (computed + tokens / 2)
        work = (prefill_tokens + decode_tokens, kv_tokens_read, pairs)
        duration = self.config.step_time.seconds(*work, len(plan.rows))
        if self.config.speculation is not None:
            duration += self.config.speculation.seconds(*work, decode_rows)
        for request in plan.first_scheduled:
            request.first_scheduled_at = now
            request.first_scheduled_step = number
        generated = self.totals.generation_tokens
        sampled, finished = self._advance(plan, now + duration)
        return StepResult(
            number=number,
            started_at=now,
            duration_seconds=duration,
            prefill_tokens=prefill_tokens,
            decode_rows=decode_rows,
            decode_tokens=decode_tokens,
            kv_tokens_read=kv_tokens_read,
            attention_pairs=pairs,
            generated_tokens=self.totals.generation_tokens - generated,
            running=running,
            waiting=waiting,
            free_seats=self.config.max_num_seqs - running,
            free_blocks=free_blocks,
            rows=plan.rows,
            first_scheduled=tuple(plan.first_scheduled),
            preempted=tuple(plan.preempted),
            sampled=tuple(sampled),
            finished=tuple(finished),
        )

    def _advance(
        self, plan: _Plan, ends_at: float
    ) -> tuple[list[EngineRequest], list[EngineRequest]]:
        sampled: list[EngineRequest] = []
        finished: list[EngineRequest] = []
        speculation = self.config.speculation
        for request, tokens in plan.rows:
            total = request.prompt_tokens + request.output_tokens
            verified = request.computed_tokens + tokens - total
            request.computed_tokens += tokens
            if verified < 0:
                continue
            if request.first_token_at is None:
                request.first_token_at = ends_at
                self.totals.prompt_tokens += request.prompt_tokens
            if request.output_tokens_target:
                if speculation is None:
                    request.output_tokens += 1
                else:
                    self._verify(request, verified, speculation)
                sampled.append(request)
            if request.output_tokens == request.output_tokens_target:
                self._finish(request, ends_at)
                finished.append(request)
        if speculation is None:
            self.totals.generation_tokens += len(sampled)
        if finished:
            self.running = [r for r in self.running if r.state is RequestState.RUNNING]
        return sampled, finished

    def _verify(self, request: EngineRequest, drafted: int, speculation: Speculation) -> None:
        """One token of the target's, and those drafted before it that it agrees with."""
        accepted = speculation.accepted(
            request.request_id, request.traffic, request.output_tokens, drafted
        )
        self.totals.drafted_tokens += drafted
        self.totals.accepted_tokens += accepted
        request.computed_tokens -= drafted - accepted
        tokens = min(1 + accepted, request.output_tokens_target - request.output_tokens)
        request.output_tokens += tokens
        self.totals.generation_tokens += tokens
        request.drafted_tokens = speculation.drafted_for(
            request.traffic, request.most_drafted_tokens
        )

    def _publish(self, request: EngineRequest, end: int) -> None:
        """Its blocks up to ``end`` (exclusive) are full once this step is computed."""
        if self.config.enable_prefix_caching:
            for index in range(request.published_blocks, end):
                self.kv.publish(
                    request.blocks[index], request.block_hash(index), request.cache_group
                )
        request.published_blocks = end

    def _finish(self, request: EngineRequest, ends_at: float) -> None:
        self._release(request)
        request.state = RequestState.FINISHED
        request.finished_at = ends_at

    def check(self) -> None:
        """Raise AssertionError if blocks or seats do not add up. For tests; linear in blocks."""
        self.kv.check(block for request in self.running for block in request.blocks)
        assert len(self.running) <= self.config.max_num_seqs
        assert all(not request.blocks for request in self.waiting)
