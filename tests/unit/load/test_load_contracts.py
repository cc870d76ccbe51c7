"""The example documents of the load contracts, and that both sides agree with them."""

from pathlib import Path

from tidegate.load import Sample, SampleState, build_report
from tidegate.scheduling.contracts import LoadReport, Scenario, dumps, loads
from tidegate.workload import Workload

EXAMPLES = Path(__file__).parents[2] / "contracts"


def test_the_example_scenario_is_read_and_gives_requests() -> None:
    text = (EXAMPLES / "scenario.json").read_text()
    scenario = loads(Scenario, text)
    assert dumps(loads(Scenario, dumps(scenario))) == dumps(scenario)
    steady, burst = scenario.tenants
    assert len(list(Workload(scenario).requests(steady))) == 20
    assert len(list(Workload(scenario).requests(burst))) == 3


def test_the_example_report_is_what_these_samples_give() -> None:
    scenario = loads(Scenario, (EXAMPLES / "scenario.json").read_text())
    answered = Sample("steady", 0, 0.0, 100, True, sent=0.25, first_token=0.5, output_tokens=20)
    answered.end(SampleState.OK, 1.5)
    refused = Sample("burst", 0, 1.0, 8, False, sent=1.0)
    refused.end(SampleState.REFUSED, 1.25, "rejected-queue-full")
    report = build_report(
        scenario,
        [answered, refused],
        started_at=1700000000.0,
        complete=True,
        loop_lag_p99_seconds=0.004,
    )
    assert report == loads(LoadReport, (EXAMPLES / "load_report.json").read_text())
