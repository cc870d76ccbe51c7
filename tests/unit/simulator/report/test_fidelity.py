"""What a report says of itself: in what respects it was never compared with a real engine."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tidegate.scheduling.contracts import ContractError
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.report import text
from tidegate.simulator.report.build import Promises, Run, Setting, build_report
from tidegate.simulator.report.fidelity import (
    MOST_OUTPUT_TOKENS,
    MOST_PROMPT_TOKENS,
    outside,
    read_check,
)
from tidegate.simulator.report.html import page
from tidegate.simulator.report.tables import print_report
from tidegate.simulator.simulation.result import RequestRecord, SimulationResult

BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"
MakeRecord = Callable[..., RequestRecord]
MakeResult = Callable[..., SimulationResult]
FIGURES = [
    {"name": "mixed tiers, T0 TTFT p50: error", "value": 4.25, "unit": "%", "met": True,
     "aim": {"op": "<=", "value": 25}, "why": "vLLM 40, model 42 ms"},
    {"name": "preemption, throughput: error", "value": None, "unit": "%", "met": None,
     "aim": {"op": "<=", "value": 25}, "why": "no vLLM here"},
    {"name": "all: median error", "value": 3.0, "unit": "%", "met": None, "aim": None, "why": ""},
]  # fmt: skip


@pytest.fixture
def check_file(tmp_path: Path) -> Path:
    file = tmp_path / "fidelity.json"
    document: dict[str, Any] = {
        "benchmark": "fidelity", "measured_at": "2026-11-30T08:00:00Z", "figures": FIGURES,
    }  # fmt: skip
    file.write_text(json.dumps(document))
    return file


def test_bounds_are_those_of_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    workloads = importlib.import_module("fidelity_workloads")
    shapes = [tier for held_out in workloads.HELD_OUT for tier in held_out.tiers]
    assert max(shape.prompt[1] for shape in shapes) == MOST_PROMPT_TOKENS
    assert max(shape.output[1] for shape in shapes) == MOST_OUTPUT_TOKENS


@pytest.mark.parametrize(
    ("changes", "measured", "stock", "reason"),
    [
        ({}, True, True, None),
        ({}, False, True, "published figures"),
        ({}, True, False, "tidegate decides in the place of a stock vLLM"),
        ({"prompt_tokens": 7_001}, True, True, "prompts of up to 7,001 tokens"),
        ({"output_tokens": 401}, True, True, "answers of up to 401 tokens"),
        ({"cached_tokens": 16}, True, True, "shared prefixes"),
    ],
)
def test_what_lies_outside_is_named(
    changes: dict[str, int],
    measured: bool,
    stock: bool,
    reason: str | None,
    answered: MakeRecord,
    result: MakeResult,
) -> None:
    run = result([answered("T0", "a", 1, 1, 1, **changes)])
    found = outside(run, engine_measured=measured, stock_engine=stock)
    assert len(found) == (0 if reason is None else 1)
    assert reason is None or reason in found[0]


def test_a_run_within_is_said_to_be_checked_and_the_table_stands_first(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel, check_file: Path
) -> None:
    one = result([answered("T0", "a", 1, 1, 1)], policy="fcfs")
    run = Run(one, Promises(), step_time, engine_measured=True, stock_engine=True)
    report = build_report([run], Setting("cpu_tiny", 100.0, None, read_check(check_file)))
    assert not report.runs[0].model_only
    written = io.StringIO()
    print_report(report, Console(file=written, width=100))
    shown = written.getvalue()
    assert shown.startswith("Checked:")
    assert "of 2026-11-30T08:00:00Z: 1 of 2 aims met, 1 not measured" in shown
    assert shown.index("mixed tiers, T0 TTFT p50: error") < shown.index("by hand, policy fcfs")
    assert "all: median error" not in shown
    html = page(report, [one], {})
    assert '<div class="fidelity checked"><p>Checked' in html
    assert html.index("T0 TTFT p50: error") < html.index("<h1>")


def test_reasons_of_all_policies_are_said_once(
    answered: MakeRecord, result: MakeResult, step_time: StepTimeModel
) -> None:
    records = [answered("T0", "a", 1, 1, 1)]
    runs = [
        Run(result(records), Promises(), step_time),
        Run(result(records, policy="fcfs"), Promises(), step_time, stock_engine=True),
    ]
    statement = text.fidelity(build_report(runs, Setting("h100", 100.0)))
    assert statement.startswith("MODEL ONLY")
    assert statement.count("published figures") == 1
    assert "tidegate decides" in statement
    assert "fcfs decides" not in statement


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no report of `scripts/bench fidelity"),
        ('{"benchmark": "gate", "figures": []}', "no report of `scripts/bench fidelity"),
        ("[" * 100_000, "not JSON"),
        ('{"benchmark": "fidelity", "figures": 5}', "figures: expected a list"),
        ('{"benchmark": "fidelity", "figures": [1]}', "figures[0]: expected an object"),
        ('{"benchmark": "fidelity", "figures": [{"value": "x"}]}', "figures[0].name"),
    ],
)
def test_what_is_no_check_is_refused(written: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    file.write_text(written)
    with pytest.raises(ContractError) as raised:
        read_check(file)
    assert message in str(raised.value)
