"""Finish times: two phases after a wait, the skew from the dispatch, and whose fault it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.scheduling.engine_time import EnginePace
from tidegate.scheduling.finish_time import (
    FLAGGED_ABOVE,
    FinishEstimate,
    SkewCause,
    estimate,
    skew,
)
from tidegate.scheduling.step_time_fit import StepWork

AT_DISPATCH = FinishEstimate(0.0, prefill_seconds=1.0, decode_seconds=9.0, output_tokens=91)


def pace() -> EnginePace:
    """32 rows at 20 ms a step."""
    made = EnginePace(2048)
    for _ in range(200):
        made.observe(StepWork(32, 0.0, 32, 32_000), 0.020, 32)
    return made


def test_the_two_phases_follow_each_other_after_the_wait() -> None:
    made = estimate(pace(), 100, 101, wait_seconds=3.0)
    assert made.wait_seconds == 3.0
    assert made.decode_seconds == pytest.approx(100 * 0.020, rel=0.01)
    assert made.prefill_seconds == pytest.approx(
        0.010 + 0.020 + 100 * pace().fit.coefficients[1], rel=0.02
    )
    assert made.first_token_seconds == 3.0 + made.prefill_seconds
    assert made.finish_seconds == made.first_token_seconds + made.decode_seconds


def test_speculation_shortens_the_second_phase_and_cache_hits_the_first() -> None:
    plain = estimate(pace(), 8000, 101)
    drafted = estimate(pace(), 8000, 101, tokens_per_step=2.5)
    cached = estimate(pace(), 8000, 101, cached_tokens=7500)
    queued = estimate(pace(), 8000, 101, prefill_ahead_tokens=4096)
    assert drafted.decode_seconds == pytest.approx(plain.decode_seconds / 2.5)
    assert drafted.prefill_seconds == plain.prefill_seconds
    assert cached.prefill_seconds < plain.prefill_seconds / 2
    assert queued.prefill_seconds > plain.prefill_seconds + 2 * 0.019


@pytest.mark.parametrize(
    ("first", "finish", "output", "preempted", "cause"),
    [
        pytest.param(1.0, 10.0, 91, 0.0, None, id="as estimated"),
        pytest.param(1.0, 2.0, 11, 0.0, None, id="early"),
        pytest.param(1.0, 13.0, 91, 0.0, None, id="late, but not by much"),
        pytest.param(6.0, 15.0, 91, 0.0, SkewCause.PREFILL, id="prefill"),
        pytest.param(5.0, 17.0, 91, 0.0, SkewCause.PREFILL, id="prefill more than pace"),
        pytest.param(1.0, 19.0, 181, 0.0, SkewCause.OUTPUT, id="output"),
        pytest.param(1.0, 19.0, 91, 0.0, SkewCause.PACE, id="pace"),
        pytest.param(1.0, 19.0, 91, 8.0, SkewCause.PREEMPTION, id="preemption"),
        pytest.param(1.0, 15.0, 11, 0.0, SkewCause.PACE, id="short and yet late"),
    ],
)
def test_what_is_late_by_more_than_three_tenths_is_flagged_with_its_cause(
    first: float, finish: float, output: int, preempted: float, cause: SkewCause | None
) -> None:
    made = skew(AT_DISPATCH, first, finish, output, preempted)
    assert made.ratio == pytest.approx((finish - 10) / 10)
    assert made.cause is cause
    assert (made.cause is not None) == (made.ratio > FLAGGED_ABOVE)


def test_an_estimate_of_nothing_is_not_late() -> None:
    assert skew(FinishEstimate(5.0, 0.0, 0.0, 0), 1.0, 2.0, 3).ratio == 0.0


def test_the_wait_is_no_part_of_the_skew() -> None:
    waited = FinishEstimate(100.0, 1.0, 9.0, 91)
    assert skew(waited, 1.0, 19.0, 91) == skew(AT_DISPATCH, 1.0, 19.0, 91)


@given(
    st.floats(0.01, 100),
    st.floats(0, 100),
    st.integers(0, 4000),
    st.floats(0, 50),
    st.floats(0, 50),
    st.integers(0, 4000),
)
def test_any_end_has_a_skew_and_a_cause_exactly_when_flagged(
    prefill: float, decode: float, assumed: int, first: float, rest: float, output: int
) -> None:
    made = skew(FinishEstimate(0, prefill, decode, assumed), first, first + rest, output)
    assert made.ratio >= -1
    assert (made.cause is not None) == (made.ratio > FLAGGED_ABOVE)
