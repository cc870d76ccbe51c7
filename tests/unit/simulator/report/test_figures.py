"""Figures of a group of requests: what counts, and that the unhappy count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts.limits import SloMetric, SloObjective
from tidegate.scheduling.contracts.simulation_report import Latencies, SimulatedFigures
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.report.figures import (
    Window,
    group_figures,
    latencies,
    meets,
    served_tokens,
)
from tidegate.simulator.simulation.result import RequestRecord

MakeRecord = Callable[..., RequestRecord]
WINDOW = Window(0.0, 100.0)
TTFT = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 1.0, 90.0)
E2E = SloObjective(SloMetric.END_TO_END, 5.0, 90.0)
ITL = SloObjective(SloMetric.INTER_TOKEN_LATENCY, 0.1, 90.0)


def figures(
    records: Sequence[RequestRecord], *objectives: SloObjective, window: Window = WINDOW
) -> SimulatedFigures:
    return group_figures(
        records,
        objectives,
        window,
        served=sum(served_tokens(record, window) for record in records),
        everything=1000.0,
        good=sum(meets(record, objectives) for record in records),
    )


def test_refused_and_never_started_requests_are_slower_than_any(
    answered: MakeRecord, refused: MakeRecord, waiting: MakeRecord
) -> None:
    records = [answered("T0", "a", float(i), 0.1, 1.0) for i in range(96)]
    found = figures([*records, *(refused("T0", "a", 1.0) for _ in range(3)), waiting("T0", "a", 2)])
    assert found.ttft_seconds == Latencies(pytest.approx(0.1), pytest.approx(0.1), None)
    assert found.itl_seconds is not None
    assert found.itl_seconds.p50 == pytest.approx(0.1)
    assert found.itl_seconds.p99 is None
    assert (found.sent, found.ok, found.refused, found.unfinished) == (
        100,
        96,
        {"queue_full": 3},
        1,
    )


def test_counts_sum_to_what_was_sent(
    answered: MakeRecord, refused: MakeRecord, waiting: MakeRecord
) -> None:
    found = figures(
        [
            answered("T0", "a", 0, 1, 1),
            answered("T0", "a", 0, 1, 1, finished=None, outcome=None),
            refused("T0", "a", 0),
            refused("T0", "a", 0, 9, Outcome.QUEUE_WAIT_EXCEEDED),
            refused("T0", "a", 0, 9, Outcome.QUEUE_WAIT_EXCEEDED),
            waiting("T0", "a", 0),
        ]
    )
    assert found.refused == {"queue_wait_exceeded": 2, "queue_full": 1}
    assert found.sent == found.ok + sum(found.refused.values()) + found.unfinished == 6


def test_nothing_sent_has_no_latency_and_no_attainment() -> None:
    found = figures([], TTFT)
    assert found.ttft_seconds is found.e2e_seconds is found.itl_seconds is None
    assert found.cached_ratio is None
    assert found.objectives[0].attained_percent is None
    assert found.objectives[0].met is None


def test_an_objective_is_attained_by_the_part_of_all_requests(
    answered: MakeRecord, refused: MakeRecord
) -> None:
    records = [answered("T0", "a", float(i), 1.0, 1.0) for i in range(18)]
    ok = figures([*records, answered("T0", "a", 20, 1.01, 1.0), refused("T0", "a", 21)], TTFT)
    assert ok.objectives[0].attained_percent == 90.0
    assert ok.objectives[0].met is True
    one_worse = figures([*records[1:], *(refused("T0", "a", 21) for _ in range(3))], TTFT)
    assert one_worse.objectives[0].attained_percent == 85.0
    assert one_worse.objectives[0].met is False


@pytest.mark.parametrize(
    ("objective", "ttft", "stream", "met"),
    [
        (TTFT, 1.0, 99.0, True),
        (TTFT, 1.001, 0.1, False),
        (E2E, 4.0, 1.0, True),
        (E2E, 4.0, 1.1, False),
        (ITL, 50.0, 1.0, True),
        (ITL, 0.1, 1.1, False),
    ],
    ids=lambda value: str(getattr(value, "metric", value)),
)
def test_what_each_objective_compares(
    objective: SloObjective, ttft: float, stream: float, met: bool, answered: MakeRecord
) -> None:
    record = answered("T0", "a", 0.0, ttft, stream)
    assert meets(record, [objective]) is met
    assert figures([record], objective).objectives[0].met is met


def test_goodput_asks_for_all_objectives_and_an_answer(
    answered: MakeRecord, waiting: MakeRecord
) -> None:
    records = [
        answered("T0", "a", 0, 0.5, 1.0),
        answered("T0", "a", 0, 0.5, 9.0),
        answered("T0", "a", 0, 2.0, 1.0),
        waiting("T0", "a", 0),
    ]
    assert figures(records, TTFT, E2E).goodput_per_second == pytest.approx(1 / 100)
    assert figures(records).goodput_per_second == pytest.approx(3 / 100)


def test_a_stream_that_goes_on_at_the_end_has_its_first_token(answered: MakeRecord) -> None:
    going_on = answered("T0", "a", 0, 0.5, 1.0, finished=None, outcome=None)
    found = figures([going_on], TTFT, E2E)
    assert [one.attained_percent for one in found.objectives] == [100.0, 0.0]
    assert found.goodput_per_second == 0.0


def test_a_stream_that_broke_missed_its_objective(answered: MakeRecord) -> None:
    broken = answered("T0", "a", 0, 0.5, 1.0, outcome=Outcome.ENGINE_FAILED)
    assert figures([broken], TTFT).objectives[0].attained_percent == 0.0


def test_a_single_token_has_no_gap_between_tokens(answered: MakeRecord) -> None:
    one = answered("T0", "a", 0, 0.5, 0.0, output_tokens=1)
    found = figures([one], ITL)
    assert found.itl_seconds is None
    assert found.longest_gap_seconds is None
    assert found.objectives[0].met is True


@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        (Window(0, 100), 110.0),
        (Window(0, 15), 105.0),
        (Window(10, 100), 110.0),
        (Window(11, 16), 5.0),
        (Window(0, 9), 0.0),
        (Window(21, 100), 0.0),
    ],
)
def test_served_tokens_lie_where_they_were_served(
    window: Window, tokens: float, answered: MakeRecord
) -> None:
    record = answered("T0", "a", 5.0, 5.0, 10.0, output_tokens=10)
    assert served_tokens(record, window) == pytest.approx(tokens)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 20) | st.just(float("inf")), min_size=1, max_size=40))
def test_percentiles_rise_and_are_measured_values(values: list[float]) -> None:
    found = latencies(values)
    assert found is not None
    infinite = float("inf")
    three = [infinite if p is None else p for p in (found.p50, found.p95, found.p99)]
    assert three == sorted(three)
    assert set(three) <= set(values)
    below = sum(value <= three[0] for value in values)
    assert 2 * below >= len(values)
