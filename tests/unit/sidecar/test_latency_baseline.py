"""When a tier counts as slow: against the median of its own last hour, for half a minute."""

from __future__ import annotations

import pytest
from tidegate_sidecar.latency_baseline import SLICE_SECONDS, LatencyBaseline


class Hour:
    """A tier driven slice by slice: so many first tokens in each, all but a few at one latency."""

    def __init__(self) -> None:
        self.baseline = LatencyBaseline(0.0)
        self.now = 0.0
        self.slow: list[float] = []

    def run(self, seconds: float, ttft: float, requests: int = 20, outliers: int = 0) -> None:
        end = self.now + seconds
        while self.now < end:
            for number in range(requests):
                self.baseline.observe("t0", 10 * ttft if number < outliers else ttft)
            self.now += SLICE_SECONDS
            if self.baseline.tick(self.now):
                self.slow.append(self.now)


def test_three_times_the_median_for_half_a_minute_is_told_once() -> None:
    hour = Hour()
    hour.run(600, 0.2)
    assert hour.baseline.ratio("t0") == pytest.approx(1.0)
    began = hour.now
    hour.run(120, 0.9)
    (told,) = hour.slow
    assert told - began == pytest.approx(30.0, abs=SLICE_SECONDS)
    assert hour.baseline.ratio("t0") == pytest.approx(4.5, rel=0.06)
    hour.run(120, 0.2)
    hour.run(60, 0.9)
    assert len(hour.slow) == 2  # over, and slow again


@pytest.mark.parametrize(
    ("ttft", "outliers"),
    [pytest.param(0.2, 1, id="one in 200 is late"), pytest.param(0.5, 0, id="2.5 times is not 3")],
)
def test_what_is_not_slow(ttft: float, outliers: int) -> None:
    hour = Hour()
    hour.run(600, 0.2)
    hour.run(300, ttft, requests=200, outliers=outliers)
    assert hour.slow == []


def test_what_is_slow_for_a_quarter_hour_is_not_the_baseline_what_is_for_an_hour_is() -> None:
    hour = Hour()
    hour.run(2_400, 0.2)
    hour.run(900, 1.0)
    assert hour.baseline.ratio("t0") == pytest.approx(5.0, rel=0.06)
    hour.run(3_600, 1.0)
    assert hour.baseline.ratio("t0") == pytest.approx(1.0)


def test_few_requests_make_no_baseline_and_one_makes_no_p99() -> None:
    quiet = Hour()
    quiet.run(1_200, 0.2, requests=8)  # 96 in 60 s
    quiet.run(120, 2.0, requests=8)
    assert (quiet.slow, quiet.baseline.ratio("t0")) == ([], 0.0)
    hour = Hour()
    hour.run(600, 0.2)
    for _ in range(12):  # one late request each minute, of 24
        hour.run(5, 0.2, requests=2, outliers=1)
        hour.run(55, 0.2, requests=2)
    assert hour.slow == []
    hour.run(60, 0.2, requests=2, outliers=1)  # but one in two is not one alone
    assert len(hour.slow) == 1


def test_tiers_are_apart_and_go_with_the_policy() -> None:
    hour = Hour()
    hour.run(120, 0.2)
    hour.baseline.observe("t1", 9.0)
    assert hour.baseline.ratio("t1") == 0.0
    hour.baseline.keep_tiers(["t1"])
    assert hour.baseline.ratio("t0") == 0.0


def test_a_machine_that_slept_begins_anew() -> None:
    hour = Hour()
    hour.run(600, 0.2)
    hour.now += 3_600
    assert hour.baseline.tick(hour.now) == []
    hour.run(60, 0.9)
    assert hour.slow == []  # there is no baseline yet
