"""How a process of the data plane goes, on a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest
from tidegate_sidecar.departure import Departure
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.settings import parse_settings

FLAGS = ["--policy=a", "--keys=b", "--engine=uds:/x"]


class _Clock:
    """What a departure asks of an event loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self._calls: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: object) -> None:
        self._calls.append((when, call))

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        due = [call for when, call in self._calls if when <= self.now]
        self._calls = [(when, call) for when, call in self._calls if when > self.now]
        for call in due:
            assert callable(call)
            call()


def departure(seconds: float) -> tuple[Departure, _Clock]:
    clock = _Clock()
    loop: asyncio.AbstractEventLoop = clock  # type: ignore[assignment]
    return Departure(loop, seconds), clock


def test_it_takes_requests_for_a_while_after_it_has_begun() -> None:
    leaving, clock = departure(5.0)
    assert not leaving.told
    leaving.begin()
    clock.pass_seconds(3.0)
    leaving.begin()  # said again, it takes no longer
    assert leaving.begun
    assert leaving.told
    assert not leaving.over
    clock.pass_seconds(2.0)
    assert leaving.over


def test_without_seconds_it_is_over_at_once() -> None:
    leaving, _ = departure(0.0)
    with leaving.announced():
        assert not leaving.told
        leaving.begin()
        assert leaving.over


@pytest.mark.parametrize(("announced_seconds", "left_seconds"), [(2.0, 3.0), (5.0, 0.0)])
def test_the_time_since_its_announcement_counts(
    announced_seconds: float, left_seconds: float
) -> None:
    leaving, clock = departure(5.0)
    with leaving.announced():
        clock.pass_seconds(announced_seconds)
        assert leaving.told
        assert not leaving.begun
        leaving.begin()
    assert leaving.over is (left_seconds == 0)
    clock.pass_seconds(left_seconds)
    assert leaving.over


def test_an_announcement_that_came_to_nothing_does_not_count() -> None:
    leaving, clock = departure(5.0)
    with leaving.announced():
        clock.pass_seconds(10.0)
    assert not leaving.told
    leaving.begin()
    assert not leaving.over


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ([], 5.0),
        (["--drain-seconds=120", "--leaving-seconds=9"], 9.0),
        (["--drain-seconds=4"], 1.0),
        (["--drain-seconds=0"], 0.0),
    ],
)
def test_leaving_is_a_part_of_the_drain(flags: list[str], seconds: float) -> None:
    assert parse_settings([*FLAGS, *flags], {}).leaving_in_force_seconds == seconds


def test_less_than_no_time_to_leave_is_refused() -> None:
    with pytest.raises(SettingsError, match="leaving_seconds"):
        parse_settings([*FLAGS, "--leaving-seconds=-1"], {})
