"""The demonstration's picture is the same bytes for the same figures."""

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tidegate.load import Sample, SampleState, build_report
from tidegate.load.demo import MODES, A, B, DemoPhase, DemoSizes, demo_phase, demo_scenario
from tidegate.load.demo_output import demo_table, write_chart
from tidegate.load.tables import output_console
from tidegate.scheduling.contracts import SchedulingMode

SIZES = DemoSizes(a_requests=3, b_requests=2, b_start_seconds=1.0)


def phase(mode: SchedulingMode, answered: list[float]) -> DemoPhase:
    samples = []
    for name, times in ((B, answered), (A, [20.0, 21.0, 22.0])):
        for index, time in enumerate(times):
            started = SIZES.b_start_seconds if name == B else 0.0
            made = Sample(name, index, started, 8, name == B, sent=started, first_token=time - 0.1)
            made.end(SampleState.OK, time)
            samples.append(made)
    report = build_report(
        demo_scenario("m", mode, SIZES),
        samples,
        started_at=0.0,
        complete=True,
        loop_lag_p99_seconds=0.0,
    )
    return demo_phase(mode, report, samples)


def test_table_and_picture_show_both_modes(tmp_path: Path) -> None:
    phases = [phase(MODES[0], [20.5, 20.0]), phase(MODES[1], [1.5, 2.0])]
    assert phases[0].b_answered_seconds == (20.0, 20.5)
    assert phases[1].b_longest_wait_seconds == pytest.approx(0.9)
    console = output_console()
    with console.capture() as capture:
        console.print(demo_table(phases, SIZES))
    assert "19.50 s" in capture.get()
    assert "900 ms" in capture.get()
    for name in ("one.svg", "two.svg"):
        write_chart(phases, SIZES, tmp_path / name)
    svg = (tmp_path / "one.svg").read_bytes()
    assert svg == (tmp_path / "two.svg").read_bytes()
    assert xml.fromstring(svg).tag.endswith("svg")


def test_a_phase_in_which_b_got_nothing_is_shown(tmp_path: Path) -> None:
    phases = [phase(MODES[0], []), phase(MODES[1], [1.5, 2.0])]
    write_chart(phases, SIZES, tmp_path / "demo.svg")
    console = output_console()
    with console.capture() as capture:
        console.print(demo_table(phases, SIZES))
    assert "3 of 3" in capture.get()


def test_the_phases_differ_in_prompts_alone() -> None:
    first, second = (demo_scenario("m", mode, SIZES) for mode in MODES)
    assert first.tenants == second.tenants
    assert first.seed != second.seed
