"""The report of a run: sums, windows, gaps, and that its JSON is read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidegate.scheduling.contracts import (
    ModelPolicy,
    Policy,
    TenantPolicy,
    TierPolicy,
    dumps,
    loads,
)
from tidegate.scheduling.contracts.limits import SloMetric, SloObjective
from tidegate.scheduling.contracts.simulation_report import PolicyRun, SimulationReport
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.report.build import Promises, Run, Setting, build_report, policy_run
from tidegate.simulator.simulation.result import RequestRecord, SimulationResult

MakeRecord = Callable[..., RequestRecord]
MakeResult = Callable[..., SimulationResult]
ROOT = Path(__file__).resolve().parents[4]
SETTING = Setting("test", measured_until=100.0)


@pytest.fixture
def judged(
    result: MakeResult, step_time: StepTimeModel
) -> Callable[[Sequence[RequestRecord], Promises], PolicyRun]:
    return lambda records, promises: policy_run(Run(result(records), promises, step_time), SETTING)


def test_a_tier_is_the_sum_of_its_tenants(
    answered: MakeRecord, refused: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    records = [
        answered("T0", "b", 1, 1, 10),
        answered("T1", "c", 2, 1, 10),
        answered("T0", "a", 3, 2, 10),
        refused("T0", "a", 4),
    ]
    run = policy_run(Run(result(records), Promises(), step_time), SETTING)
    assert [(row.tier, row.name) for row in run.tenants] == [("T0", "a"), ("T0", "b"), ("T1", "c")]
    t0, t1 = run.tiers
    assert (t0.figures.sent, t0.figures.ok, t0.figures.refused) == (3, 2, {"queue_full": 1})
    assert sum(tier.figures.share for tier in run.tiers) == pytest.approx(1.0)
    assert sum(row.figures.share for row in run.tenants) == pytest.approx(1.0)
    assert t0.figures.share == pytest.approx(2 * t1.figures.share)
    assert run.total.sent == 4
    assert run.total.share == pytest.approx(1.0)
    assert run.total.tokens_per_second == pytest.approx(3 * 111 / 100)


def test_a_tier_that_nothing_was_sent_to_is_listed(
    answered: MakeRecord, judged: Callable[..., PolicyRun]
) -> None:
    run = judged([answered("T0", "a", 1, 1, 1)], Promises())
    assert [tier.name for tier in run.tiers] == ["T0", "T1"]
    assert run.tiers[1].figures.sent == 0


def test_a_tenant_that_sent_nothing_is_listed(
    answered: MakeRecord, judged: Callable[..., PolicyRun]
) -> None:
    promises = Promises(tiers={"late": "T1", "a": "T0"})
    run = judged([answered("T0", "a", 1, 1, 1)], promises)
    assert [(row.tier, row.name, row.figures.sent) for row in run.tenants] == [
        ("T0", "a", 1), ("T1", "late", 0),
    ]  # fmt: skip
    assert [tier.figures.sent for tier in run.tiers] == [1, 0]


def test_only_the_measured_part_counts(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    records = [answered("T0", "a", at, 1.0, 1.0) for at in (5.0, 10.0, 79.0, 80.0)]
    run = Run(result(records, warmup_seconds=10.0), Promises(), step_time)
    found = policy_run(run, Setting("test", measured_until=80.0))
    assert found.total.sent == 2
    # The one that came at 79 s had its first token when measuring had ended.
    assert found.total.tokens_per_second == pytest.approx(111 / 70)


def test_utilisation_is_of_all_engines(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    run = Run(result([answered("T0", "a", 1, 1, 1)]), Promises(), step_time, engines=2)
    engine = policy_run(run, SETTING).engine
    assert engine.utilisation == pytest.approx(0.25)
    # 111 tokens of 1 ms each, of two times 100 s.
    assert engine.work_utilisation == pytest.approx(0.111 / 200)
    assert engine.prefix_hit_ratio == pytest.approx(0.25)
    assert (engine.steps, engine.preemptions, engine.recomputed_tokens) == (1000, 2, 300)


def test_a_price_is_of_the_time_that_its_calls_took(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    # Sent at once, answered in the 100 s of the run, of which 10 s are measured.
    records = [answered("T0", "a", 0.0, at, 1.0) for at in range(1, 51)]
    run = Run(result(records), Promises(), step_time)
    cost = policy_run(run, Setting("test", 10.0, gpu_hour_price=3600.0)).tiers[0].economics
    assert cost.price_per_1000_calls_used == pytest.approx(1000 * 8 * 50 / 50)
    assert cost.price_per_1000_calls_paid == pytest.approx(1000 * 8 * 100 / 50)


def backlog(make: MakeRecord, tenant: str, first_token: float, prompt_tokens: int) -> RequestRecord:
    return make("T0", tenant, 0.0, first_token, 0.0, prompt_tokens=prompt_tokens, output_tokens=1)


def test_the_gap_is_between_tenants_that_waited_all_the_time(
    answered: MakeRecord, judged: Callable[..., PolicyRun]
) -> None:
    records = [
        backlog(answered, "a", 10.0, 1000),
        backlog(answered, "a", 99.0, 1),
        backlog(answered, "b", 10.0, 400),
        backlog(answered, "b", 99.0, 1),
        answered("T0", "light", 1.0, 0.1, 0.1, prompt_tokens=9),
    ]
    even = judged(records, Promises()).tiers[0].service_gap
    assert (even.windows, even.max_tokens) == (3, 600.0)
    assert even.mean_tokens == pytest.approx(200.0)
    weighted = judged(records, Promises(weights={"a": 5, "b": 2})).tiers[0].service_gap
    assert weighted.max_tokens == 0.0


def test_a_starved_tenant_is_in_the_gap(
    answered: MakeRecord, waiting: MakeRecord, judged: Callable[..., PolicyRun]
) -> None:
    records = [
        backlog(answered, "a", 10.0, 1000),
        backlog(answered, "a", 99.0, 1),
        waiting("T0", "starved", 0.0),
    ]
    assert judged(records, Promises()).tiers[0].service_gap.max_tokens == 1000.0


def test_one_tenant_alone_has_no_gap(
    answered: MakeRecord, judged: Callable[..., PolicyRun]
) -> None:
    gap = judged([backlog(answered, "a", 99.0, 1)], Promises()).tiers[0].service_gap
    assert (gap.windows, gap.max_tokens, gap.mean_tokens) == (0, None, None)


def test_promises_are_those_of_the_policy() -> None:
    objective = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.8, 99.5)
    policy = Policy(
        version=1,
        generation=1,
        pool="p/p",
        model=ModelPolicy("m"),
        tiers=(
            TierPolicy("T0", reserved_percent=70, slo_objectives=(objective,)),
            TierPolicy("T1"),
        ),
        tenants=(TenantPolicy("n/a", "T0", weight=3),),
    )
    promises = Promises.of(policy)
    assert promises.objectives == {"T0": (objective,), "T1": ()}
    assert promises.reserved_percent == {"T0": 70, "T1": 0}
    assert promises.weights == {"n/a": 3}


def test_the_report_is_read_back_from_its_json(
    answered: MakeRecord, waiting: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    objective = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.8, 99.5)
    promises = Promises({"T0": (objective,)}, reserved_percent={"T0": 70})
    records = [answered("T0", "a", 1, 1, 10), waiting("T1", "b", 5)]
    runs = [
        Run(result(records), promises, step_time),
        Run(result(records, policy="fcfs"), Promises(promises.objectives), step_time),
    ]
    report = build_report(runs, Setting("h100", 100.0, 2.5, notes=("a note",)))
    assert loads(SimulationReport, dumps(report)) == report
    assert [run.policy for run in report.runs] == ["tidegate", "fcfs"]
    assert report.runs[0].tiers[0].economics.reserved_percent == 70.0
    assert report.runs[1].tiers[0].economics.reserved_percent == 0.0


def test_the_example_report_is_what_these_requests_give(
    answered: MakeRecord, refused: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    objective = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.8, 99.5)
    promises = Promises({"T0": (objective,)}, reserved_percent={"T0": 70})
    records = [answered("T0", "acme/paid", 1.0, 0.5, 2.0), refused("T1", "acme/free", 5.0)]
    report = build_report([Run(result(records), promises, step_time)], Setting("test", 80.0, 2.0))
    example = ROOT / "tests" / "contracts" / "simulation_report.json"
    assert loads(SimulationReport, example.read_text()) == report


def test_a_report_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a run"):
        build_report([], SETTING)
