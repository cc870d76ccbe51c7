"""The scheduler of a host that reports steps: EngineTime for tiers and tenants, finish times."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import (
    BetweenTiers,
    EngineLimits,
    PrefillLimits,
    SloMetric,
    SloObjective,
)
from tidegate.scheduling.engine_time import EnginePace, RequestStep
from tidegate.scheduling.entrance import Entrance
from tidegate.scheduling.finish_time import SkewCause
from tidegate.scheduling.occupant import Occupant
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.places import Places
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.step_time_fit import StepWork, decode_work, prefill_work


class Engine:
    """So many requests at once; a step prefills whole prompts and decodes the rest."""

    def __init__(self, scheduler: Scheduler, seats: int) -> None:
        self.scheduler, self.seats = scheduler, seats
        self.now = 0.0
        self.outputs: dict[str, int] = {}
        """By id: tokens that it will produce."""
        self.running: dict[str, tuple[Request, int]] = {}
        """By id: how much it has produced."""
        self.cause: str | None = None
        """Set: half of every prompt is computed twice, because of this tier."""
        self.pace = EnginePace(8192)
        self.used: Counter[str] = Counter()
        """Engine seconds by tenant."""
        self.busy_seconds = 0.0

    def submit(self, request: Request, output: int) -> Request:
        self.outputs[request.id] = output
        assert self.scheduler.submit(request, self.now) is None
        return request

    def step(self, seconds_per_step: float = 0.02) -> None:
        while len(self.running) < self.seats:
            request = self.scheduler.next(self.now)
            if request is None:
                break
            self.running[request.id] = (request, 0)
        rows, seconds = [], seconds_per_step
        for request, produced in self.running.values():
            prompt = request.prompt_tokens
            if produced:
                rows.append(RequestStep(request.id, decode_work(prompt + produced)))
                continue
            work = prefill_work(prompt, 0)
            again = prefill_work(prompt // 2, 0) if self.cause else StepWork()
            seconds += (work.tokens + again.tokens) * 4e-5
            rows.append(RequestStep(request.id, work, again, self.cause))
        self.now += seconds
        self._book(rows, seconds)
        for request, produced in list(self.running.values()):
            self.scheduler.progress(request.id, 1, self.now)
            self.running[request.id] = (request, produced + 1)
            if produced + 1 == self.outputs[request.id]:
                del self.running[request.id]
                usage = Usage(request.prompt_tokens, produced + 1, 0, produced)
                self.scheduler.finish(request.id, usage, self.now)

    def _book(self, rows: list[RequestStep], seconds: float) -> None:
        self.busy_seconds += seconds
        self.scheduler.step(seconds, rows)
        charges = self.pace.observe_rows(rows, seconds)
        for request_id, each in charges.by_request.items():
            self.used[self.running[request_id][0].tenant] += each
        for cause, each in charges.by_cause.items():
            self.used[cause] += each


def backlogged(
    build: SimpleNamespace, tiers: list[Any], tenants: dict[str, Any], **fields: Any
) -> Engine:
    """An engine; of each tenant 400 requests wait, long prompts of ``p...``, long outputs else."""
    policy = build.policy(tiers, tenants, **fields)
    engine = Engine(Scheduler(policy, 0.0, timed=True), seats=8)
    for i in range(400):
        for name in tenants:
            prompt, output = (4000, 2) if name.startswith("p") else (50, 60)
            engine.submit(build.request(f"{name}{i}", name, prompt, output), output)
    return engine


def test_tenants_share_engine_time_whatever_they_ask_of_it(build: SimpleNamespace) -> None:
    tier = build.tier(unit="EngineTime", quantum=100)
    engine = backlogged(build, [tier], {"prefills": {}, "decodes": {"weight": 2}})
    for _ in range(1000):
        engine.step()
    assert engine.scheduler.queued() > 200
    assert engine.used["decodes"] == pytest.approx(2 * engine.used["prefills"], rel=0.06)
    assert sum(engine.used.values()) == pytest.approx(engine.busy_seconds)


@pytest.mark.parametrize("unit", ["Requests", "Tokens", "EngineTime"])
def test_tiers_share_engine_time_whatever_the_unit_of_their_tenants(
    build: SimpleNamespace, unit: str
) -> None:
    tiers = [build.tier("p", unit, weight=1), build.tier("d", unit, weight=3)]
    tenants = {"prefills": "p", "decodes": "d"}
    engine = backlogged(build, tiers, tenants, between_tiers=BetweenTiers.WEIGHTED)
    for _ in range(1000):
        engine.step()
    assert engine.scheduler.queued() > 200
    assert engine.used["decodes"] == pytest.approx(3 * engine.used["prefills"], rel=0.08)


def test_a_reservation_is_of_engine_time(build: SimpleNamespace) -> None:
    tiers = [build.tier("high", priority=9), build.tier("low", reserved_percent=25)]
    engine = backlogged(build, tiers, {"decodes": "high", "prefills": "low"})
    for _ in range(1000):
        engine.step()
    assert engine.used["prefills"] == pytest.approx(0.25 * engine.busy_seconds, rel=0.08)


def test_a_tier_pays_for_what_others_compute_again_because_of_it(build: SimpleNamespace) -> None:
    tiers = [build.tier("p", weight=1), build.tier("d", weight=1)]
    tenants = {"prefills": "p", "decodes": "d"}
    engine = backlogged(build, tiers, tenants, between_tiers=BetweenTiers.WEIGHTED)
    engine.cause = "d"
    for _ in range(300):
        engine.step()
    assert engine.scheduler.queued() > 200
    # What the prompts of one tier cost once more is so much less for the other itself.
    assert engine.used["d"] > 0.1 * engine.busy_seconds
    theirs = engine.used["decodes"] + engine.used["d"]
    assert engine.used["prefills"] == pytest.approx(theirs, rel=0.1)


def measured(build: SimpleNamespace) -> Engine:
    """One tenant's requests of 100 + 50 tokens have run, some always waiting, a step in 20 ms."""
    engine = Engine(Scheduler(build.policy(tenants={"a": {}}), 0.0, timed=True), seats=4)
    sent = 0
    while sent < 120 or engine.scheduler.queued() or engine.running:
        while sent < 120 and engine.scheduler.queued() < 4:
            engine.submit(build.request(f"past{sent}", "a", 100, 500), 50)
            sent += 1
        engine.step()
    return engine


