"""The step-time fit: it finds an engine, follows it when it changes, and stays sane on anything."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_work import together

from tidegate.scheduling.step_time_fit import (
    PRIOR_SECONDS,
    StepTimeFit,
    StepWork,
    decode_work,
    prefill_work,
)
from tidegate.simulator.engine_model.calibrations import H100_70B_TP8
from tidegate.simulator.engine_model.step_time import StepTimeModel

LINEAR = StepTimeModel(0.02, 0.0, 0.0, 6e-5, 3e-8, 5e-10, 1e-4)
SLOW = StepTimeModel(0.02, 0.0, 0.03, 3e-3, 1e-7, 1e-6, 2e-3)
"""As a CPU: sixty times slower, and in other proportions."""


def mixed_steps(seed: int) -> Iterator[StepWork]:
    """Decodes, in two of five steps with prefills at contexts of all lengths."""
    rng = random.Random(seed)
    while True:
        rows = rng.randint(1, 128)
        work = StepWork(rows, 0.0, rows, rows * rng.randint(200, 6000))
        if rng.random() < 0.4:
            context = rng.choice([0, 2048, 8192, 30_000])
            work = together(work, prefill_work(rng.randint(50, 2048), context))
        yield work


def true_seconds(engine: StepTimeModel, work: StepWork) -> float:
    return engine.seconds(work.tokens, work.kv_tokens_read, work.attention_pairs, work.decode_rows)


def predicted_seconds(fit: StepTimeFit, work: StepWork) -> float:
    return fit.coefficients[0] + fit.marginal_seconds(work)


def errors_of(
    fit: StepTimeFit, engine: StepTimeModel, steps: int, seed: int, noise: float = 0.03
) -> list[float]:
    """Relative errors of the predictions, sorted, while it learns on."""
    rng, errors = random.Random(seed), []
    for work, _ in zip(mixed_steps(seed), range(steps), strict=False):
        seconds = true_seconds(engine, work)
        errors.append(abs(predicted_seconds(fit, work) / seconds - 1))
        fit.observe(work, seconds * max(rng.gauss(1, noise), 0.2))
    return sorted(errors)


@pytest.mark.parametrize(
    ("engine", "median", "tail"),
    [
        pytest.param(LINEAR, 0.01, 0.03, id="linear"),
        pytest.param(H100_70B_TP8.step_time, 0.05, 0.17, id="with a floor"),
        pytest.param(SLOW, 0.03, 0.08, id="sixty times slower"),
    ],
)
def test_it_finds_an_engine_within_two_hundred_steps(
    engine: StepTimeModel, median: float, tail: float
) -> None:
    fit = StepTimeFit()
    errors_of(fit, engine, 200, seed=1)
    errors = errors_of(fit, engine, 300, seed=2)
    assert errors[150] < median
    assert errors[285] < tail


def test_it_finds_the_coefficients_of_a_linear_engine() -> None:
    fit = StepTimeFit()
    errors_of(fit, LINEAR, 1000, seed=3)
    c0, token, pair, _, kv_token, _ = fit.coefficients
    assert c0 == pytest.approx(0.02, rel=0.05)
    assert token == pytest.approx(6e-5, rel=0.05)
    assert pair == pytest.approx(5e-10, rel=0.1)
    assert kv_token == pytest.approx(3e-8, rel=0.1)


def test_it_follows_an_engine_that_was_replaced() -> None:
    fit = StepTimeFit()
    errors_of(fit, LINEAR, 300, seed=4)
    errors_of(fit, SLOW, 600, seed=5)
    assert errors_of(fit, SLOW, 300, seed=6)[150] < 0.1


def test_the_first_step_sets_the_scale() -> None:
    fit = StepTimeFit()
    work = prefill_work(512, 0)
    fit.observe(work, 100 * predicted_seconds(fit, work))
    assert fit.coefficients == pytest.approx([100 * prior for prior in PRIOR_SECONDS])


def test_an_outlier_moves_it_little() -> None:
    fit = StepTimeFit()
    errors_of(fit, LINEAR, 300, seed=7)
    work = next(mixed_steps(8))
    before = predicted_seconds(fit, work)
    fit.observe(work, 1000 * before)
    assert predicted_seconds(fit, work) < 1.1 * before
    assert errors_of(fit, LINEAR, 100, seed=9)[50] < 0.02


def test_what_is_not_seen_for_long_keeps_its_value() -> None:
    fit = StepTimeFit()
    errors_of(fit, LINEAR, 500, seed=10)
    long = prefill_work(2048, 30_000)
    for work, _ in zip(mixed_steps(11), range(20_000), strict=False):
        if not work.attention_pairs:
            fit.observe(work, true_seconds(LINEAR, work))
    assert predicted_seconds(fit, long) == pytest.approx(true_seconds(LINEAR, long), rel=0.05)


def test_a_step_without_duration_is_no_measurement() -> None:
    fit = StepTimeFit()
    for seconds in (0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")):
        fit.observe(decode_work(100), seconds)
    assert (fit.observed, fit.coefficients) == (0, list(PRIOR_SECONDS))


def test_work_adds_up() -> None:
    whole = prefill_work(3000, 500)
    assert together(prefill_work(1000, 500), prefill_work(2000, 1500)) == whole
    assert decode_work(700, 4) == StepWork(4, 0.0, 1, 700)
    fit = StepTimeFit()
    assert fit.seconds(whole.tokens, whole.kv_tokens_read, whole.attention_pairs) == pytest.approx(
        fit.coefficients[0] + fit.marginal_seconds(whole)
    )


works = st.builds(
    StepWork,
    st.integers(0, 200_000),
    st.floats(0, 1e10),
    st.integers(0, 1024),
    st.integers(0, 10**7),
    st.integers(0, 100_000),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(works, st.floats(1e-6, 1e3)), max_size=80), works, works)
def test_on_anything_measured_more_work_never_takes_less_time(
    steps: list[tuple[StepWork, float]], one: StepWork, more: StepWork
) -> None:
    fit = StepTimeFit()
    for work, seconds in steps:
        fit.observe(work, seconds)
    assert all(0 < coefficient < 1e6 for coefficient in fit.coefficients)
    assert predicted_seconds(fit, together(one, more)) >= predicted_seconds(fit, one) > 0


@settings(deadline=None, max_examples=30)
@given(works, st.floats(1e-4, 10), st.integers(0, 99))
def test_the_same_step_again_and_again_is_learnt(work: StepWork, seconds: float, seed: int) -> None:
    fit = StepTimeFit()
    errors_of(fit, LINEAR, 30, seed)
    # Not below what every coefficient's least leaves.
    seconds = max(seconds, 1e-3 * predicted_seconds(fit, work))
    for _ in range(80):
        fit.observe(work, seconds)
    assert predicted_seconds(fit, work) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_outliers_now_and_then_for_hours_do_not_drive_it_away(seed: int) -> None:
    # A host that stalls shows steps of microseconds and of half a second among those of 5 ms.
    draw = random.Random(seed)
    fit = StepTimeFit()
    for _ in range(2_000):
        work = together(
            prefill_work(draw.choice([1, 30]), draw.choice([0, 1])),
            decode_work(draw.randint(30, 50)),
        )
        seconds = 0.005 * draw.uniform(0.8, 1.2)
        if draw.random() < 0.2:
            seconds = draw.choice([1e-5, 1e-4, 0.05, 0.5])
        fit.observe(work, seconds)
        assert fit.marginal_seconds(work) < 10.0
    for _ in range(100):
        fit.observe(decode_work(40), 0.005)
    assert fit.seconds(1, 40, decode_rows=1) == pytest.approx(0.005, rel=0.1)
