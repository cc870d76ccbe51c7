"""The fidelity benchmark's own parts: notes read right, constants found again, faults found out.

The notes are what the engine model itself would have left, written as vLLM's recorder writes them,
so what must come out is known exactly.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from tidegate.simulator.engine_model import StepTimeModel

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
STEP = StepTimeModel(
    overhead_seconds=0.0015,
    floor_seconds=0.0,
    base_seconds=0.0,
    per_token_seconds=6e-6,
    per_kv_token_seconds=1e-7,
    per_pair_seconds=1.5e-8,
    per_row_seconds=4e-5,
    prefill_seconds=0.002,
)
Request = tuple[str, float, int, int, int]
"""Name, time, prompt, output, priority."""
REQUESTS: list[Request] = [
    (f"t{number % 3}-{number}", 0.02 * number, 40 + 37 * (number % 9), 30 + 5 * number, number % 3)
    for number in range(24)
]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture
def flags() -> Any:
    engine = module("fidelity_engine")
    return engine.EngineFlags(max_num_seqs=8, max_num_batched_tokens=64, num_gpu_blocks=48)


def noted(
    flags: Any, requests: list[Request], step_time: StepTimeModel = STEP, core: float = 1.0
) -> list[str]:
    """The recorder's lines, had vLLM been the model; the engine has that part of its core."""
    model = module("fidelity_model")
    arrival = module("fidelity_log").Arrival
    engine = model.ModelEngine(flags, step_time).engine
    coming = list(requests)
    lines: list[str] = []
    now, processor = 0.0, 100.0
    while coming or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[0][1])
        while coming and coming[0][1] <= now:
            name, at, prompt, output, priority = coming.pop(0)
            key = len(requests) - len(coming)
            engine.add(
                model.model_request(arrival(name, at, at, at, prompt, output, priority, 0), key)
            )
            lines.append(
                json.dumps(
                    {
                        "arrived": at, "reached": at, "id": f"cmpl-{name}.1-0-abc",
                        "prompt": prompt, "output": output, "priority": priority,
                    }
                )
            )  # fmt: skip
        step = engine.step(now)
        rows = [
            [f"cmpl-{r.request_id}.1-0-abc", r.computed_tokens - tokens, tokens]
            for r, tokens in step.rows
        ]
        victims = [[f"cmpl-{r.request_id}.1-0-abc", r.lost_tokens] for r in step.preempted]
        end = now + step.duration_seconds / core
        times = [now, end, processor, processor + step.duration_seconds]
        lines.append(json.dumps({"step": times, "rows": rows, "preempted": victims}))
        now, processor = end, times[3]
    return lines


def test_the_model_agrees_with_notes_of_its_own(flags: Any) -> None:
    """Preemptions and all: the same schedule, the same times, the same counts."""
    log, model = module("fidelity_log"), module("fidelity_model")
    notes = log.read_notes(noted(flags, REQUESTS))
    assert notes.outcome.preemptions > 0
    assert notes.outcome.recomputed_tokens > 0
    assert model.replay(notes, flags) == 100.0
    predicted = model.predict(notes.arrivals, flags, STEP)
    assert predicted.preemptions == notes.outcome.preemptions
    assert predicted.recomputed_tokens == notes.outcome.recomputed_tokens
    assert predicted.generated_tokens == notes.outcome.generated_tokens
    assert predicted.makespan_seconds == pytest.approx(notes.outcome.makespan_seconds)
    assert predicted.first_token_seconds == pytest.approx(notes.outcome.first_token_seconds)


def test_another_rule_is_found_out(flags: Any) -> None:
    """Notes of an engine first come first served don't replay on one that goes by priority."""
    fcfs = module("dataclasses").replace(flags, scheduling_policy="fcfs")
    notes = module("fidelity_log").read_notes(noted(fcfs, REQUESTS))
    assert module("fidelity_model").replay(notes, fcfs) == 100.0
    assert module("fidelity_model").replay(notes, flags) < 90.0


def test_the_engine_clock_stands_still_while_others_have_the_core(flags: Any) -> None:
    """An engine with a third of a core is on its own clock the engine with all of it."""
    log, model = module("fidelity_log"), module("fidelity_model")
    slow = [(name, 3 * at, *rest) for name, at, *rest in REQUESTS]
    whole = log.read_notes(noted(flags, REQUESTS))
    shared = log.read_notes(noted(flags, slow, core=1 / 3))  # type: ignore[arg-type]
    assert shared.outcome.makespan_seconds > 2.5 * whole.outcome.makespan_seconds
    engine = shared.on_engine_clock()
    assert engine.busy_seconds == pytest.approx(whole.busy_seconds, rel=0.02)
    predicted = model.predict(engine.arrivals, flags, STEP)
    for name, seconds in engine.outcome.first_token_seconds.items():
        assert predicted.first_token_seconds[name] == pytest.approx(seconds, rel=0.02, abs=1e-4)


