"""Scaling decisions: by single looks, and over hours of a load in virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scaled_group import LOOK_SECONDS, TARGET_SECONDS, Load, ScaledGroup
from tidegate_operator.autoscale import signals
from tidegate_operator.autoscale.capacity import Rate
from tidegate_operator.autoscale.decision import GroupScaler, Look, Step, StepReason
from tidegate_operator.autoscale.policy import Pace, ScalingPolicy, ScalingSignal
from tidegate_operator.autoscale.signals import Alert, Burn, TierWait, Verdict

POLICY = ScalingPolicy(1, 10)
HOUR = 3600.0
CALM = (
    signals.alerts([]),
    signals.burn_rate([Burn("t0", "TimeToFirstToken", 0.0, 0.0)]),
    signals.queue_wait([TierWait("t0", 0.25, 0.01)]),
)
IDLE = Rate(100.0, 0.0, 0.0, 0.1)


def assert_orderly(steps: Sequence[Step], policy: ScalingPolicy) -> None:
    """No step within the cooldown or window of its own direction, none outside the bounds."""
    for before, after in pairwise(steps):
        pace = policy.up if after.after > after.before else policy.down
        passed = after.at - before.at
        assert passed >= max(pace.cooldown_seconds, pace.window_seconds), (before, after)
    for step in steps:
        assert policy.minimum <= step.after <= policy.maximum
        limit = (policy.up if step.after > step.before else policy.down).max_step
        assert limit is None or abs(step.after - step.before) <= limit


def square(low: float, high: float, period_seconds: float) -> Load:
    return lambda t: high if (t // (period_seconds / 2)) % 2 else low


# --- loads over hours


def test_a_square_wave_grows_once_per_rise_and_shrinks_by_single_pods() -> None:
    """0.7 and 3.5 pods' worth, an hour each. With headroom the high hour needs five; one more
    drains what came in while they started."""
    group = ScaledGroup(POLICY)
    group.run(4 * HOUR, square(700, 3500, 2 * HOUR))
    assert_orderly(group.steps, POLICY)
    ups = [step for step in group.steps if step.after > step.before]
    assert [(step.before, step.after) for step in ups] == [(1, 5), (5, 6)] * 2
    assert len(group.steps) - len(ups) == 6
    # From five minutes after each rise until the next, nothing is late.
    late = [at for at, wait in group.waits if wait > TARGET_SECONDS]
    assert all((at - 1_000_000) % (2 * HOUR) < HOUR + 600 for at in late)


def test_a_wave_faster_than_the_window_keeps_what_its_peaks_need() -> None:
    group = ScaledGroup(POLICY)
    group.run(3 * HOUR, square(700, 3500, 800))
    assert_orderly(group.steps, POLICY)
    assert len(group.steps) == 3
    settled = group.steps[-1].at
    assert all(wait <= TARGET_SECONDS for at, wait in group.waits if at > settled)


def test_a_ramp_up_and_down_takes_each_step_once() -> None:
    group = ScaledGroup(POLICY, start_seconds=60.0)
    group.run(3 * HOUR, lambda t: 200 + 5000 * t / (3 * HOUR))
    grown = len(group.steps)
    assert all(step.after > step.before for step in group.steps)
    assert grown <= 6
    group.run(3 * HOUR, lambda t: 5200 - 5000 * t / (3 * HOUR))
    assert all(step.after < step.before for step in group.steps[grown:])
    assert_orderly(group.steps, POLICY)
    assert group.scaler.desired == 1


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_noise_moves_nothing_in_a_group_of_the_right_size(spread: float) -> None:
    noise = random.Random(8)
    group = ScaledGroup(POLICY, pods=3)
    group.run(3 * HOUR, lambda _: 2000 * noise.uniform(1 - spread, 1 + spread))
    assert group.steps == []


def test_noise_around_one_pods_capacity_adds_one_pod_for_good() -> None:
    noise = random.Random(8)
    group = ScaledGroup(POLICY)
    group.run(4 * HOUR, lambda _: 800 * noise.uniform(0.5, 1.5))
    assert [(step.before, step.after) for step in group.steps] == [(1, 2)]


def test_an_idle_group_shrinks_to_what_is_busy_enough_and_no_further() -> None:
    """It was never short, so only how busy it is tells: 2.5 of 4 pods' time, with headroom."""
    group = ScaledGroup(POLICY, pods=6)
    group.run(3 * HOUR, lambda _: 2500.0)
    assert group.scaler.desired == 4
    assert max(wait for _, wait in group.waits) <= TARGET_SECONDS


