"""Per-tenant averages: quantiles over the last 128, priors until there are 20, tiers in between."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.scheduling.tenant_averages import (
    DEADLINE_PERCENT,
    QUANTILES_OVER,
    RESERVATION_PERCENT,
    SAMPLES_NEEDED,
    Averages,
    OutputQuantiles,
    expected_cached_tokens,
    expected_tokens_per_step,
    output_quantile_tokens,
)


def with_outputs(count: int, tokens: int) -> Averages:
    averages = Averages()
    for _ in range(count):
        averages.ended(100, tokens, cached_tokens=50, decode_steps=max((tokens - 1) // 2, 1))
    return averages


@given(st.lists(st.integers(-5, 2**40), min_size=1, max_size=400), st.integers(1, 100))
def test_a_quantile_is_the_nearest_rank_of_the_last_128(values: list[int], percent: int) -> None:
    quantiles = OutputQuantiles()
    for value in values:
        quantiles.add(value)
    last = sorted(min(max(value, 0), 2**32 - 1) for value in values[-QUANTILES_OVER:])
    assert len(quantiles) == len(last)
    rank = ceil(len(last) * percent / 100)
    assert quantiles.tokens(percent) == last[rank - 1]
    assert sum(value <= quantiles.tokens(percent) for value in last) >= rank


def test_only_the_last_128_outputs_count() -> None:
    quantiles = OutputQuantiles()
    for value in range(200):
        quantiles.add(value)
    assert [quantiles.tokens(percent) for percent in (1, 50, 90, 95, 100)] == [
        73,
        135,
        187,
        193,
        199,
    ]


def test_a_few_samples_say_nothing_about_a_tail() -> None:
    few, none = with_outputs(SAMPLES_NEEDED - 1, 10), Averages()
    tier = with_outputs(SAMPLES_NEEDED, 70)
    for percent in (DEADLINE_PERCENT, RESERVATION_PERCENT):
        assert output_quantile_tokens(percent, 500, few, none) == 500
        assert output_quantile_tokens(percent, 500, few, tier) == 70
        assert output_quantile_tokens(percent, 50, few, tier) == 50
        few.outputs.add(10)
        assert output_quantile_tokens(percent, 500, few, tier) == 10
        few = with_outputs(SAMPLES_NEEDED - 1, 10)


def test_an_output_that_may_be_nothing_is_nothing_and_else_at_least_one() -> None:
    empty = with_outputs(SAMPLES_NEEDED, 0)
    assert output_quantile_tokens(95, 10, empty, empty) == 1
    assert output_quantile_tokens(95, 0, empty, empty) == 0


def test_cache_hits_and_acceptance_are_known_after_twenty() -> None:
    few, none = with_outputs(SAMPLES_NEEDED - 1, 101), Averages()
    assert (expected_cached_tokens(1000, few, none), expected_tokens_per_step(few, none)) == (0, 1)
    known = with_outputs(SAMPLES_NEEDED, 101)
    assert expected_cached_tokens(1000, known, none) == 500
    assert expected_cached_tokens(1000, few, known) == 500
    assert expected_tokens_per_step(known, none) == pytest.approx(2.0)
    assert expected_tokens_per_step(few, known) == pytest.approx(2.0)


def test_what_is_not_known_of_a_request_is_not_averaged() -> None:
    averages = Averages()
    for _ in range(SAMPLES_NEEDED):
        averages.ended(0, 7, cached_tokens=5, decode_steps=0)
        averages.ended(100, 7)
    assert len(averages.outputs) == 2 * SAMPLES_NEEDED
    assert (averages.cached_ratio.samples, averages.tokens_per_step.samples) == (0, 0)


def test_ratios_follow_a_change_and_stay_in_their_bounds() -> None:
    averages = Averages()
    for _ in range(40):
        averages.ended(100, 2, cached_tokens=250, decode_steps=50)
    assert averages.cached_ratio.value == pytest.approx(1.0)
    assert averages.tokens_per_step.value == pytest.approx(1.0)
    for _ in range(160):
        averages.ended(100, 301, cached_tokens=20, decode_steps=100)
    assert averages.cached_ratio.value == pytest.approx(0.2, rel=0.05)
    assert averages.tokens_per_step.value == pytest.approx(3.0, rel=0.05)
