"""The rules of a pool, judged by Prometheus itself (``promtool test rules``), in virtual time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidegate_operator.slo import rule_groups, rules
from tidegate_operator.slo.rules import BASELINE_ALERT, BUDGET_ALERT
from tidegate_operator.slo.windows import BURN_WINDOWS, BurnWindow

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

pytestmark = pytest.mark.integration

Json = dict[str, Any]
TTFT = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.5, 720 * 3600)
BUDGET = 0.005
TIERS = (TierPolicy("t0", slo_objectives=(TTFT,)), TierPolicy("free"))
LABELS = (
    'namespace="team",objective="TimeToFirstToken",sloth_id="team/chat-t0-TimeToFirstToken",'
    'sloth_service="team/chat",sloth_slo="t0-TimeToFirstToken",tidegate_io_pool="chat",tier="t0"'
)
MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


def promtool(programs: Path, folder: Path, test: Json, tiers: Sequence[TierPolicy] = TIERS) -> None:
    """Run the case; fails with what promtool found."""
    groups = rule_groups("team", "chat", tiers, "https://runbooks")
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    case = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": test["interval"],
        # Else in any order: with steps above 5 minutes the alerts would find no ratio.
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    (folder / "case.yaml").write_text(yaml.safe_dump(case))
    command = [programs / "promtool", "test", "rules", "case.yaml"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def counters(step_minutes: int, phases: Sequence[tuple[int, float, float]]) -> list[Json]:
    """The counters of one pod: (steps, requests per minute, share of them that broke the promise)
    one after another."""
    totals = {"requests": 0.0, "good": 0.0}
    values: dict[str, list[str]] = {name: [] for name in totals}
    for steps, per_minute, broken in phases:
        growth = {"requests": per_minute * step_minutes}
        growth["good"] = growth["requests"] * (1 - broken)
        for name, each in growth.items():
            values[name].append(f"{totals[name]:.6f}+{each:.6f}x{steps - 1}")
            totals[name] += each * steps
    place = (
        'namespace="team",tidegate_io_pool="chat",tier="t0",objective="TimeToFirstToken",'
        'pod="chat-0"'
    )
    return [
        {"series": f"tidegate_slo_{name}_total{{{place}}}", "values": " ".join(parts)}
        for name, parts in values.items()
    ]


def alerts(minute: float, severities: Sequence[str], name: str = BUDGET_ALERT) -> Json:
    """At that minute the alerts of these severities fire, and no others of the name."""
    which = f'alertname="{name}",alertstate="firing"'
    return {
        "expr": f"ALERTS{{{which}}}",
        "eval_time": f"{minute:g}m",
        "exp_samples": [
            {"labels": f'ALERTS{{{which},severity="{severity}",{LABELS}}}', "value": 1}
            for severity in severities
        ],
    }


def value(minute: float, record: str, expected: float | None, window: str = "") -> Json:
    """The series of that name then, to five digits; None: there is none."""
    labels = LABELS + (f',sloth_window="{window}"' if window else "")
    digits = 1e5
    samples = (
        [] if expected is None else [{"labels": f"{{{labels}}}", "value": round(expected * digits)}]
    )
    query = f"round({record} * {digits:g})"
    return {"expr": query, "eval_time": f"{minute:g}m", "exp_samples": samples}


@pytest.mark.parametrize("window", BURN_WINDOWS, ids=lambda window: f"{window.short}-{window.long}")
def test_each_pair_of_windows_fires_when_its_long_one_is_burnt_and_clears_with_its_short_one(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: BurnWindow
) -> None:
    """Each pair by itself, over days of virtual time: no window is shortened. All have long windows
    twelve times the short one; at one and a half times the pair's rate the long one is over it
    after two thirds of its length, the short one under it again after a third of its own."""
    monkeypatch.setattr(rules, "BURN_WINDOWS", (window,))
    short = int(window.short[:-1]) * MINUTES[window.short[-1]]
    step = short // 5
    clean, burning, after = 60, 44, 10
    broken = 1.5 * window.rate * BUDGET
    phases = [(clean, 600.0, 0.0), (burning, 600.0, broken), (after, 600.0, 0.0)]
    severity = str(window.severity)
    checks = [
        alerts(step * (clean + 38), []),
        alerts(step * (clean + 42), [severity]),
        alerts(step * (clean + burning), [severity]),
        alerts(step * (clean + burning + 3), []),
    ]
    case = {
        "interval": f"{step}m",
        "input_series": counters(step, phases),
        "promql_expr_test": checks,
    }
    promtool(programs, tmp_path, case)


def test_an_outage_pages_at_once_and_leaves_a_ticket(programs: Path, tmp_path: Path) -> None:
    """All four pairs together. Half an hour in which nothing keeps the promise is half of the
    month's budget: a page within minutes, and a ticket until the six hours are over."""
    minutes = 5
    phases = [(72, 600.0, 0.0), (6, 600.0, 1.0), (90, 600.0, 0.0)]
    start = 72 * minutes
    case = {
        "interval": f"{minutes}m",
        "input_series": counters(minutes, phases),
        "promql_expr_test": [
            alerts(start - 5, []),
            alerts(start + 10, ["page", "ticket"]),
            alerts(start + 90, ["ticket"]),
            alerts(start + 7 * 60, []),
        ],
    }
    promtool(programs, tmp_path, case)