@pytest.mark.parametrize("signal", ScalingSignal)
def test_each_signal_alone_meets_a_burst_and_gives_its_pods_back(signal: ScalingSignal) -> None:
    policy = replace(POLICY, signals=(signal,))
    group = ScaledGroup(policy)
    group.run(8 * HOUR, lambda t: 3500.0 if 600 < t < 2 * HOUR else 700.0)
    assert_orderly(group.steps, policy)
    assert group.steps[0].reason is StepReason(signal.value)
    assert max(step.after for step in group.steps) >= 5
    assert group.scaler.desired == 1
    directions = [step.after > step.before for step in group.steps]
    assert directions == sorted(directions, reverse=True), "it grew again after it shrank"


@settings(max_examples=8, deadline=None)
@given(
    low=st.floats(50, 1500),
    high=st.floats(500, 6000),
    period_seconds=st.floats(120, 5000),
    spread=st.floats(0, 0.5),
    seed=st.integers(0, 2**16),
    start_seconds=st.floats(5, 400),
    pods=st.integers(1, 10),
    throttles=st.booleans(),
    up=st.builds(Pace, st.sampled_from([0.0, 30.0]), st.floats(0, 300), st.sampled_from([None, 2])),
    down=st.builds(Pace, st.floats(60, 900), st.floats(0, 300), st.integers(1, 3)),
)
def test_whatever_the_load_no_step_is_undone_within_its_window_and_a_steady_load_ends_it(
    low: float,
    high: float,
    period_seconds: float,
    spread: float,
    seed: int,
    start_seconds: float,
    pods: int,
    throttles: bool,
    up: Pace,
    down: Pace,
) -> None:
    noise = random.Random(seed)
    policy = ScalingPolicy(1, 10, up=up, down=down)
    group = ScaledGroup(policy, pods=pods, start_seconds=start_seconds, throttles=throttles)
    wave = square(low, high, period_seconds)
    group.run(HOUR, lambda t: wave(t) * noise.uniform(1 - spread, 1 + spread))
    group.run(2 * HOUR, lambda _: high)
    assert_orderly(group.steps, policy)
    before = len(group.steps)
    group.run(HOUR / 2, lambda _: high)
    assert len(group.steps) == before
    assert group.waits[-1][1] <= TARGET_SECONDS


@pytest.mark.parametrize("signal", ScalingSignal)
def test_what_is_refused_since_it_would_wait_is_demand_too(signal: ScalingSignal) -> None:
    """Six pods' worth comes to one: the throttle keeps the queue at what the promise bears, so that
    neither its length nor its growth tells of the other five."""
    group = ScaledGroup(replace(POLICY, signals=(signal,)), throttles=True)
    group.run(HOUR, lambda t: 4800.0 if t > 600 else 500.0)
    first = group.steps[0]
    assert (first.before, first.after) in [(1, 6), (1, 7)]
    assert len(group.steps) <= 2
    assert group.waits[-1][1] <= TARGET_SECONDS * signals.WAIT_PART


# --- missing data


@pytest.mark.parametrize("why", ["it does not answer", "it has no series", "NaN", "too old"])
def test_missing_data_hold_every_pod_and_say_so(why: str) -> None:
    group = ScaledGroup(POLICY, pods=5, missing=lambda _: why)
    group.run(2 * HOUR, lambda _: 300.0)
    assert group.steps == []
    assert all(decision.held and why in decision.text for decision in group.decisions)
    group.missing = lambda _: None
    group.run(650, lambda _: 300.0)
    assert [(step.before, step.after) for step in group.steps] == [(5, 4)]


def test_what_is_known_still_lets_the_group_grow() -> None:
    group = ScaledGroup(POLICY, missing=lambda _: "it does not answer")
    group.run(0.5 * HOUR, lambda _: 2500.0)
    assert group.scaler.desired >= 4
    assert all(step.reason is StepReason.QUEUE_WAIT for step in group.steps)
    assert all(decision.held for decision in group.decisions)


def test_a_gap_in_the_data_begins_the_window_anew() -> None:
    scaler, now = GroupScaler(3), 0.0
    for missing in (False, True, False):
        until = now + 550
        while now < until:
            now += LOOK_SECONDS
            verdicts = (signals.alerts("away"), *CALM[1:]) if missing else CALM
            scaler.decide(now, Look(3, verdicts, IDLE), POLICY)
    assert scaler.desired == 3


# --- single looks