def test_est_finish_is_what_comes_true_and_nothing_is_flagged(build: SimpleNamespace) -> None:
    engine = measured(build)
    requests = [engine.submit(build.request(f"a{i}", "a", 100, 500), 50) for i in range(8)]
    sent = engine.now
    standings = [engine.scheduler.standings.of_request(r.id, sent) for r in requests]
    at_arrival = [sent + s.finishes_in_seconds for s in standings if s and s.finishes_in_seconds]
    assert len(at_arrival) < len(requests), "who waits for the engine alone is told no time"
    while engine.running or engine.scheduler.queued():
        engine.step()
    for request in requests[:4]:
        forecast = request.forecast
        assert forecast is not None
        assert forecast.est_finish is not None
        finished = engine.now / 2 + request.arrival / 2
        assert forecast.est_finish == pytest.approx(finished, abs=0.15)
        assert forecast.skew is not None
        assert abs(forecast.skew.ratio) < 0.2
    # The second four wait for the first.
    last = requests[-1].forecast
    assert last is not None
    assert last.est_finish == pytest.approx(engine.now, abs=0.15)
    assert at_arrival[-1] > sent + 1.2
    assert not any(request.forecast.skew.cause for request in requests)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("output", "seconds_per_step", "cause"),
    [
        pytest.param(200, 0.02, SkewCause.OUTPUT, id="longer than nine of ten"),
        pytest.param(50, 0.05, SkewCause.PACE, id="slower steps"),
    ],
)
def test_what_is_late_is_flagged_with_its_cause(
    build: SimpleNamespace, output: int, seconds_per_step: float, cause: SkewCause
) -> None:
    engine = measured(build)
    request = engine.submit(build.request("late", "a", 100, 500), output)
    while request.id not in engine.running:
        engine.step(seconds_per_step)
    while engine.running:
        engine.step(seconds_per_step)
    assert request.forecast is not None
    assert request.forecast.skew is not None
    assert request.forecast.skew.cause is cause


