"""Speculation in the engine model: how much is accepted, what it computes, what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.simulator.engine_model import (
    DRAFTS,
    Engine,
    EngineConfig,
    EngineRequest,
    RequestState,
    SchedulingPolicy,
    Speculation,
    StepResult,
    StepTimeModel,
)
from tidegate.simulator.engine_model.engine import NULL_BLOCKS
from tidegate.simulator.engine_model.speculation import chance_of

FREE = StepTimeModel(0.0, 0.0, 0.0, 0.0)
STEP = StepTimeModel(0.0, 0.01, 0.0, 1e-5)


def draft(tokens: int = 3, percent: float = 60.0, lookahead: int = 0) -> Speculation:
    return Speculation(tokens, {"": percent, "code": 10.0}, FREE, lookahead)


def make_engine(speculation: Speculation | None, usable_blocks: int = 64, **sizes: int) -> Engine:
    config: dict[str, int] = {"block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return Engine(
        EngineConfig(
            step_time=STEP,
            num_gpu_blocks=usable_blocks + NULL_BLOCKS,
            speculation=speculation,
            **{**config, **sizes},
        )
    )


def run(engine: Engine) -> list[StepResult]:
    steps: list[StepResult] = []
    now = 0.0
    while engine.has_work:
        steps.append(engine.step(now))
        engine.check()
        now = steps[-1].ends_at
        assert len(steps) < 5_000, "the engine does not come to an end"
    return steps


@pytest.mark.parametrize(("percent", "tokens"), [(41.0, 3), (74.0, 3), (74.0, 5), (78.0, 1)])
def test_the_acceptance_given_is_the_acceptance_counted(percent: float, tokens: int) -> None:
    """Accepted over drafted tokens, as vLLM's metrics count them."""
    engine = make_engine(draft(tokens, percent), usable_blocks=2_000)
    for number in range(8):
        engine.add(EngineRequest(f"request {number}", 10, 900))
    run(engine)
    totals = engine.totals
    assert 100 * totals.accepted_tokens / totals.drafted_tokens == pytest.approx(percent, abs=2)
    assert totals.generation_tokens == 8 * 900


def test_the_chance_of_a_position() -> None:
    chance = chance_of(41.0, 3)
    assert (chance + chance**2 + chance**3) / 3 == pytest.approx(0.41)
    assert chance_of(100.0, 4) == pytest.approx(1.0)
    assert chance_of(0.0, 4) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="percentage"):
        chance_of(101.0, 4)


def test_luck_belongs_to_the_request_and_not_to_the_schedule() -> None:
    """A policy that runs a request later finds the same tokens accepted at the same places."""
    alone = make_engine(draft())
    alone.add(EngineRequest("a", 10, 50))
    steps_alone = len(run(alone))
    crowded = make_engine(draft(), max_num_seqs=1)
    crowded.add(EngineRequest("other", 30, 20))
    request = EngineRequest("a", 10, 50)
    crowded.add(request)
    run(crowded)
    assert crowded.totals.steps - request.first_scheduled_step == steps_alone


def test_a_decode_row_computes_its_drafts_and_a_prompt_none() -> None:
    engine = make_engine(draft(3, 100.0))
    engine.add(EngineRequest("a", 10, 9))
    steps = run(engine)
    assert [s.tokens for s in steps] == [10, 4, 4]
    assert [(s.decode_rows, s.decode_tokens) for s in steps] == [(0, 0), (1, 4), (1, 4)]
    assert [s.generated_tokens for s in steps] == [1, 4, 4]
    assert [s.kv_tokens_read for s in steps] == [0, 14, 18]


def test_nothing_accepted_yields_one_token_a_step_as_without() -> None:
    engine = make_engine(draft(3, 0.0))
    engine.add(EngineRequest("a", 10, 5))
    steps = run(engine)
    assert [s.generated_tokens for s in steps] == [1] * 5
    assert [s.tokens for s in steps] == [10, 4, 4, 4, 4]


def test_a_row_may_be_drafted_less_for() -> None:
    engine = make_engine(draft(3, 100.0))
    engine.add(EngineRequest("none", 10, 5, most_drafted_tokens=0))
    engine.add(EngineRequest("one", 10, 5, most_drafted_tokens=1))
    steps = run(engine)
    assert steps[1].tokens == 1 + 2
    assert steps[1].generated_tokens == 1 + 2


