"""Report math on samples made by hand."""

import random

import pytest

from tidegate.load import Sample, SampleState, build_report
from tidegate.load.report import served_tokens, waited_seconds
from tidegate.load.tables import notes, output_console, print_report
from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    LengthDistribution,
    LengthShape,
    LoadReport,
    Scenario,
    TenantLoad,
    dumps,
    loads,
)

CONSTANT = LengthDistribution(LengthShape.CONSTANT, value=8)
OK, REFUSED = SampleState.OK, SampleState.REFUSED
FAILED, UNFINISHED = SampleState.FAILED, SampleState.UNFINISHED


def scenario(duration: float = 10.0) -> Scenario:
    def tenant(name: str, tier: str) -> TenantLoad:
        arrival = Arrival(ArrivalProcess.POISSON, rate_per_second=1.0)
        return TenantLoad(name, arrival, tier, prompt_tokens=CONSTANT, output_tokens=CONSTANT)

    return Scenario(
        version=SCENARIO_VERSION,
        name="[red]hand-made",
        model="m",
        duration_seconds=duration,
        tenants=(tenant("a", "T0"), tenant("b", "T1"), tenant("c", "T1")),
    )


def sample(
    tenant: str = "a",
    *,
    scheduled: float | None = 0.0,
    sent: float | None = 0.0,
    first: float | None = 1.0,
    ended: float = 2.0,
    state: SampleState = OK,
    reason: str = "",
    tokens: tuple[int, int] = (100, 10),
    stream: bool = True,
) -> Sample:
    made = Sample(tenant, 0, scheduled, tokens[0], stream, sent=sent, first_token=first)
    made.output_tokens = tokens[1]
    made.end(state, ended, reason)
    return made


def report(*samples: Sample, duration: float = 10.0, loop_lag: float = 0.0) -> LoadReport:
    return build_report(
        scenario(duration),
        samples,
        started_at=1.0,
        complete=True,
        loop_lag_p99_seconds=loop_lag,
    )


def test_latency_runs_from_the_intended_time_not_from_a_late_send() -> None:
    late = sample(scheduled=1.0, sent=4.0, first=5.0, ended=6.0)
    figures = report(late).tenants[0].figures
    assert figures.ttft_seconds is not None
    assert figures.e2e_seconds is not None
    assert (figures.ttft_seconds.p50, figures.e2e_seconds.p50) == (4.0, 5.0)


def test_latency_of_a_closed_loop_runs_from_the_send() -> None:
    assert waited_seconds(sample(scheduled=None, sent=4.0, first=5.0, ended=6.0)) == 1.0


def test_a_starved_request_shows_in_the_longest_wait() -> None:
    starved = sample(scheduled=1.0, first=None, ended=9.0, state=UNFINISHED)
    figures = report(sample(), starved).tenants[0].figures
    assert figures.longest_wait_seconds == 8.0
    assert figures.ttft_seconds is not None
    assert figures.ttft_seconds.max == 1.0


@pytest.mark.parametrize(
    ("until", "expected"), [(0.5, 0.0), (1.0, 100.0), (1.5, 105.0), (2.0, 110.0), (9.0, 110.0)]
)
def test_a_prompt_is_served_at_the_first_token_and_output_evenly_after(
    until: float, expected: float
) -> None:
    assert served_tokens(sample(), until) == expected


def test_without_a_stream_all_is_served_at_the_end_and_only_if_it_ended_well() -> None:
    assert served_tokens(sample(first=None, stream=False), 1.9) == 0.0
    assert served_tokens(sample(first=None, stream=False), 2.0) == 110.0
    assert served_tokens(sample(first=None, state=FAILED), 2.0) == 0.0


def test_shares_and_rates_are_of_the_window() -> None:
    after = sample("b", scheduled=9.0, first=11.0, ended=12.0)
    made = report(sample(), sample("b", tokens=(300, 30)), after)
    a, b, c = (tenant.figures for tenant in made.tenants)
    assert made.window_seconds == 10.0
    assert made.wall_seconds == 12.0
    assert (a.share, b.share, c.share) == (0.25, 0.75, 0.0)
    assert a.tokens_per_second == pytest.approx(11.0)
    assert (b.prompt_tokens, b.output_tokens) == (400, 40)


def test_what_ended_each_way_is_counted_once_and_tiers_are_sums() -> None:
    draw = random.Random(3)
    states = [OK, REFUSED, FAILED, UNFINISHED]
    samples = [
        sample(
            draw.choice("abc"),
            state=(state := draw.choice(states)),
            reason=draw.choice(["x", "y"]) if state in (REFUSED, FAILED) else "",
            first=1.0 if state is OK else None,
        )
        for _ in range(500)
    ]
    made = report(*samples)
    groups = [g.figures for g in (*made.tenants, *made.tiers)] + [made.total]
    for figures in groups:
        ended = sum(figures.refused.values()) + sum(figures.failed.values())
        assert figures.sent == figures.ok + ended + figures.unfinished
    tiers = {tier.name: tier.figures for tier in made.tiers}
    assert list(tiers) == ["T0", "T1"]
    assert tiers["T1"].sent == made.tenants[1].figures.sent + made.tenants[2].figures.sent
    assert made.total.sent == 500
    assert sum(tenant.figures.share for tenant in made.tenants) == pytest.approx(1.0)


def test_a_request_that_ends_twice_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended twice"):
        sample().end(FAILED, 3.0)


def test_a_client_that_is_late_says_so() -> None:
    on_time = [sample(scheduled=0.0, sent=0.001) for _ in range(50)]
    assert not report(*on_time).client.saturated
    late = [sample(scheduled=0.0, sent=0.5) for _ in range(2)]
    made = report(*on_time, *late)
    assert (made.client.late_sends, made.client.saturated) == (2, True)
    assert any("WARNING" in line for line in notes(made))
    assert report(*on_time, loop_lag=0.2).client.saturated
    unimportant = [sample(scheduled=0.0, sent=0.5, first=59.0, ended=60.0) for _ in range(50)]
    assert not report(*unimportant).client.saturated


def test_a_closed_loop_beside_it_does_not_hide_a_late_open_loop() -> None:
    closed = [sample("b", scheduled=None, sent=0.0) for _ in range(1000)]
    late = [sample(scheduled=0.0, sent=0.5) for _ in range(5)]
    assert report(*closed, *late).client.saturated
    assert not report(*closed).client.saturated


def test_the_report_is_json_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    made = report(sample(), sample("b", state=REFUSED, reason="rejected-queue-full", first=None))
    assert loads(LoadReport, dumps(made)) == made
    print_report(made, output_console())
    shown = capsys.readouterr().out
    assert "[red]hand-made" in shown
    assert "b: 1 refused: rejected-queue-full" in shown


def test_no_sample_at_all_is_a_report_too() -> None:
    made = report()
    assert (made.total.sent, made.total.share, made.wall_seconds) == (0, 0.0, 0.0)
    print_report(made, output_console())