def test_a_gap_between_requests_is_no_work(flags: Any) -> None:
    log = module("fidelity_log")
    notes = log.read_notes(noted(flags, [("a", 0.0, 50, 3, 0), ("b", 9.0, 50, 3, 0)]))
    assert notes.outcome.makespan_seconds > 9
    assert notes.busy_seconds < 0.1
    assert [prompt for prompt, _ in notes.idle_starts] == [50, 50]
    assert notes.on_engine_clock().outcome.makespan_seconds == pytest.approx(
        notes.outcome.makespan_seconds
    )
    with pytest.raises(ValueError, match="no request"):
        log.read_notes([])


def test_constants_are_found_again_through_noise(flags: Any) -> None:
    """A tenth of the steps take three times as long; the line hardly moves."""
    log, fit = module("fidelity_log"), module("fidelity_fit")
    draw = random.Random(7)
    shapes = [(f"p-{n}", 0.3 * n, draw.randint(8, 700), draw.randint(2, 40), 0) for n in range(30)]
    shapes += [(f"q-{n}", 12.0 + 0.01 * n, 90 + 30 * n, 30, 0) for n in range(24)]
    wide = module("dataclasses").replace(flags, num_gpu_blocks=800, max_num_seqs=24)
    steps = log.read_notes(noted(wide, shapes)).steps
    for step in steps:
        step.duration_seconds *= draw.uniform(0.98, 1.02) * (3 if draw.random() < 0.1 else 1)
    found = fit.fit_steps(steps)
    for tokens, kv, pairs, rows in ((1, 100, 0, 1), (24, 9000, 0, 24), (64, 0, 30_000, 3)):
        expected = STEP.seconds(tokens, kv, pairs, rows)
        assert found.seconds(tokens, kv, pairs, rows) == pytest.approx(expected, rel=0.05)
    with pytest.raises(ValueError, match="too few"):
        fit.fit_steps(steps[:5])


def test_the_probe_and_the_held_out_runs_are_the_same_each_time() -> None:
    workloads = module("fidelity_workloads")
    assert workloads.probe_stages(1) == workloads.probe_stages(1)
    for held_out in workloads.HELD_OUT:
        planned = held_out.requests(200, seed=3)
        assert planned == held_out.requests(200, seed=3)
        assert {one.name[:2] for one in planned} == set(workloads.TIERS)
        assert len({one.name for one in planned}) == 200
        spread = held_out.spread(planned, 10.0, seed=3)
        assert max(one.at for one in spread) <= 10.0 / held_out.overload
        longest = max(one.prompt_tokens + one.output_tokens for one in planned)
        assert longest <= (held_out.flags.num_gpu_blocks - 1) * 32 // 2


def test_published_throughput_is_met_by_hardware_figures_alone() -> None:
    """In the order of magnitude, that is: a wrong unit anywhere in the constants is found out."""
    published = module("fidelity_published")
    calibration = module("tidegate.simulator.engine_model").CALIBRATIONS[published.CALIBRATION]
    modelled = published.tokens_per_second(calibration, 2048, 128, 600)
    assert modelled == pytest.approx(published.PUBLISHED[2048, 128][1], rel=0.5)


def test_errors_are_of_what_was_measured() -> None:
    judge = module("fidelity_judge")
    assert judge.error_percent(80, 100) == pytest.approx(20)
    assert judge.error_percent(0, 0) == 0
    assert judge.error_percent(2, 0) == 200


def test_without_vllm_every_error_is_missing_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path))
    fidelity = module("fidelity")
    monkeypatch.setattr(fidelity, "_against_artifact", lambda *_: [])
    monkeypatch.setattr(fidelity, "published_figures", list)
    arguments = argparse.Namespace(keep=None, repetitions=1, seconds=1.0, seed=1)
    figures = fidelity.measure(arguments, Console(quiet=True))
    assert len(figures) == 4 * len(fidelity.METRICS)
    assert all(one.met is None and "scripts/install-vllm" in one.why for one in figures)
