"""The gap of service between tenants that wait, by hand and on the published runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tidegate.simulator.service_gap import ServedRequest, window_gaps
from tidegate.simulator.slora.published import FOLDER, read_run
from tidegate.simulator.slora.summary import summarize


def served(
    tenant: str, arrival: float, first: float | None, end: float | None, prompt: int, output: int
) -> ServedRequest:
    return ServedRequest(tenant, prompt, output, arrival, first, end)


def test_a_window_counts_prompts_at_the_first_token_and_outputs_evenly() -> None:
    run = [
        served("a", 0.0, 10.0, 50.0, 100, 40),  # 100 in window 0; 2 a second from 10 to 50
        served("a", 0.0, 95.0, 95.0, 7, 0),
        served("b", 0.0, 40.0, 41.0, 30, 10),
        served("b", 0.0, 90.0, 96.0, 1, 3),
    ]
    windows = window_gaps(run)
    assert [w.start for w in windows] == [0.0, 30.0, 60.0]
    assert windows[0].service_by_tenant == pytest.approx({"a": 100 + 40, "b": 0})
    assert windows[1].service_by_tenant == pytest.approx({"a": 40, "b": 30 + 20})
    assert windows[2].service_by_tenant == pytest.approx({"a": 0, "b": 0})
    assert [w.gap for w in windows] == pytest.approx([140, 10, 0])


def test_only_who_waits_at_every_moment_of_the_window_is_compared() -> None:
    touching = [served("a", 0.0, 12.0, 13.0, 5, 1), served("a", 12.0, 30.0, 31.0, 5, 1)]
    other = [served("b", -1.0, 45.0, 46.0, 5, 1)]
    assert [w.start for w in window_gaps(touching + other)] == [0.0]
    with_a_hole = [served("a", 0.0, 12.0, 13.0, 5, 1), served("a", 12.1, 40.0, 41.0, 5, 1)]
    assert window_gaps(with_a_hole + other) == []
    running_is_not_waiting = [served("a", 0.0, 1.0, 100.0, 5, 1)]
    assert window_gaps(running_is_not_waiting + other) == []


def test_who_was_refused_neither_waits_nor_is_served() -> None:
    run = [
        served("a", 0.0, None, None, 1000, 1000),
        served("b", 0.0, 40.0, 41.0, 5, 1),
        served("c", 0.0, 40.0, 41.0, 9, 1),
    ]
    assert [w.service_by_tenant for w in window_gaps(run)] == [{"b": 0.0, "c": 0.0}]
    assert window_gaps([served("a", 0.0, None, None, 1, 1)]) == []


def test_windows_can_be_shifted() -> None:
    run = [
        served("a", 0.0, 50.0, 51.0, 4, 0),
        served("a", 0.0, 45.0, 45.0, 8, 0),
        served("b", 0.0, 51.0, 51.0, 3, 0),
    ]
    assert [(w.start, w.gap) for w in window_gaps(run)] == [(0.0, 0.0)]
    assert [(w.start, w.gap) for w in window_gaps(run, offset=20.0)] == [(20.0, 8.0)]


def test_a_summary_means_tenants_before_requests(tmp_path: Path) -> None:
    responses = [
        {"adapter_dir": tenant, "prompt_len": 10, "output_len": 5, "req_time": at,
         "first_token_latency": latency, "request_latency": latency + 1 if latency > 0 else -1}
        for tenant, at, latency in [
            ("busy", 2.0, 4.0), *(("busy", 3.0, 4.0) for _ in range(40)),
            ("light", 1.0, 1.0), ("lighter", 0.0, 3.0), ("lighter", 5.0, 5.0),
            ("refused", 0.5, -1),
        ]
    ]  # fmt: skip
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"result": {"responses": responses}}))
    run = read_run(path)
    assert [one.arrival for one in run] == sorted(one.arrival for one in run)
    summary = summarize(run)
    assert summary.light_ttft == pytest.approx((1.0 + 4.0) / 2)
    assert summary.mean_ttft == pytest.approx((41 * 4 + 1 + 3 + 5) / 44)
    assert summary.served == 44
    assert summary.makespan == 11.0


PUBLISHED = {
    "FCFS": (22_083, 11_346, 38.58),
    "VTC": (8_050, 3_151, 0.76),
    "LCF": (15_305, 5_957, 0.92),
    "VTC_oracle": (4_606, 1_256, 2.61),
    "VTC_predict": (6_147, 2_299, 0.95),
}


@pytest.mark.skipif("TIDEGATE_TRACES" not in os.environ, reason="TIDEGATE_TRACES is not set")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_runs_have_the_known_gaps(name: str) -> None:
    summary = summarize(read_run(Path(os.environ["TIDEGATE_TRACES"], FOLDER, f"real_{name}.jsonl")))
    largest, mean, light = PUBLISHED[name]
    assert round(summary.largest_gap) == largest
    assert round(summary.mean_gap) == mean
    assert round(summary.light_ttft, 2) == light
