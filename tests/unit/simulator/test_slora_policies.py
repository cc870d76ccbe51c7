"""The policies of VTC's artifact and the production scheduler, each on the engine model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.simulator.engine_model.calibrations import A10G_FIRST_COME, A10G_PROFILE
from tidegate.simulator.service_gap import ServedRequest, window_gaps
from tidegate.simulator.slora.counters import (
    LeastCounterFirst,
    OracleTokenCounter,
    PredictingTokenCounter,
    RequestsPerMinute,
    VirtualTokenCounter,
)
from tidegate.simulator.slora.engine import Engine
from tidegate.simulator.slora.fair_queueing import (
    DeficitRing,
    FairQueueing,
    MeanOfLast,
    MovingAverage,
    NoPrediction,
)
from tidegate.simulator.slora.fitting import fit_profile, mean_error, nelder_mead
from tidegate.simulator.slora.lineup import CONTESTANTS, OURS
from tidegate.simulator.slora.published import FOLDER, read_run
from tidegate.simulator.slora.request import Job, jobs_of
from tidegate.simulator.slora.summary import summarize
from tidegate.simulator.slora.timing import CONSTANTS
from tidegate.simulator.start_time_fair_queueing import StartTimeFairQueueing

needs_traces = pytest.mark.skipif(
    "TIDEGATE_TRACES" not in os.environ, reason="TIDEGATE_TRACES is not set"
)


def job(number: int, tenant: str, prompt: int = 10, output: int = 5, at: float = 0.0) -> Job:
    return Job(number, tenant, prompt, output, at)


def noisy_neighbour() -> list[ServedRequest]:
    """One tenant asks for 400 answers at once, another for 500, a third for a few."""
    rows = [("a", 0.01 * i, 40, 120) for i in range(400)]
    rows += [("b", 0.013 * i, 30, 60 + i % 60) for i in range(500)]
    rows += [("quiet", 20.0 + 7 * i, 20, 30) for i in range(8)]
    return [ServedRequest(tenant, p, o, at, None, None) for tenant, at, p, o in rows]


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_policy_serves_everything_once_in_each_tenants_order(name: str) -> None:
    jobs = jobs_of(noisy_neighbour())
    outcomes = Engine(A10G_FIRST_COME.timing, CONTESTANTS[name](["a", "b", "quiet"])).run(jobs)
    assert all(one.finished is not None for one in outcomes)
    for tenant in ("a", "b", "quiet"):
        firsts = [one.first_token for one in outcomes if one.tenant == tenant]
        assert firsts == sorted(firsts)


def test_fair_policies_let_the_quiet_tenant_through() -> None:
    light = {}
    for name in ("FCFS", "VTC", "SFQ true costs", OURS):
        policy = CONTESTANTS[name](["a", "b", "quiet"])
        light[name] = summarize(
            Engine(A10G_FIRST_COME.timing, policy).run(jobs_of(noisy_neighbour()))
        ).light_ttft
    fcfs = light.pop("FCFS")
    assert max(light.values()) < fcfs / 10


def test_ours_keeps_two_busy_tenants_together() -> None:
    policy = CONTESTANTS[OURS](["a", "b", "quiet"])
    outcomes = Engine(A10G_FIRST_COME.timing, policy).run(jobs_of(noisy_neighbour()))
    gaps = [w for w in window_gaps(outcomes) if set(w.service_by_tenant) == {"a", "b"}]
    assert len(gaps) >= 2
    mean = sum(sum(w.service_by_tenant.values()) for w in gaps) / (2 * len(gaps))
    assert max(w.gap for w in gaps) < 0.15 * mean


def test_vtc_lifts_who_was_idle_and_lcf_does_not() -> None:
    for policy, expected in ((VirtualTokenCounter(), 100.0), (LeastCounterFirst(), 0.0)):
        first = job(0, "a", prompt=100)
        policy.arrive(first, 0.0)
        policy.arrive(job(1, "a"), 0.0)
        policy.admit(first, 0.0)
        policy.arrive(job(2, "b"), 1.0)
        assert policy.counters["b"] == expected


def test_the_published_codes_charge_on_finish() -> None:
    for quirk, expected in ((True, 10 + 2 + 2), (False, 10 + 2)):
        policy = VirtualTokenCounter(charges_on_finish=quirk)
        one = job(0, "a", output=2)
        policy.arrive(one, 0.0)
        policy.admit(one, 0.0)
        policy.decode([one], 1.0)
        policy.finish([one], [one], 1.0)
        assert policy.counters["a"] == expected


def test_oracle_charges_all_at_once_and_predict_settles_to_the_truth() -> None:
    oracle = OracleTokenCounter()
    one = job(0, "a", prompt=10, output=50)
    oracle.arrive(one, 0.0)
    oracle.admit(one, 0.0)
    oracle.decode([one], 0.0)
    assert oracle.counters["a"] == 110.0
    predict = PredictingTokenCounter(charges_on_finish=False)
    for number, output in enumerate((100, 3)):
        one = job(number, "a", prompt=10, output=output)
        predict.arrive(one, 0.0)
        predict.admit(one, 0.0)
        for _ in range(output - 1):
            predict.decode([one], 0.0)
        predict.finish([one], [one], 0.0)
    # The first is charged for its 99 decodes (expected 0), the second for 3 of the expected 100.
    assert predict.counters["a"] == 10 + 2 * 99 + 10 + 2 * 3


def test_a_limit_counts_the_last_60_s_and_not_what_it_refused() -> None:
    policy = RequestsPerMinute(2)
    times = (0.0, 10.0, 20.0, 59.0, 60.5, 61.0, 69.0, 70.5)
    assert [policy.arrive(job(i, "a", at=t), t) for i, t in enumerate(times)] == [
        True, True, False, False, True, False, False, True,
    ]  # fmt: skip
    assert policy.arrive(job(9, "b"), 0.0)


def test_predictors() -> None:
    average, mean = MovingAverage(), MeanOfLast(2)
    assert (average.expect(job(0, "a")), mean.expect(job(0, "a"))) == (0.0, MeanOfLast.PRIOR)
    for number, output in enumerate((100, 50, 10)):
        for predictor in (average, mean):
            predictor.observe(job(number, "a", output=output))
    assert average.expect(job(9, "a")) == pytest.approx((100 * 4 / 5 + 10) * 4 / 5 + 2)
    assert mean.expect(job(9, "a")) == 30.0
    assert mean.expect(job(9, "new")) == 30.0, "of all while it has none of its own"


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_is_charged_what_it_cost_however_it_was_expected(streaming: bool) -> None:
    for predictor in (NoPrediction(), MovingAverage(), MeanOfLast()):
        tags: StartTimeFairQueueing[Job] = StartTimeFairQueueing()
        policy = FairQueueing(tags, predictor, while_streaming=streaming)
        for number, output in enumerate((40, 3, 200)):
            one = job(number, "a", prompt=10, output=output)
            policy.arrive(one, 0.0)
            before = tags.tag("a")
            policy.admit(one, 0.0)
            for _ in range(output - 1):
                policy.decode([one], 0.0)
            policy.finish([one], [one], 0.0)
            assert tags.tag("a") - before == pytest.approx(10 + 2 * output)


def test_a_ring_serves_while_credit_lasts_and_lets_debt_pass_turns() -> None:
    ring = DeficitRing(100)
    for number in range(6):
        ring.push("a", job(number, "a"))
        ring.push("b", job(10 + number, "b"))
    costs = {"a": 60, "b": 250}
    order = []
    for _ in range(8):
        first = ring.first()
        assert first is not None
        assert ring.pop(costs[first.tenant]) is first
        order.append(first.tenant)
    assert "".join(order) == "aabaaaba"


def test_the_simplex_finds_a_bottom() -> None:
    point, value = nelder_mead(lambda p: (p[0] - 3) ** 2 + 10 * (p[1] + 1) ** 2, [0.0, 0.0])
    assert point == pytest.approx([3, -1], abs=1e-3)
    assert value < 1e-5


@needs_traces
def test_the_committed_profile_is_what_its_fit_gives() -> None:
    fitted = fit_profile(Path(os.environ["TIDEGATE_TRACES"], FOLDER, "cost_profile.json"))
    for name in CONSTANTS:
        assert getattr(fitted, name) == pytest.approx(getattr(A10G_PROFILE.timing, name), rel=1e-3)


@needs_traces
def test_the_committed_fit_leaves_the_error_that_it_says() -> None:
    run = read_run(Path(os.environ["TIDEGATE_TRACES"], FOLDER, "real_FCFS.jsonl"))
    assert mean_error(run, A10G_FIRST_COME.timing) < 2.2
    assert mean_error(run, A10G_PROFILE.timing) > 10
