"""The engine model: vLLM's rules one by one, and its invariants over random histories."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.simulator.engine_model import (
    Engine,
    EngineConfig,
    EngineRequest,
    RequestState,
    SchedulingPolicy,
    StepResult,
    StepTimeModel,
)
from tidegate.simulator.engine_model.engine import NULL_BLOCKS

STEP = StepTimeModel(
    overhead_seconds=0.0, floor_seconds=0.01, base_seconds=0.0, per_token_seconds=1e-5
)


def make_engine(usable_blocks: int = 64, **sizes: object) -> Engine:
    """A small engine; ``usable_blocks`` are those of its KV blocks that it can give out."""
    config: dict[str, object] = {
        "step_time": STEP,
        "num_gpu_blocks": usable_blocks + NULL_BLOCKS,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
    }
    return Engine(EngineConfig(**{**config, **sizes}))  # type: ignore[arg-type]


def request(name: str, prompt: int, output: int, priority: int = 0, key: int = 0) -> EngineRequest:
    """A request; a ``key`` other than 0 gives its prompt hashes of blocks of 4 tokens."""
    hashes = [hash((key, -1, index)) for index in range(prompt // 4)] if key else []
    return EngineRequest(
        request_id=name,
        prompt_tokens=prompt,
        output_tokens_target=output,
        priority=priority,
        prompt_block_hashes=hashes,
        content_key=key,
    )


def run(engine: Engine, limit: int = 10_000) -> list[StepResult]:
    """Step until there is no work, on an ideal clock."""
    steps: list[StepResult] = []
    now = 0.0
    while engine.has_work:
        assert len(steps) < limit, "the engine does not come to an end"
        step = engine.step(now)
        engine.check()
        now = step.ends_at
        steps.append(step)
    return steps


def names(requests: tuple[EngineRequest, ...]) -> list[str]:
    return [r.request_id for r in requests]


class TestBatching:
    def test_a_prompt_is_prefilled_in_chunks_and_yields_its_first_token_with_the_last(self) -> None:
        engine = make_engine()
        r = request("a", prompt=80, output=3)
        engine.add(r)
        steps = run(engine)
        assert [s.prefill_tokens for s in steps] == [32, 32, 16, 0, 0]
        assert [s.decode_tokens for s in steps] == [0, 0, 0, 1, 1]
        assert [len(s.sampled) for s in steps] == [0, 0, 1, 1, 1]
        assert r.first_token_at == pytest.approx(steps[2].ends_at)
        assert r.state is RequestState.FINISHED

    def test_decodes_come_before_waiting_prompts_and_share_the_budget(self) -> None:
        engine = make_engine()
        engine.add(request("decoding", prompt=4, output=10))
        first = engine.step(0.0)
        engine.add(request("long", prompt=100, output=1))
        second = engine.step(first.ends_at)
        assert (second.decode_tokens, second.prefill_tokens) == (1, 31)

    def test_a_running_prefill_goes_before_a_waiting_one(self) -> None:
        engine = make_engine()
        engine.add(request("long", prompt=60, output=1))
        engine.step(0.0)
        engine.add(request("short", prompt=8, output=1))
        step = engine.step(1.0)
        assert names(step.first_scheduled) == ["short"]
        assert step.prefill_tokens == 28 + 4

    def test_seats_bound_the_running(self) -> None:
        engine = make_engine(max_num_seqs=2)
        for name in "abc":
            engine.add(request(name, prompt=4, output=2))
        step = engine.step(0.0)
        assert (step.running, step.waiting, step.free_seats) == (2, 1, 0)

    def test_a_long_prefill_threshold_caps_each_chunk(self) -> None:
        engine = make_engine(long_prefill_token_threshold=8)
        engine.add(request("a", prompt=30, output=1))
        engine.add(request("b", prompt=30, output=1))
        assert engine.step(0.0).prefill_tokens == 16

    def test_a_pooling_request_ends_with_its_prompt_and_generates_nothing(self) -> None:
        engine = make_engine()
        r = request("embed", prompt=40, output=0)
        engine.add(r)
        steps = run(engine)
        assert len(steps) == 2
        assert r.output_tokens == 0
        assert engine.totals.generation_tokens == 0

    def test_head_of_line_blocking_when_the_whole_prompt_does_not_fit(self) -> None:
        """vllm#31731: admission wants the whole sequence, and nobody overtakes."""
        engine = make_engine(usable_blocks=16)
        engine.add(request("holder", prompt=32, output=4))
        engine.step(0.0)
        engine.add(request("too big", prompt=40, output=1))
        engine.add(request("would fit", prompt=4, output=1))
        step = engine.step(1.0)
        assert step.first_scheduled == ()
        assert step.waiting == 2
        assert step.free_blocks > 1

    def test_wait_in_steps_is_zero_when_taken_at_the_first_opportunity(self) -> None:
        engine = make_engine()
        engine.add(request("a", prompt=4, output=5))
        engine.step(0.0)
        late = request("late", prompt=4, output=1)
        engine.add(late)
        engine.step(1.0)
        assert late.first_scheduled_step - late.arrived_step == 0


