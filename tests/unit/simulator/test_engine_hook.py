"""What a plug-in can make the engine do, and that the engine's books still add up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.simulator.engine_model import (
    Engine,
    EngineConfig,
    EngineRequest,
    RequestState,
    StepDecisions,
    StepTimeModel,
)

STEP = StepTimeModel(
    overhead_seconds=0.0, floor_seconds=0.01, base_seconds=0.0, per_token_seconds=1e-5
)
BLOCK = 4
Plan = Callable[[Engine], StepDecisions | None]


class Hook:
    """Decides as told; ``forgets`` names requests whose blocks don't stay findable."""

    def __init__(self, plan: Plan, forgets: frozenset[str] = frozenset()) -> None:
        self._plan = plan
        self._forgets = forgets

    def plan(self, engine: Engine, now: float) -> StepDecisions | None:
        return self._plan(engine)

    def keeps_cached(self, request: EngineRequest) -> bool:
        return request.request_id not in self._forgets


def engine_with(hook: Hook, blocks: int = 64) -> Engine:
    return Engine(
        EngineConfig(
            step_time=STEP,
            num_gpu_blocks=blocks + 1,
            block_size=BLOCK,
            max_num_seqs=8,
            max_num_batched_tokens=32,
        ),
        hook,
    )


def request(name: str, prompt: int, output: int = 4, key: int = 0) -> EngineRequest:
    hashes = [hash((key, index)) for index in range(prompt // BLOCK)] if key else []
    return EngineRequest(name, prompt, output, prompt_block_hashes=hashes, content_key=key)


def test_a_paused_decode_keeps_its_blocks_and_makes_no_token() -> None:
    paused: dict[str, int] = {}
    engine = engine_with(Hook(lambda _: StepDecisions(most_tokens=paused)))
    one, other = request("one", 8), request("other", 8)
    engine.add(one)
    engine.add(other)
    engine.step(0.0)
    blocks = len(one.blocks)
    paused["one"] = 0
    step = engine.step(1.0)
    assert step.sampled == (other,)
    assert len(one.blocks) == blocks
    assert one.output_tokens == 1
    engine.check()
    paused.clear()
    while engine.has_work:
        engine.step(2.0)
    assert one.output_tokens == 4
    assert one.recomputed_tokens == 0


def test_clips_hold_for_running_and_for_waiting_prefills() -> None:
    engine = engine_with(Hook(lambda _: StepDecisions(most_tokens={"long": 5, "late": 3})))
    long, late, free = request("long", 30), request("late", 30), request("free", 6)
    for each in (long, late, free):
        engine.add(each)
    assert engine.step(0.0).prefill_tokens == 5 + 3 + 6
    assert (long.computed_tokens, late.computed_tokens) == (5, 3)
    engine.step(1.0)
    assert (long.computed_tokens, late.computed_tokens) == (10, 6)


def test_only_the_admitted_enter_and_in_the_order_given() -> None:
    waiting = [request(name, 4) for name in ("a", "b", "c")]
    engine = engine_with(Hook(lambda _: StepDecisions(admit=[waiting[2], waiting[0]])))
    for each in waiting:
        engine.add(each)
    step = engine.step(0.0)
    assert step.first_scheduled == (waiting[2], waiting[0])
    assert waiting[1].state is RequestState.WAITING
    assert list(engine.waiting) == [waiting[1]]


def test_a_victim_makes_room_for_one_that_waits_in_the_same_step() -> None:
    low, high = request("low", 40), request("high", 40)
    decisions = [StepDecisions()]
    engine = engine_with(Hook(lambda _: decisions[-1]), blocks=12)
    engine.add(low)
    engine.step(0.0)
    engine.add(high)
    engine.step(1.0)
    assert high.state is RequestState.WAITING  # 12 blocks hold one of them
    decisions.append(StepDecisions(preempt=[low], admit=[high]))
    step = engine.step(2.0)
    assert step.preempted == (low,)
    assert step.first_scheduled == (high,)
    assert low.state is RequestState.PREEMPTED
    engine.check()
    decisions.append(StepDecisions())
    while engine.has_work:
        engine.step(3.0)
    assert low.output_tokens == high.output_tokens == 4
    assert low.recomputed_tokens == 40


def test_the_last_in_order_is_the_first_victim_of_growth() -> None:
    first, second = request("first", 16, output=20), request("second", 16, output=20)
    engine = engine_with(
        Hook(lambda engine: StepDecisions(order=sorted(engine.running, key=_by_name_reversed))),
        blocks=9,
    )
    engine.add(first)
    engine.add(second)
    while not engine.totals.preemptions:
        engine.step(0.0)
    assert (first.preemptions, second.preemptions) == (1, 0)


def _by_name_reversed(each: EngineRequest) -> bool:
    return each.request_id == "first"


def test_an_order_of_others_is_refused() -> None:
    engine = engine_with(Hook(lambda engine: StepDecisions(order=engine.running[1:])))
    engine.add(request("a", 4))
    engine.step(0.0)
    with pytest.raises(ValueError, match="order"):
        engine.step(1.0)


@pytest.mark.parametrize("forgets", [True, False])
def test_blocks_that_are_not_kept_are_not_found_again(forgets: bool) -> None:
    hook = Hook(lambda _: None, frozenset({"one"}) if forgets else frozenset())
    engine = engine_with(hook)
    for name in ("one", "again"):
        engine.add(request(name, 16, key=7))
        while engine.has_work:
            engine.step(0.0)
        engine.check()
    # The last block of a prompt is always computed, so 3 of 4 can be hit.
    assert engine.totals.prefix_hits_tokens == (0 if forgets else 12)


def test_what_others_hold_too_stays_findable() -> None:
    engine = engine_with(Hook(lambda _: None, frozenset({"short"})))
    engine.add(request("long", 16, output=8, key=7))
    engine.step(0.0)
    engine.add(request("short", 16, output=1, key=7))
    engine.step(1.0)
    engine.add(request("third", 16, output=1, key=7))
    engine.step(2.0)
    assert engine.totals.prefix_hits_tokens == 24
    engine.check()


def test_cached_blocks_are_counted_by_the_label_of_who_filled_them() -> None:
    engine = engine_with(Hook(lambda _: None))
    for name, group in (("one", 1), ("two", 2)):
        each = request(name, 16, output=1, key=group)
        each.cache_group = group
        engine.add(each)
    while engine.has_work:
        engine.step(0.0)
    assert (engine.kv.cached_by_group[1], engine.kv.cached_by_group[2]) == (4, 4)
    engine.add(request("again", 16, output=2, key=1))
    engine.step(1.0)
    assert (engine.kv.cached_by_group[1], engine.kv.cached_by_group[2]) == (1, 4)
    engine.check()
