"""The loop of S-LoRA's router: batches, the fit test, when admission is tried."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.simulator.service_gap import ServedRequest
from tidegate.simulator.slora.counters import FirstComeFirstServed
from tidegate.simulator.slora.engine import Engine, Limits
from tidegate.simulator.slora.request import Job, jobs_of, reversed_in_time
from tidegate.simulator.slora.timing import CONSTANTS, Timing

SIMPLE = Timing(1.0, 0.0, 0.0, 0.0, per_prefill_seconds=100.0)
"""A step takes 1 s, a prefill batch 100."""


class Watched(FirstComeFirstServed):
    """Notes when each was admitted, and how many ran."""

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[tuple[float, int]] = []

    def admit(self, job: Job, now: float) -> None:
        super().admit(job, now)
        self.admitted.append((now, job.number))


def run(
    jobs: Sequence[tuple[float, int, int]], timing: Timing = SIMPLE, limits: Limits | None = None
) -> tuple[list[tuple[float, int]], list[ServedRequest]]:
    policy = Watched()
    sent = [Job(i, "t", prompt, output, at) for i, (at, prompt, output) in enumerate(jobs)]
    outcomes = Engine(timing, policy, limits).run(sent)
    return policy.admitted, outcomes


def test_a_prefill_gives_the_first_token_and_each_step_one_more() -> None:
    _, (one,) = run([(5.0, 10, 4)])
    assert one.first_token == 105.0
    assert one.finished == 108.0


def test_one_token_is_all_of_a_prefill() -> None:
    _, (one,) = run([(0.0, 10, 1)])
    assert (one.first_token, one.finished) == (100.0, 100.0)


def test_admission_waits_ten_steps_then_tries_at_each() -> None:
    admitted, _ = run([(0.0, 10, 40), (101.0, 10, 5), (210.5, 10, 5)])
    # The second came after one step and enters after ten; the third came within the ten steps
    # that follow the second's prefill.
    assert admitted == [(0.0, 0), (110.0, 1), (220.0, 2)]
    admitted, _ = run([(0.0, 10, 40), (115.5, 10, 5)])
    assert admitted == [(0.0, 0), (116.0, 1)]


def test_prefills_stop_decodes() -> None:
    _, outcomes = run([(0.0, 10, 40), (101.0, 10, 5)])
    assert outcomes[0].finished == 100.0 + 39 + 100.0


def test_nobody_overtakes_by_being_small() -> None:
    limits = Limits(pool_tokens=100)
    admitted, _ = run([(0.0, 40, 20), (0.0, 80, 10), (0.0, 1, 1)], limits=limits)
    assert [number for _, number in admitted] == [0, 1, 2]
    assert admitted[1][0] > admitted[0][0]
    assert admitted[2][0] == admitted[1][0]


def test_a_prefill_batch_is_bounded_in_tokens_and_requests() -> None:
    many = [(0.0, 400, 3)] * 10
    admitted, _ = run(many, limits=Limits(prefill_tokens=1_000))
    assert [at for at, _ in admitted][:3] == [0.0, 0.0, 102.0]
    admitted, _ = run(many, limits=Limits(running_requests=3))
    assert [at for at, _ in admitted][:4] == [0.0, 0.0, 0.0, 102.0]


def test_what_can_never_fit_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="never fits"):
        run([(0.0, 101, 1)], limits=Limits(pool_tokens=100))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.integers(1, 200), st.integers(1, 60)),
        min_size=1,
        max_size=30,
    )
)
def test_the_pool_never_overflows_and_all_are_served(jobs: list[tuple[float, int, int]]) -> None:
    limits = Limits(pool_tokens=400, prefill_tokens=300)
    timing = Timing(0.02, 1e-4, 1e-6, 1e-4, 0.01, 0.01, client_seconds=0.0)
    _, outcomes = run(sorted(jobs), timing, limits)
    assert all(one.finished is not None for one in outcomes)
    times = sorted(
        {t for one in outcomes for t in (one.first_token, one.finished) if t is not None}
    )
    for time in (before + (after - before) / 2 for before, after in pairwise(times)):
        held = 0.0
        for one in outcomes:
            assert one.first_token is not None
            assert one.finished is not None
            if one.first_token <= time < one.finished:
                held += one.prompt_tokens + 1
        assert held < limits.pool_tokens


def test_noise_and_scaling_touch_the_constants_they_name() -> None:
    timing = Timing(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    assert timing.perturbed(3) == timing.perturbed(3) != timing.perturbed(4)
    noisy = timing.perturbed(3)
    for name in CONSTANTS:
        assert getattr(noisy, name) == pytest.approx(getattr(timing, name), rel=0.06)
        scaled = timing.scaled(name, 0.8)
        changed = [n for n in CONSTANTS if getattr(scaled, n) != getattr(timing, n)]
        assert changed == [name]
        assert getattr(scaled, name) == pytest.approx(0.8 * getattr(timing, name))
    assert timing.prefill_seconds(10, 2) == 5.0 + 40.0 + 12.0
    assert timing.decode_seconds(2, 10) == 1.0 + 4.0 + 30.0


def test_in_reverse_the_last_comes_first() -> None:
    _, outcomes = run([(0.0, 1, 2), (4.0, 3, 4), (9.0, 5, 6)])
    backwards = reversed_in_time(outcomes)
    assert [(job.arrival, job.prompt_tokens) for job in jobs_of(backwards)] == [
        (0.0, 5),
        (5.0, 3),
        (9.0, 1),
    ]