def test_kinds_of_traffic_have_their_own_acceptance() -> None:
    engine = make_engine(draft(3, 90.0), usable_blocks=400)
    fast, slow = EngineRequest("chat", 10, 400), EngineRequest("code", 10, 400, traffic="code")
    engine.add(fast)
    engine.add(slow)
    run(engine)
    assert fast.finished_at is not None
    assert slow.finished_at is not None
    assert fast.finished_at < slow.finished_at / 2
    with pytest.raises(ValueError, match="acceptance of 'unheard of' traffic"):
        engine.add(EngineRequest("x", 10, 5, traffic="unheard of"))


def test_the_budget_cuts_drafts() -> None:
    """Drafted tokens count against the step's budget; what does not fit is not verified."""
    engine = make_engine(draft(3, 100.0), max_num_batched_tokens=8, max_num_seqs=4)
    for name in "abc":
        engine.add(EngineRequest(name, 2, 20))
    engine.step(0.0)
    second = engine.step(1.0)
    assert second.tokens == 8
    assert second.generated_tokens == 8


def test_passes_of_the_draft_are_paid_for() -> None:
    pass_time = StepTimeModel(0.0, 0.001, 0.0, 0.0)
    speculation = Speculation(3, {"": 100.0}, pass_time)
    engine = make_engine(speculation)
    engine.add(EngineRequest("a", 10, 5))
    prefill, decode = run(engine)
    assert prefill.duration_seconds == pytest.approx(0.01 + 0.001)
    assert decode.duration_seconds == pytest.approx(0.01 + 3 * 0.001)


def test_room_for_the_draft_is_asked_for_when_a_request_comes() -> None:
    speculation = draft(3, 50.0, lookahead=3)
    engine = make_engine(speculation, usable_blocks=8)
    with pytest.raises(ValueError, match="needs 33 KV tokens, the engine has 32"):
        engine.add(EngineRequest("big", 20, 8))
    engine.add(EngineRequest("just", 20, 7))
    run(engine)


def test_a_matched_draft_pays_and_the_shared_one_less() -> None:
    """Chat traffic on 8 H100 with drafts as calibrated: fewer, longer steps."""
    seconds = {}
    for name in ("none", "shared_tp8", "chat_tp8"):
        speculation = None if name == "none" else Speculation.head(DRAFTS[name], 3)
        engine = make_engine(speculation, usable_blocks=4_000)
        for number in range(8):
            engine.add(EngineRequest(str(number), 100, 200, traffic="chat"))
        seconds[name] = run(engine)[-1].ends_at
    assert seconds["chat_tp8"] < seconds["shared_tp8"] < seconds["none"]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(0, 30),
            st.integers(-2, 2),
            st.sampled_from([None, 0, 2]),
        ),
        min_size=1,
        max_size=12,
    ),
    tokens=st.integers(1, 4),
    percent=st.sampled_from([0.0, 41.0, 74.0, 100.0]),
    lookahead=st.booleans(),
    blocks=st.integers(22, 40),
    policy=st.sampled_from(list(SchedulingPolicy)),
)
def test_invariants(
    shapes: list[tuple[int, int, int, int | None]],
    tokens: int,
    percent: float,
    lookahead: bool,
    blocks: int,
    policy: SchedulingPolicy,
) -> None:
    """With a draft too: blocks and tokens are conserved and each request gets exactly its own."""
    engine = Engine(
        EngineConfig(
            step_time=STEP,
            num_gpu_blocks=blocks + NULL_BLOCKS,
            block_size=4,
            max_num_seqs=5,
            max_num_batched_tokens=16,
            scheduling_policy=policy,
            speculation=Speculation(tokens, {"": percent}, FREE, tokens if lookahead else 0),
        )
    )
    requests = [
        EngineRequest(
            str(number),
            prompt,
            output,
            priority,
            prompt_block_hashes=[number * 100 + index for index in range(prompt // 4)],
            content_key=number + 1,
            most_drafted_tokens=most,
        )
        for number, (prompt, output, priority, most) in enumerate(shapes)
    ]
    for request in requests:
        engine.add(request)
    steps = run(engine)
    assert all(step.tokens <= 16 for step in steps)
    assert all(r.state is RequestState.FINISHED for r in requests)
    assert all(r.output_tokens == r.output_tokens_target for r in requests)
    assert sum(s.generated_tokens for s in steps) == sum(r.output_tokens for r in requests)
    assert engine.kv.held_blocks == 0
    assert engine.totals.accepted_tokens <= engine.totals.drafted_tokens