def test_no_request_is_no_broken_promise_and_no_data_is_no_value(
    programs: Path, tmp_path: Path
) -> None:
    """10 minutes of one broken promise in ten, 20 without a request, then the pod is gone."""
    case = {
        "interval": "1m",
        "input_series": counters(1, [(10, 60.0, 0.1), (21, 0.0, 0.0)]),
        "promql_expr_test": [
            value(9, "slo:sli_error:ratio_rate5m", 0.1, "5m"),
            value(9, "slo:current_burn_rate:ratio", 20),
            value(9, "slo:objective:ratio", 0.995),
            value(9, "slo:error_budget:ratio", 0.005),
            value(9, "slo:time_period:days", 30),
            value(29, "slo:sli_error:ratio_rate5m", 0, "5m"),
            value(29, "slo:current_burn_rate:ratio", 0),
            value(50, "slo:sli_error:ratio_rate5m", None),
            value(50, "slo:current_burn_rate:ratio", None),
        ],
    }
    promtool(programs, tmp_path, case)


def test_the_budget_left_of_a_short_window_counts_requests(programs: Path, tmp_path: Path) -> None:
    """A window that has a recording rule already is not recorded a second time."""
    daily = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99, 24 * 3600)
    case = {
        "interval": "10m",
        "input_series": counters(10, [(72, 600.0, 0.0), (75, 600.0, 0.01)]),
        "promql_expr_test": [value(1440, "slo:period_error_budget_remaining:ratio", 0.5)],
    }
    promtool(programs, tmp_path, case, [TierPolicy("t0", slo_objectives=(daily,))])


def test_p99_over_three_times_its_baseline_for_thirty_seconds(
    programs: Path, tmp_path: Path
) -> None:
    """The slowest pod counts; a tier without a promise alerts nobody."""
    place = 'namespace="team",tidegate_io_pool="chat"'
    gauge = "tidegate_ttft_p99_over_baseline"
    name = f'alertname="{BASELINE_ALERT}"'
    raised = f'{name},{place},severity="ticket",tier="t0"'

    def state(second: int, state: str | None) -> Json:
        labels = f'ALERTS{{alertstate="{state}",{raised}}}'
        return {
            "expr": f"ALERTS{{{name}}}",
            "eval_time": f"{second}s",
            "exp_samples": [] if state is None else [{"labels": labels, "value": 1}],
        }

    case = {
        "interval": "10s",
        "input_series": [
            {"series": f'{gauge}{{{place},tier="t0",pod="a"}}', "values": "1x20"},
            {"series": f'{gauge}{{{place},tier="t0",pod="b"}}', "values": "_x2 2.9x3 3.1x5 1x9"},
            {"series": f'{gauge}{{{place},tier="free",pod="a"}}', "values": "9x20"},
            {"series": f'{gauge}{{namespace="x",tier="t0",pod="a"}}', "values": "9x20"},
        ],
        "promql_expr_test": [
            state(50, None),
            state(60, "pending"),
            state(80, "pending"),
            state(90, "firing"),
            state(120, None),
        ],
    }
    promtool(programs, tmp_path, case)
