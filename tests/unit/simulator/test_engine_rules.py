"""Rules of vLLM 0.32's scheduler that show in corners: caps, watermark, what can be hit when."""

from __future__ import annotations

import time

import pytest

from tidegate.simulator.engine_model import (
    CALIBRATIONS,
    Engine,
    EngineConfig,
    EngineRequest,
    KvCache,
    StepTimeModel,
)
from tidegate.simulator.engine_model.engine import NULL_BLOCKS

STEP = StepTimeModel(0.0, 0.01, 0.0, 1e-5)


def make_engine(usable_blocks: int = 64, **sizes: object) -> Engine:
    config: dict[str, object] = {
        "step_time": STEP,
        "num_gpu_blocks": usable_blocks + NULL_BLOCKS,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
    }
    return Engine(EngineConfig(**{**config, **sizes}))  # type: ignore[arg-type]


def prompt(name: str, tokens: int, output: int = 4, key: int = 0) -> EngineRequest:
    hashes = [hash((key, index)) for index in range(tokens // 4)] if key else []
    return EngineRequest(name, tokens, output, prompt_block_hashes=hashes, content_key=key)


class TestLongPrefillThreshold:
    def test_one_request_alone_has_the_whole_step(self) -> None:
        engine = make_engine(long_prefill_token_threshold=8)
        engine.add(prompt("alone", 30))
        assert engine.step(0.0).prefill_tokens == 30

    def test_waiting_ones_count_as_others(self) -> None:
        engine = make_engine(long_prefill_token_threshold=8, max_num_seqs=1)
        engine.add(prompt("first", 30))
        engine.add(prompt("waits", 30))
        assert engine.step(0.0).prefill_tokens == 8

    @pytest.mark.parametrize(("requests", "chunk"), [(2, 16), (3, 10), (8, 8)])
    def test_adaptive_is_floored_at_an_even_share(self, requests: int, chunk: int) -> None:
        engine = make_engine(
            long_prefill_token_threshold=8, long_prefill_token_threshold_adaptive=True
        )
        for number in range(requests):
            engine.add(prompt(str(number), 30))
        engine.step(0.0)
        assert engine.running[0].computed_tokens == chunk


class TestWatermark:
    def test_an_admission_leaves_it_free_when_something_runs(self) -> None:
        # A tenth of 21 blocks (the null block counts) is 2; 12 + 6 + 2 == 20.
        engine = make_engine(usable_blocks=20, watermark=0.1, max_num_batched_tokens=64)
        engine.add(prompt("runs", 47, output=2))
        engine.step(0.0)
        for name, tokens in (("fits", 24), ("too large", 25)):
            trial = make_engine(usable_blocks=20, watermark=0.1, max_num_batched_tokens=64)
            trial.add(prompt("runs", 47, output=2))
            trial.step(0.0)
            trial.add(prompt(name, tokens))
            assert len(trial.step(1.0).first_scheduled) == (name == "fits")

    def test_not_on_an_empty_engine_and_not_for_growth(self) -> None:
        engine = make_engine(usable_blocks=8, watermark=0.9, max_num_batched_tokens=64)
        request = prompt("all of it", 28, output=5)
        engine.add(request)
        for step in range(5):
            engine.step(float(step))
        assert request.finished_at is not None
        assert engine.totals.preemptions == 0

    def test_its_range(self) -> None:
        for watermark in (-0.1, 1.0):
            with pytest.raises(ValueError, match="watermark"):
                make_engine(watermark=watermark)


def test_without_reserving_the_whole_sequence_the_first_chunk_is_enough() -> None:
    """vllm#37307: and two long prompts then preempt each other."""
    for reserve, admitted in ((True, 1), (False, 2)):
        engine = make_engine(
            usable_blocks=12, scheduler_reserve_full_isl=reserve, long_prefill_token_threshold=16
        )
        engine.add(prompt("first", 40))
        engine.add(prompt("second", 40))
        assert len(engine.step(0.0).first_scheduled) == admitted


class TestPrefixCache:
    def test_a_prompt_hits_what_the_same_step_computes(self) -> None:
        """Blocks are findable from the step that fills them, so a burst of one prompt is one."""
        engine = make_engine(max_num_batched_tokens=64)
        same = [prompt(str(number), 18, key=7) for number in range(3)]
        for request in same:
            engine.add(request)
        step = engine.step(0.0)
        assert [request.cached_tokens for request in same] == [0, 16, 16]
        assert step.prefill_tokens == 18 + 2 + 2
        engine.check()

    def test_of_two_blocks_alike_the_other_is_found_when_one_is_gone(self) -> None:
        """Two requests computed the same at once; vLLM keeps both findable."""
        for gone in (0, 1):
            kv = KvCache(4)
            alike = kv.allocate(2)
            assert alike is not None
            for block in alike:
                kv.publish(block, 7)
            assert kv.lookup(lambda _: 7, 1) == alike[:1]
            lost, kept = alike[gone], alike[1 - gone]
            kv.forget([lost])
            kv.check(alike)
            assert kv.lookup(lambda _: 7, 1) == [kept]
            kv.forget([kept])
            assert kv.lookup(lambda _: 7, 1) == []
            kv.release(alike)
            kv.check([])

    def test_requests_alike_that_run_side_by_side(self) -> None:
        engine = make_engine(usable_blocks=16, long_prefill_token_threshold=4)
        same = [prompt(name, 18, key=7) for name in ("first", "second")]
        for request in same:
            engine.add(request)
        while engine.has_work:
            engine.step(0.0)
            engine.check()
        # The second hit the first's chunk of that step; later chunks both computed at once.
        assert [request.cached_tokens for request in same] == [0, 4]
        again = prompt("again", 18, key=7)
        engine.add(again)
        engine.step(0.0)
        assert again.cached_tokens == 16


def test_faster_than_sixty_times_real_time_with_175_in_flight() -> None:
    """A tenth of what `scripts/bench` aims at, so that a busy machine does not fail it."""
    calibration = CALIBRATIONS["h100_70b_tp8"]
    engine = Engine(
        EngineConfig(calibration.step_time, num_gpu_blocks=calibration.kv_capacity_tokens // 16)
    )
    for number in range(175):
        engine.add(prompt(str(number), 4_000 + number, output=150, key=number + 1))
    started = time.process_time()
    now = 0.0
    while engine.has_work:
        now = engine.step(now).ends_at
    assert now / (time.process_time() - started) > 6


def test_rows_and_the_first_prompt_token_cost_their_own() -> None:
    step_time = StepTimeModel(1.0, 0.0, 0.0, 0.0, per_row_seconds=0.1, prefill_seconds=5.0)
    engine = make_engine(step_time=step_time)
    engine.add(prompt("a", 8, output=3))
    engine.add(prompt("b", 8, output=2))
    seconds = []
    while engine.has_work:
        seconds.append(engine.step(0.0).duration_seconds)
    assert seconds == pytest.approx([1 + 0.2 + 5, 1 + 0.2, 1 + 0.1])
