"""The throttle: early and true refusals, hysteresis, and never for a neighbour's backlog."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.scheduling.load_rates import MEMORY_SECONDS
from tidegate.scheduling.throttle import (
    ACCEPT_BELOW,
    MAX_RETRY_SECONDS,
    REFUSE_ABOVE,
    Throttle,
)
from tidegate.scheduling.tier_loads import TierLoad
from tidegate.scheduling.waiting_time import NO_WAIT, WaitForecast, predict

RATE = 1000.0
TARGET = 2.0
TIER = TierLoad(1, active_weight=1.0)


def behind(own: float, **load: float) -> WaitForecast:
    """Of a request behind so much of its own tenant's."""
    tier = TierLoad(1, queued=load.get("queued", own), active_weight=load.get("weights", 1.0))
    return predict(own, 1, tier, [], RATE, weighted=False)


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        pytest.param(0, False, id="nothing waits"),
        pytest.param(1499, False, id="just within"),
        pytest.param(1501, True, id="just above"),
        pytest.param(1e9, True, id="far above"),
    ],
)
def test_it_refuses_above_the_target(own: float, refused: bool) -> None:
    throttle = Throttle()
    assert (throttle.refusal_seconds(behind(own), 0.5, TARGET) is not None) == refused
    assert throttle.refusing == refused


def test_a_refused_tenant_is_accepted_again_below_four_fifths() -> None:
    throttle = Throttle()
    verdicts = [
        throttle.refusal_seconds(behind(1000 * wait), 0.5, TARGET) is None
        for wait in (1.4, 1.6, 1.4, 1.2, 1.0, 1.2, 1.4, 1.6, 1.4)
    ]
    assert verdicts == [True, False, False, False, True, True, True, False, False]


def test_a_queue_around_the_target_does_not_flap() -> None:
    throttle = Throttle()
    verdicts = [
        throttle.refusal_seconds(behind(1500 + (100 if i % 2 else -100)), 0.5, TARGET) is None
        for i in range(40)
    ]
    assert sum(one != other for one, other in pairwise(verdicts)) == 1


@given(st.floats(0, 1e12), st.integers(1, 10**6), st.floats(0, 1.9))
def test_a_quiet_tenant_is_never_refused_for_a_noisy_ones_backlog(
    noisy: float, tenants: int, first_token: float
) -> None:
    forecast = behind(0, queued=noisy, weights=tenants)
    assert Throttle().refusal_seconds(forecast, first_token, TARGET) is None


def test_it_is_refused_for_what_its_tier_yields() -> None:
    above = TierLoad(2, queued=5000)
    forecast = predict(0, 1, TIER, [above], RATE, weighted=False)
    assert Throttle().refusal_seconds(forecast, 0.5, TARGET) == 4


def test_a_prompt_too_long_for_the_target_is_not_refused_for_that() -> None:
    throttle = Throttle()
    assert throttle.refusal_seconds(NO_WAIT, 60.0, TARGET) is None
    # It is judged by the backlog, at the same ratios.
    assert throttle.refusal_seconds(behind(15_001), 60.0, TARGET) == 16
    assert throttle.refusal_seconds(behind(100), 60.0, TARGET) == 1
    assert throttle.refusal_seconds(NO_WAIT, 60.0, TARGET) is None


def test_retry_after_does_not_ask_for_less_than_no_wait() -> None:
    """Three tenths of all lengths in tenths of a second are less than 0.8 of themselves / 0.8."""
    for tenths in range(1, 300):
        prefill = tenths / 10
        seconds = Throttle().refusal_seconds(behind(1000 * prefill), prefill, 0.001)
        assert seconds == max(1, ceil(prefill))


def test_nobody_is_refused_who_would_not_wait() -> None:
    for tenths in range(1, 2000):
        throttle = Throttle()
        throttle.refusing = True
        assert throttle.refusal_seconds(NO_WAIT, tenths / 10, TARGET) is None


loads = st.builds(
    TierLoad,
    st.integers(0, 3),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([1.0, 0.5]),
    st.floats(0, 1e5),
    st.floats(1, 50),
    st.floats(0, 1e4),
)


@given(
    st.floats(0, 1e5),
    st.lists(loads, min_size=1, max_size=4),
    st.floats(0.01, 30),
    st.floats(0.1, 20),
    st.booleans(),
)
def test_retry_after_is_true_and_the_least(
    own: float, tiers: list[TierLoad], first_token: float, target: float, weighted: bool
) -> None:
    throttle = Throttle()
    forecast = predict(own, 1, tiers[0], tiers[1:], RATE, weighted)
    seconds = throttle.refusal_seconds(forecast, first_token, target)
    judged = max(target, first_token / ACCEPT_BELOW)
    assert (seconds is not None) == (
        forecast.seconds() > 0 and forecast.seconds() + first_token > REFUSE_ABOVE * judged
    )
    if seconds is None:
        return
    room = max(ACCEPT_BELOW * judged - first_token, 0.0)
    assert 1 <= seconds <= MAX_RETRY_SECONDS
    if seconds < MAX_RETRY_SECONDS:
        assert forecast.seconds(seconds) <= room
    if seconds > 1:
        others_go_on = min(forecast.seconds() - room, MEMORY_SECONDS)
        assert forecast.seconds(seconds - 1) > room or seconds - 1 < others_go_on
        assert seconds + 1e-5 >= others_go_on


def test_who_is_starved_from_above_is_not_told_to_come_back_at_once() -> None:
    """Little waits above, but as much is sent there as the engine takes, or nearly."""
    for sent, expected in ((RATE, MEMORY_SECONDS), (0.9 * RATE, 4)):
        above = TierLoad(2, queued=500, offered_per_second=sent)
        forecast = predict(0, 1, TIER, [above], RATE, weighted=False)
        assert forecast.seconds(1) == 0, "if nobody sent anything it would pass in a second"
        assert Throttle().refusal_seconds(forecast, 0.5, TARGET) == expected
