"""Steps are learned with their own time: gaps between outputs, no idle time and no round trip."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.step_time_fit import StepTimeFit, StepWork
from tidegate.vllm_plugin import step_times
from tidegate.vllm_plugin.step_times import LEARN_ALL, LEARN_EVERY, StepTimes

PROMPT = 1_000


class Engine:
    """Requests of ``PROMPT`` tokens, by name, and a clock."""

    def __init__(self) -> None:
        self.now = 50.0
        self.requests: dict[str, Any] = {}
        self.running: list[str] = []
        scheduler: Any = self
        self.times = StepTimes(scheduler, self.now)

    def schedule(self, **tokens: int) -> Any:
        """A step of so many tokens, by request."""
        self.times.begins(self.now)
        for name, count in tokens.items():
            one = self.requests.setdefault(
                name, SimpleNamespace(num_computed_tokens=0, _all_token_ids=[0] * PROMPT)
            )
            one.num_computed_tokens += count
        self.running = [*self.requests]
        output: Any = SimpleNamespace(num_scheduled_tokens=tokens)
        self.times.scheduled(output)
        return output

    def after(self, seconds: float, output: Any) -> None:
        """The output is back."""
        self.now += seconds
        self.times.returned(output, self.now)
        for one in self.requests.values():
            if one.num_computed_tokens >= len(one._all_token_ids):
                one._all_token_ids.append(0)

    def seconds(self, **tokens: int) -> float:
        """What the fit says of one step from empty contexts; before the first: an error."""
        assert self.times.model is not None
        total = sum(tokens.values())
        return self.times.model.seconds(total, 0, total * total / 2)


Told = list[tuple[StepWork, float]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the fit is told."""
    steps: Told = []

    class Fit(StepTimeFit):
        def observe(self, work: StepWork, seconds: float) -> None:
            steps.append((work, seconds))
            super().observe(work, seconds)

    monkeypatch.setattr(step_times, "StepTimeFit", Fit)
    return steps


def times_of(told: Told) -> list[float]:
    return [round(seconds, 6) for _, seconds in told]


def test_no_model_before_a_step_is_measured(told: Told) -> None:
    engine = Engine()
    output = engine.schedule(a=600)
    assert engine.times.model is None
    engine.after(0.0, output)  # a clock that did not move
    assert engine.times.model is None
    engine.after(0.03, engine.schedule(a=400))
    assert engine.times.model is not None
    assert engine.times.model.seconds(400, 0, 400 * (600 + 200)) == pytest.approx(0.03)


def test_one_step_after_the_other_the_time_between_counts_too(told: Told) -> None:
    engine = Engine()
    engine.after(0.05, engine.schedule(a=PROMPT))
    for _ in range(3):
        engine.now += 0.002
        engine.after(0.01, engine.schedule(a=1))
    assert times_of(told) == [0.05, 0.012, 0.012, 0.012]


def test_two_in_flight_are_told_by_the_gap_not_by_the_round_trip(told: Told) -> None:
    engine = Engine()
    before = engine.schedule(a=PROMPT)
    engine.now += 0.001
    for _ in range(4):
        coming = engine.schedule(a=1)
        engine.after(0.02, before)
        before = coming
    assert times_of(told) == [0.021, 0.02, 0.02, 0.02]


def test_an_idle_time_and_a_step_of_nothing_are_nobodys(told: Told) -> None:
    engine = Engine()
    engine.after(0.05, engine.schedule(a=PROMPT))
    engine.running.clear()
    engine.requests.clear()
    engine.now += 3_600
    engine.after(0.05, engine.schedule(b=PROMPT))
    engine.after(10.0, engine.schedule())  # paused, say, and had an output all the same
    engine.after(0.01, engine.schedule(b=1))
    assert times_of(told) == [0.05, 0.05, 0.01]


def test_what_is_lost_is_not_learned_nor_charged_to_the_next(told: Told) -> None:
    engine = Engine()
    engine.after(0.05, engine.schedule(a=PROMPT))
    engine.schedule(a=1)
    engine.after(0.01, engine.schedule(a=1))
    engine.after(0.3, SimpleNamespace(num_scheduled_tokens={"a": 1}))  # not one of ours
    engine.after(0.01, engine.schedule(a=1))
    assert times_of(told) == [0.05, 0.01, 0.01]
    for _ in range(100):
        engine.schedule(a=1)  # and none comes back
    assert len(engine.times._in_flight) <= 16


def test_the_work_is_as_the_planner_counts_it(told: Told) -> None:
    engine = Engine()
    engine.after(0.05, engine.schedule(a=PROMPT))
    engine.after(0.05, engine.schedule(a=1, b=300))
    engine.after(0.05, engine.schedule(a=4, b=200))  # three drafts
    works = [work for work, _ in told]
    assert works[0] == StepWork(PROMPT, PROMPT * PROMPT / 2)
    assert works[1] == StepWork(301, 300 * 150, kv_tokens_read=PROMPT + 1)
    assert works[2] == StepWork(204, 200 * (300 + 100), kv_tokens_read=PROMPT + 2)


def test_once_known_one_of_a_few_is_learned_and_what_changes_is_followed(told: Told) -> None:
    engine = Engine()
    for _ in range(LEARN_ALL):
        engine.after(0.05, engine.schedule(a=PROMPT))
        engine.requests.clear()
    assert len(told) == LEARN_ALL
    assert engine.seconds(a=PROMPT) == pytest.approx(0.05, rel=0.01)
    for _ in range(LEARN_EVERY * 40):
        engine.after(0.1, engine.schedule(a=PROMPT))
        engine.requests.clear()
    assert len(told) == LEARN_ALL + 40
    assert engine.seconds(a=PROMPT) == pytest.approx(0.1, rel=0.1)


def test_it_is_of_its_engine_whatever_the_prior_says(told: Told) -> None:
    """An engine whose tokens cost thirty times the prior's, and its steps a third."""

    def seconds(tokens: Mapping[str, int]) -> float:
        return 0.004 + 1.2e-3 * sum(tokens.values())

    engine = Engine()
    for number in range(60):
        tokens = {"a": (1, 16, 64, 256)[number % 4]}
        engine.requests.clear()
        engine.after(seconds(tokens), engine.schedule(**tokens))
    for count in (8, 100, 200):
        assert engine.seconds(a=count) == pytest.approx(seconds({"a": count}), rel=0.1)