class TestPreemption:
    def full_engine(self, policy: SchedulingPolicy) -> tuple[Engine, list[EngineRequest]]:
        """Three sequences that together outgrow 12 blocks of 4."""
        engine = make_engine(usable_blocks=12, scheduling_policy=policy)
        requests = [
            request("first", 12, 20, priority=5),
            request("second", 12, 20, priority=1),
            request("third", 12, 20, priority=3),
        ]
        for r in requests:
            engine.add(r)
        return engine, requests

    def first_victim(self, engine: Engine) -> EngineRequest:
        now = 0.0
        for _ in range(100):
            step = engine.step(now)
            now = step.ends_at
            if step.preempted:
                return step.preempted[0]
        raise AssertionError("nobody was preempted")

    def test_fcfs_evicts_the_last_admitted(self) -> None:
        engine, _ = self.full_engine(SchedulingPolicy.FCFS)
        assert self.first_victim(engine).request_id == "third"

    def test_priority_evicts_the_largest_priority_value(self) -> None:
        engine, _ = self.full_engine(SchedulingPolicy.PRIORITY)
        assert self.first_victim(engine).request_id == "first"

    def test_priority_among_equals_evicts_the_latest_arrival(self) -> None:
        engine = make_engine(usable_blocks=12, scheduling_policy="priority")
        for name in ("first", "second", "third"):
            engine.add(request(name, 12, 20, priority=7))
        assert self.first_victim(engine).request_id == "third"

    @pytest.mark.parametrize("policy", list(SchedulingPolicy))
    def test_a_preempted_request_computes_again_and_gives_the_same_tokens(
        self, policy: SchedulingPolicy
    ) -> None:
        engine, requests = self.full_engine(policy)
        run(engine)
        assert [r.output_tokens for r in requests] == [20, 20, 20]
        assert engine.totals.preemptions == sum(r.preemptions for r in requests) > 0
        assert engine.totals.recomputed_tokens > 0
        assert engine.totals.generation_tokens == 60
        assert engine.totals.prompt_tokens == 36

    def test_nobody_is_admitted_in_a_step_that_preempts(self) -> None:
        engine, _ = self.full_engine(SchedulingPolicy.FCFS)
        now = 0.0
        while engine.has_work:
            step = engine.step(now)
            now = step.ends_at
            assert not (step.preempted and step.first_scheduled)

    def test_a_fcfs_victim_comes_back_before_later_arrivals(self) -> None:
        engine, requests = self.full_engine(SchedulingPolicy.FCFS)
        self.first_victim(engine)
        engine.add(request("later", 4, 1))
        assert engine.waiting.peek() is requests[2]

    def test_waiting_priority_never_preempts(self) -> None:
        """vllm#40004: a waiting request of any priority waits for a seat."""
        engine = make_engine(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
        engine.add(request("low", 4, 20, priority=9))
        engine.step(0.0)
        engine.add(request("high", 4, 1, priority=-9))
        engine.add(request("middle", 4, 1, priority=0))
        order = [name for step in run(engine) for name in names(step.finished)]
        assert order == ["low", "high", "middle"]


class TestPrefixCache:
    def test_a_second_request_with_the_same_prompt_computes_only_its_tail(self) -> None:
        engine = make_engine()
        engine.add(request("a", 18, 1, key=7))
        run(engine)
        again = request("b", 18, 1, key=7)
        engine.add(again)
        steps = run(engine)
        assert again.cached_tokens == 16
        assert steps[0].prefill_tokens == 2
        assert engine.totals.prefix_hits_tokens == 16
        assert engine.totals.prefix_queries_tokens == 36

    def test_at_least_one_token_is_computed(self) -> None:
        engine = make_engine()
        engine.add(request("a", 16, 1, key=7))
        run(engine)
        engine.add(request("b", 16, 1, key=7))
        assert run(engine)[0].prefill_tokens == 4

    def test_other_content_or_no_hashes_never_hits(self) -> None:
        engine = make_engine()
        engine.add(request("a", 16, 4, key=7))
        run(engine)
        for other in (request("salted", 16, 4, key=8), request("opaque", 16, 4)):
            engine.add(other)
            run(engine)
            assert other.cached_tokens == 0

    def test_switched_off(self) -> None:
        engine = make_engine(enable_prefix_caching=False)
        for name in "ab":
            engine.add(request(name, 16, 1, key=7))
            assert run(engine)[0].prefill_tokens == 16

    def test_the_least_recently_freed_is_lost_first_and_its_tail_before_its_head(self) -> None:
        engine = make_engine(usable_blocks=8)
        for key in (1, 2):
            engine.add(request(str(key), 16, 1, key=key))
            run(engine)
        engine.add(request("pressure", 8, 1))
        run(engine)
        old, recent = request("old", 16, 1, key=1), request("recent", 16, 1, key=2)
        assert len(engine.kv.lookup(recent.block_hash, 4)) == 4
        assert len(engine.kv.lookup(old.block_hash, 4)) == 2

    def test_a_quick_resume_hits_its_own_surviving_blocks(self) -> None:
        engine = make_engine(usable_blocks=12)
        requests = [request(name, 12, 20, key=key) for key, name in enumerate("abc", start=1)]
        for r in requests:
            engine.add(r)
        run(engine)
        lost = sum(r.preemptions for r in requests) * 12
        assert lost > 0
        assert engine.totals.recomputed_tokens < lost

    def test_running_requests_share_blocks(self) -> None:
        engine = make_engine()
        engine.add(request("a", 32, 8, key=5))
        engine.step(0.0)
        engine.add(request("b", 32, 8, key=5))
        engine.step(1.0)
        engine.check()
        # a holds 9 (its 33rd token is being computed); b shares 7 and has one of its own.
        assert engine.kv.held_blocks == 9 + 1
        run(engine)
        assert engine.kv.held_blocks == 0


class TestAbort:
    def test_frees_seat_and_blocks_in_every_state(self) -> None:
        engine = make_engine(max_num_seqs=1)
        running, waiting = request("running", 8, 5), request("waiting", 8, 5)
        engine.add(running)
        engine.add(waiting)
        engine.step(0.0)
        assert engine.abort(waiting, 1.0)
        assert engine.abort(running, 1.0)
        assert not engine.abort(running, 2.0)
        assert running.state is waiting.state is RequestState.ABORTED
        assert engine.kv.held_blocks == 0
        assert not engine.has_work

    def test_removed_from_the_middle_of_a_priority_queue(self) -> None:
        engine = make_engine(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
        requests = [request(str(p), 4, 1, priority=p) for p in (3, 1, 2)]
        for r in requests:
            engine.add(r)
        engine.abort(requests[1], 0.0)
        assert len(engine.waiting) == 2
        assert [r.request_id for r in engine.waiting] == ["2", "3"]
        assert [n for s in run(engine) for n in names(s.finished)] == ["2", "3"]


class TestRefusals:
    def test_a_request_that_can_never_fit(self) -> None:
        engine = make_engine(usable_blocks=4)
        with pytest.raises(ValueError, match="needs 17 KV tokens, the engine has 16"):
            engine.add(request("big", 10, 8))
        engine.add(request("just", 10, 7))
        run(engine)

    def test_added_twice(self) -> None:
        engine = make_engine()
        r = request("a", 4, 1)
        engine.add(r)
        with pytest.raises(ValueError, match="added before"):
            engine.add(r)

    def test_a_step_without_work(self) -> None:
        with pytest.raises(RuntimeError, match="without work"):
            make_engine().step(0.0)

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ({"num_gpu_blocks": 1}, "num_gpu_blocks must be at least 2"),
            ({"block_size": 0}, "block_size must be at least 1"),
            ({"max_num_seqs": 64}, "must be at least max_num_seqs"),
            ({"long_prefill_token_threshold": -1}, "must not be negative"),
        ],
    )
    def test_sizes(self, sizes: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_engine(**sizes)

    def test_an_empty_prompt(self) -> None:
        with pytest.raises(ValueError, match="at least one token"):
            request("a", 0, 1)


class TestStepTime:
    def test_decodes_read_their_context_and_chunks_pay_for_pairs(self) -> None:
        step_time = StepTimeModel(0.0, 0.0, 0.0, 0.0, per_kv_token_seconds=1.0)
        engine = make_engine(step_time=step_time)
        engine.add(request("a", 8, 3))
        assert [s.duration_seconds for s in run(engine)] == [0.0, 9.0, 10.0]
        step_time = StepTimeModel(0.0, 0.0, 0.0, 0.0, per_pair_seconds=1.0)
        engine = make_engine(step_time=step_time)
        engine.add(request("a", 40, 1))
        assert [s.duration_seconds for s in run(engine)] == [32 * 16.0, 8 * (32 + 4.0)]

    def test_scaled(self) -> None:
        assert STEP.scaled(0.5).seconds(10_000) == STEP.seconds(10_000) / 2
        with pytest.raises(ValueError, match="positive"):
            STEP.scaled(0)


@dataclass
class History:
    """Arrivals by step, and which of them are aborted before which step."""

    arrivals: list[tuple[int, int, int, int, int]]
    aborts: dict[int, int] = field(default_factory=dict)


HISTORIES = st.builds(
    History,
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 30),  # step
            st.integers(1, 60),  # prompt tokens
            st.integers(0, 40),  # output tokens
            st.integers(-2, 2),  # priority
            st.integers(0, 3),  # key of the content; 0: not cacheable
        ),
        min_size=1,
        max_size=25,
    ),
    aborts=st.dictionaries(st.integers(0, 24), st.integers(0, 40), max_size=6),
)