def look(*verdicts: Verdict, ready: int = 2, rate: Rate | None = IDLE, short: bool = False) -> Look:
    return Look(ready, verdicts, rate, short)


def hot(lookback_seconds: float = 0.0) -> Verdict:
    return Verdict(ScalingSignal.ALERTS, hot="it fires", lookback_seconds=lookback_seconds)


def test_bounds_hold_at_once_in_both_directions() -> None:
    for before, after in ((0, 2), (9, 4)):
        scaler = GroupScaler(before)
        decision = scaler.decide(0.0, look(signals.alerts("away")), ScalingPolicy(2, 4))
        assert decision.desired == after
        assert scaler.history[-1].reason is StepReason.BOUNDS


def test_at_the_most_it_says_that_it_may_not_grow() -> None:
    decision = GroupScaler(4).decide(0.0, look(hot(), ready=4), ScalingPolicy(1, 4))
    assert decision.desired == 4
    assert "4 pods are the most" in decision.text


def test_an_alert_that_looks_back_waits_until_the_new_pods_can_have_cleared_it() -> None:
    scaler = GroupScaler(2)
    assert scaler.decide(0.0, look(hot(1800.0)), POLICY).desired == 3
    assert scaler.decide(300.0, look(hot(1800.0)), POLICY).desired == 3  # the third is starting
    assert scaler.decide(600.0, look(hot(1800.0), ready=3), POLICY).desired == 3
    assert scaler.decide(2395.0, look(hot(1800.0), ready=3), POLICY).desired == 3
    assert scaler.decide(2400.0, look(hot(1800.0), ready=3), POLICY).desired == 4


def test_cooldowns_outlive_a_restart() -> None:
    last = Step(1000.0, 1, 2, StepReason.ALERTS, "")
    scaler = GroupScaler(2, [last])
    assert scaler.decide(1030.0, look(hot()), POLICY).desired == 2
    assert scaler.decide(1060.0, look(hot()), POLICY).desired == 3


def test_pods_that_do_not_start_are_no_reason_to_keep_them() -> None:
    """Two of five serve, and have been calm with it: judged by what those two would be as one."""
    scaler = GroupScaler(5)
    desired = 5
    for tick in range(400):
        desired = scaler.decide(tick * LOOK_SECONDS, look(*CALM), POLICY).desired
    assert desired == 2


def test_the_history_keeps_the_last_five() -> None:
    scaler = GroupScaler(1)
    for number in range(8):
        now = number * 100.0
        scaler.decide(now, look(hot(), ready=number + 1), ScalingPolicy(1, 20))
    assert [step.after for step in scaler.history] == [5, 6, 7, 8, 9]


# --- signals


def test_the_queue_waits_of_promised_tiers() -> None:
    calm, between, over = (TierWait("t0", 0.25, wait) for wait in (0.1, 0.2, 0.3))
    assert signals.queue_wait([calm, TierWait("t1", 1.0, None)]).calm
    verdict = signals.queue_wait([calm, between])
    assert (verdict.calm, verdict.hot, verdict.missing) == (False, None, None)
    assert "tier t0 waits 0.3 s" in (signals.queue_wait([calm, over]).hot or "")
    assert signals.queue_wait("away").missing == "away"


def test_a_tier_that_is_refused_more_often_than_promised_is_short_though_nobody_waits() -> None:
    """As where a prompt's own prefill leaves no time to wait."""
    often, seldom, never = (TierWait("t0", 0.25, 0.1, part, 0.01) for part in (0.02, 0.008, 0.0))
    assert "2% of the requests of tier t0 are refused" in (signals.queue_wait([often]).hot or "")
    verdict = signals.queue_wait([seldom])
    assert (verdict.calm, verdict.hot) == (False, None)
    assert signals.queue_wait([never]).calm


def test_a_burn_counts_over_both_windows_and_calm_over_the_short_one() -> None:
    def verdict(short: float, long: float) -> Verdict:
        return signals.burn_rate([Burn("t0", "EndToEnd", short, long)])

    assert verdict(20.0, 0.9).hot is None
    assert not verdict(20.0, 0.9).calm
    assert verdict(0.9, 20.0).hot is None
    assert "1.5 times" in (verdict(1.5, 20.0).hot or "")
    assert verdict(0.4, 20.0).calm


def test_of_several_alerts_the_one_that_forgets_first_counts() -> None:
    verdict = signals.alerts([Alert("A", "page", "t0", 1800.0), Alert("B", "ticket", "t1", 60.0)])
    assert verdict.lookback_seconds == 60.0
    assert "A (page) of tier t0" in (verdict.hot or "")