def test_first_tokens_are_expected_at_the_prefill_budget_of_the_plug_in(
    build: SimpleNamespace,
) -> None:
    fields = {"engine": EngineLimits(max_num_batched_tokens=8192)}
    for limits, plugin, budget in (
        (PrefillLimits(), True, 2457),
        (PrefillLimits(tokens_per_step=1000), True, 1000),
        (PrefillLimits(tokens_per_step=10_000), True, 8192),
        (PrefillLimits(), False, 8192),
    ):
        policy = build.policy(tenants={"a": {}}, prefill=limits, **fields)
        scheduler = Scheduler(policy, 0.0, timed=True)
        places: Places[Occupant] = Places()
        entrance = Entrance(scheduler, places, policy, plugin=plugin)
        pace = scheduler.pace
        assert (pace.step_tokens, pace.budget_tokens) == (8192, budget)
        scheduler.apply_policy(policy, 1.0)
        entrance.apply_policy(policy)
        assert (pace.step_tokens, pace.budget_tokens) == (8192, budget)


def test_without_steps_nothing_is_estimated(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy(tenants={"a": {}}), 0.0)
    request = build.request("a0", "a")
    assert scheduler.submit(request, 0.0) is None
    assert scheduler.next(0.0) is request
    scheduler.finish("a0", Usage(100, 100), 1.0)
    assert request.forecast is None
    with pytest.raises(ValueError, match="not timed"):
        scheduler.step(0.02, [RequestStep("a0", decode_work(1))])


def test_a_step_told_after_an_end_is_still_charged_to_who_was_in_it(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy(tenants={"a": {}, "b": {}}), 0.0, timed=True)
    for name in "ab":
        assert scheduler.submit(build.request(name, name, 100, 50), 0.0) is None
        assert scheduler.next(0.0) is not None
        scheduler.progress(name, 1, 0.02)
    scheduler.step(0.02, [RequestStep(name, prefill_work(100, 0)) for name in "ab"])
    scheduler.finish("a", Usage(100, 2), 0.04)
    for _ in range(2):  # of the second step it was no part: it had ended before the first was told
        scheduler.step(0.02, [RequestStep(name, decode_work(101)) for name in "ab"])
    a, b = scheduler.tenant_snapshots(0.1)
    assert a.engine_ms_total == pytest.approx(10 + 10)
    assert b.engine_ms_total == pytest.approx(10 + 10 + 10)
    (tier,) = scheduler.tier_snapshots()
    assert tier.engine_ms_total == pytest.approx(50)


def test_what_nothing_is_learned_from_is_charged_all_the_same(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy(tenants={"a": {}}), 0.0, timed=True)
    assert scheduler.submit(build.request("a", "a", 100, 50), 0.0) is None
    assert scheduler.next(0.0) is not None
    scheduler.step(2.0, [RequestStep("a", prefill_work(100, 0))], learn=False)
    assert not scheduler.pace.is_measured
    assert scheduler.tenant_snapshots(0.1)[0].engine_ms_total == pytest.approx(2000)


def test_what_was_guessed_before_the_first_step_makes_no_forecast_blind(
    build: SimpleNamespace,
) -> None:
    # An engine a hundred times as fast as the prior: in its costs four requests were a second.
    tier = build.tier(slo_objectives=(SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.1),))
    engine = Engine(Scheduler(build.policy([tier], {"a": {}}), 0.0, timed=True), seats=4)
    for i in range(80):
        engine.submit(build.request(f"early{i}", "a", 30, 20), 20)
    while engine.running or engine.scheduler.queued():
        engine.step(0.0002)
    refused = 0
    for i in range(400):
        engine.outputs[f"late{i}"] = 20
        request = build.request(f"late{i}", "a", 30, 20)
        refused += engine.scheduler.submit(request, engine.now) is Outcome.THROTTLED
    assert refused > 100  # each four take 4 ms, so some hundred may wait