@settings(max_examples=150, deadline=None)
@given(
    history=HISTORIES,
    policy=st.sampled_from(list(SchedulingPolicy)),
    caching=st.booleans(),
    blocks=st.integers(25, 60),
    seats=st.integers(1, 10),
    threshold=st.sampled_from([0, 5]),
    watermark=st.sampled_from([0.0, 0.1, 0.4]),
    reserve=st.booleans(),
)
def test_invariants(
    history: History,
    policy: SchedulingPolicy,
    caching: bool,
    blocks: int,
    seats: int,
    threshold: int,
    watermark: float,
    reserve: bool,
) -> None:
    """Blocks and work are conserved, limits hold, every request ends once with its tokens."""
    engine = make_engine(
        usable_blocks=blocks,
        max_num_seqs=seats,
        max_num_batched_tokens=16,
        scheduling_policy=policy,
        enable_prefix_caching=caching,
        long_prefill_token_threshold=threshold,
        watermark=watermark,
        scheduler_reserve_full_isl=reserve,
    )
    requests = [
        request(str(index), prompt, output, priority, key)
        for index, (_, prompt, output, priority, key) in enumerate(history.arrivals)
    ]
    pending = sorted(range(len(requests)), key=lambda index: history.arrivals[index][0])
    finished: list[EngineRequest] = []
    tokens: dict[EngineRequest, int] = dict.fromkeys(requests, 0)
    computed = 0
    now = 0.0
    number = 0
    while pending or engine.has_work:
        assert number < 5_000
        while pending and history.arrivals[pending[0]][0] <= number:
            engine.add(requests[pending.pop(0)])
        for index, at in history.aborts.items():
            if at == number and index < len(requests) and requests[index].arrival_number >= 0:
                engine.abort(requests[index], now)
        number += 1
        if not engine.has_work:
            continue
        step = engine.step(now)
        engine.check()
        now = step.ends_at
        assert step.tokens <= 16
        assert step.running <= seats
        assert step.running + step.free_seats == seats
        assert step.tokens > 0 or step.preempted
        # Work-conserving: a waiting request is left out only for want of tokens, seats or blocks.
        if step.waiting and not step.preempted and step.free_seats and step.tokens < 16:
            head = engine.waiting.peek()
            spare = engine.config.watermark_blocks
            assert threshold or step.free_blocks - spare < -(-head.total_tokens // 4)
        computed += step.tokens
        finished.extend(step.finished)
        for r in step.sampled:
            tokens[r] += 1
    assert engine.kv.held_blocks == 0
    assert len(finished) == len(set(finished))
    for r in requests:
        assert r.state in (RequestState.FINISHED, RequestState.ABORTED)
        assert (r.state is RequestState.FINISHED) == (r in finished)
        assert tokens[r] == r.output_tokens
        if r.state is RequestState.FINISHED:
            assert r.output_tokens == r.output_tokens_target
    assert engine.totals.generation_tokens == sum(tokens.values())
    if not history.aborts and not caching:
        needed = sum(r.prompt_tokens + max(r.output_tokens_target - 1, 0) for r in requests)
        assert computed == needed + engine.totals.recomputed_tokens


def test_the_same_calls_give_the_same_results() -> None:
    def play() -> list[tuple[object, ...]]:
        engine = make_engine(usable_blocks=20)
        for index in range(12):
            engine.add(request(str(index), 5 + 3 * index, 7, priority=index % 3, key=index % 4))
        return [
            (s.number, s.started_at, s.tokens, names(s.sampled), names(s.preempted))
            for s in run(engine)
        ]

    assert play() == play()
