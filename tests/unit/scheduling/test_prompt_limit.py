"""The prompt limit: by tokens and by measured prefill time, and what becomes of a larger prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.scheduling.contracts import OnExceed, PromptLimit
from tidegate.scheduling.engine_time import EnginePace
from tidegate.scheduling.prompt_limit import judge
from tidegate.scheduling.step_time_fit import StepWork, prefill_work


def measured(seconds_per_step: float = 0.35) -> EnginePace:
    """An engine that prefills 8,192 tokens in so many seconds."""
    pace = EnginePace(8192)
    pace.observe(prefill_work(8192, 0), seconds_per_step, 0)
    return pace


def test_without_a_limit_anything_passes() -> None:
    assert judge(None, 10**7, measured()).exceeded is None


@pytest.mark.parametrize("on_exceed", OnExceed)
def test_tokens_are_exact_and_need_no_measurement(on_exceed: OnExceed) -> None:
    limit = PromptLimit(max_tokens=32_768, on_exceed=on_exceed)
    assert judge(limit, 32_768, EnginePace(8192)).exceeded is None
    verdict = judge(limit, 32_769, EnginePace(8192))
    assert (verdict.exceeded, verdict.most_tokens) == (on_exceed, 32_768)


def test_two_seconds_of_prefill_pass_tens_of_thousands_but_not_200000_tokens() -> None:
    limit = PromptLimit(max_tokens=200_000, max_prefill_seconds=2.0, on_exceed=OnExceed.TRUNCATE)
    verdict = judge(limit, 200_000, measured())
    assert verdict.exceeded is OnExceed.TRUNCATE
    assert 30_000 < verdict.most_tokens < 48_000
    slower = judge(limit, 200_000, measured(0.7))
    assert slower.most_tokens == pytest.approx(verdict.most_tokens / 2, rel=0.2)


def test_nothing_is_refused_on_a_guess() -> None:
    limit = PromptLimit(max_prefill_seconds=0.001)
    assert judge(limit, 200_000, EnginePace(8192)).exceeded is None
    assert judge(limit, 200_000, measured()).exceeded is OnExceed.REJECT


def test_it_does_not_depend_on_what_else_runs() -> None:
    limit = PromptLimit(max_prefill_seconds=2.0)
    idle, busy = measured(), measured()
    for _ in range(50):
        decodes = StepWork(200, 0.0, 200, 400_000)
        busy.observe(decodes, busy.fit.seconds(200, 400_000, 0.0, 200), 200)
    assert judge(limit, 200_000, busy).most_tokens == pytest.approx(
        judge(limit, 200_000, idle).most_tokens, rel=1e-6
    )


def test_a_prompt_that_cannot_keep_one_token_is_rejected() -> None:
    limit = PromptLimit(max_prefill_seconds=0.001, on_exceed=OnExceed.TRUNCATE)
    verdict = judge(limit, 50, measured())
    assert (verdict.exceeded, verdict.most_tokens) == (OnExceed.REJECT, 0)
    effort = PromptLimit(max_prefill_seconds=0.001, on_exceed=OnExceed.BEST_EFFORT)
    assert judge(effort, 50, measured()).exceeded is OnExceed.BEST_EFFORT


@given(
    st.integers(1, 300_000),
    st.none() | st.integers(1, 200_000),
    st.floats(0.01, 10),
    st.floats(0.01, 2),
)
def test_what_a_truncation_keeps_is_the_most_that_is_within(
    prompt: int, max_tokens: int | None, max_seconds: float, speed: float
) -> None:
    pace = measured(speed)
    limit = PromptLimit(max_tokens, max_seconds, OnExceed.TRUNCATE)
    verdict = judge(limit, prompt, pace)
    if verdict.exceeded is None:
        assert verdict.most_tokens == prompt
        return
    kept = verdict.most_tokens
    assert 0 <= kept < prompt
    if kept:
        assert judge(limit, kept, pace).exceeded is None
    assert judge(limit, kept + 1, pace).exceeded is not None
