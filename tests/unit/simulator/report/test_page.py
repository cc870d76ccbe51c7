"""What a person sees: tables and the page. Fidelity first, nothing loaded, nothing unescaped."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from math import inf

import pytest
from rich.console import Console

from tidegate.scheduling.contracts.limits import SloMetric, SloObjective
from tidegate.scheduling.contracts.simulation_report import SimulationReport
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.report import rows, series, text
from tidegate.simulator.report.build import Promises, Run, Setting, build_report
from tidegate.simulator.report.html import page
from tidegate.simulator.report.tables import print_report
from tidegate.simulator.simulation.result import RequestRecord, SimulationResult, TimeSample

MakeRecord = Callable[..., RequestRecord]
MakeResult = Callable[..., SimulationResult]
Prepared = tuple[SimulationReport, list[SimulationResult]]
EVIL = '<img src="http://x/">'
VOID = {"meta", "path", "use", "rect", "line", "img"}


@pytest.fixture(scope="module")
def prepared(
    answered: MakeRecord,
    refused: MakeRecord,
    result: MakeResult,
    sample: Callable[..., TimeSample],
    step_time: StepTimeModel,
) -> Prepared:
    """Two policies: under the second half as fast."""
    samples = [sample(float(time), time % 7, 10.0 * time) for time in range(100)]
    results = []
    for policy, factor in (("tidegate", 1.0), ("fcfs", 2.0)):
        records = [answered("T0", "acme/paid", at, 0.5 * factor, 2.0) for at in range(50)]
        records += [answered("T1", EVIL, at, 2.0 * factor, 4.0) for at in range(30)]
        records.append(refused("T1", EVIL, 60.0))
        results.append(result(records, samples, policy=policy))
    objective = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.8, 99.5)
    promises = Promises({"T0": (objective,)}, reserved_percent={"T0": 70})
    runs = [Run(one, promises, step_time) for one in results]
    return build_report(runs, Setting("test", 100.0, 2.0, notes=("A note.",))), results


@pytest.fixture(scope="module")
def html(prepared: Prepared) -> str:
    """The page of both policies."""
    report, results = prepared
    return page(report, results, {"T0": "protected"})


def shown_text(report: SimulationReport, width: int = 160) -> str:
    written = io.StringIO()
    print_report(report, Console(file=written, width=width, highlight=False))
    return written.getvalue()


def test_the_first_thing_said_is_what_may_be_believed(prepared: Prepared, html: str) -> None:
    assert shown_text(prepared[0]).startswith("MODEL ONLY")
    body = html.split("<body>", 1)[1]
    assert body.strip().startswith('<div class="fidelity model-only"><p>MODEL ONLY')


def test_tables_say_what_happened(prepared: Prepared) -> None:
    shown = shown_text(prepared[0])
    assert "acme/paid" in shown
    assert "T0: TTFT within 800 ms for 99.5%: 100.00%, met" in shown
    assert "T1: refused: 1 queue_full" in shown
    assert "A note." in shown
    assert EVIL in shown
    line = next(line for line in shown.splitlines() if line.split()[:2] == ["fcfs", "50"])
    assert "1.00 s" in line
    assert "0.0%" in line


def test_a_narrow_terminal_gets_narrow_tables_and_all_columns(prepared: Prepared) -> None:
    lines = shown_text(prepared[0], width=80).splitlines()
    assert max(map(len, lines)) <= 80
    for heading in ("goodput/s", "gap mean", "longest gap p99", "reservation used", "ITL p99"):
        assert any(heading in line for line in lines)
    assert not any("…" in line for line in lines)


def test_the_page_is_well_formed_and_loads_nothing(html: str) -> None:
    assert EVIL not in html
    assert "<script" not in html
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", html)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    checker = Balance()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert checker.counts["svg"] == 5
    assert checker.counts["h3"] == 2


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_plots_take_the_colour_of_the_page(html: str) -> None:
    svg = html[html.index("<svg") : html.rindex("</svg>")]
    assert "currentColor" in svg
    assert "var(--rule)" in svg
    assert "#0a0b0c" not in svg
    assert "#1a1b1c" not in svg
    assert "#000000" not in svg
    assert "#ffffff" not in svg


def test_the_same_run_gives_the_same_page(prepared: Prepared, html: str) -> None:
    assert page(*prepared, {"T0": "protected"}) == html


def test_a_run_without_an_answer_is_drawn_too(
    waiting: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    one = result([waiting("T0", "a", 1.0)])
    report = build_report([Run(one, Promises(), step_time)], Setting("test", 100.0))
    assert "never" in shown_text(report)
    assert page(report, [one], {}).count("<svg") == 5


def test_a_name_with_dollars_is_no_formula(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    tier = r"$\nonsense{$"
    one = result([answered(tier, "a", 1, 1, 1)], tiers=(tier,))
    report = build_report([Run(one, Promises(), step_time)], Setting("test", 100.0))
    shown = page(report, [one], {})
    assert all(tier in svg for svg in shown.split("<svg")[1:6])


@pytest.mark.parametrize("spread", [1.001, 1.5, 3.0, 30.0, 300.0, 3e5])
def test_latencies_of_any_spread_have_marks(
    spread: float, answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    one = result([answered("T0", "a", 1, ttft, 0.0) for ttft in (0.017, 0.017 * spread)])
    report = build_report([Run(one, Promises(), step_time)], Setting("test", 20.0))
    marks = re.findall(r">([\d.]+) (m?s)</text>", page(report, [one], {}).split("<svg")[1])
    seconds = [float(number) / (1000 if unit == "ms" else 1) for number, unit in marks]
    assert 2 <= len(seconds) <= 9
    assert seconds == sorted(set(seconds))


def test_marks_of_time_and_numbers_stand_where_they_say(
    answered: MakeRecord, result: MakeResult, sample: Callable[..., TimeSample],
    step_time: StepTimeModel,
) -> None:  # fmt: skip
    samples = [sample(float(time), time % 2) for time in range(21)]
    one = result([answered("T0", "a", 1, 1, 1)], samples)
    report = build_report([Run(one, Promises(), step_time)], Setting("test", 20.0))
    queue = page(report, [one], {}).split("<svg")[5]
    marks = re.findall(r">([\d,]+)</text>", queue)
    # Of 0 to 20 s, then of 0 to 2 requests: no mark twice, and all the same distance apart.
    split = marks.index("0", 1)
    for numbers in (marks[:split], marks[split:]):
        values = [int(number) for number in numbers]
        assert len({after - before for before, after in pairwise(values)}) == 1
        assert values[1] > values[0]


def test_of_many_tenants_the_busiest_are_shown(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    records = [
        answered("T0", f"t{number:02}", at, 1, 1)
        for number in range(30)
        for at in range(number + 1)
    ]
    report = build_report([Run(result(records), Promises(), step_time)], Setting("test", 100.0))
    run = report.runs[0]
    assert len(run.tenants) == 30
    assert [row.name for row in rows.shown(run, 3)] == ["t27", "t28", "t29"]
    assert "10 more tenants are summed in their tiers" in shown_text(report)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "never"),
        (0.0042, "4.2 ms"),
        (0.126, "126 ms"),
        (0.9999, "1.00 s"),
        (71.25, "71.25 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_seconds(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


def test_percentages_are_not_rounded_up_to_all() -> None:
    assert text.percent(99.97) == "99.9%"
    assert text.percent(100.0) == "100.0%"
    assert text.percent(99.97, 2) == "99.97%"


def test_a_distribution_keeps_its_tail_and_its_misses() -> None:
    curve = series.distribution([*(float(i) for i in range(1, 991)), *[inf] * 10])
    assert curve.y[-1] == pytest.approx(0.99)
    assert curve.x[-1] == 990.0
    assert len(curve.x) <= series.POINTS + 2
    at = dict(zip(curve.x, curve.y, strict=True))
    assert all(part == pytest.approx(value / 1000) for value, part in at.items())
    assert list(curve.y) == sorted(curve.y)
    assert series.distribution([inf, inf]).x == ()


def test_a_queues_peak_survives_thinning(
    result: MakeResult, sample: Callable[..., TimeSample]
) -> None:
    samples = [sample(float(time), queued=500 if time == 777 else 1) for time in range(1000)]
    curve = series.queued(result([], samples))["T0"]
    assert len(curve.y) <= series.POINTS
    assert max(curve.y) == 500


def test_service_over_time_keeps_its_sum(
    result: MakeResult, sample: Callable[..., TimeSample]
) -> None:
    samples = [sample(float(time), service=3.0 * time) for time in range(1001)]
    curve = series.service_rates(result([], samples))["T1"]
    assert set(map(round, curve.y)) == {6}
    assert series.service_rates(result([], samples[:1]))["T1"].x == ()


def test_kv_is_summed_by_pool(result: MakeResult, sample: Callable[..., TimeSample]) -> None:
    one = result([], [sample(0.0), sample(1.0)])
    apart = series.kv_percent(one, {})
    assert (apart["T0"].y, apart["T1"].y) == ((10.0, 10.0), (20.0, 20.0))
    together = series.kv_percent(one, {"T0": "protected", "T1": "protected"})
    assert list(together) == ["protected", series.CACHED]
    assert together["protected"].y == (30.0, 30.0)
    assert together[series.CACHED].y == (5.0, 5.0)
