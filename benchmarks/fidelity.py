"""Whether the engine model deserves belief: it predicts runs of real vLLM on CPU that it never saw.

Real vLLM serves a tiny model on this machine. A short probe fits the step-time constants; then come
held-out runs (three tiers by vLLM's priority, forced preemption in a small KV cache, chunked
prefill with a small step), each several times with other requests. The model is given the arrivals
and the constants and nothing else, and what it says of TTFT by tier, throughput, preemptions and
recomputed tokens is laid beside what vLLM did. Each error is of all repetitions taken together, on
the clock of the engine's own thread, which stands still while another process has its core, and
counts from where the engine's process had the request; errors on the wall's clock, with the API
process in front, are printed beside. `steps scheduled alike` needs no clock at all.

What it can't show: a GPU (beside the throughput that NVIDIA publishes for two H100 with another
engine), and what the model leaves out (see the engine model's docstring). The other half of the
check, against the published runs of VTC's artifact, is that of `scripts/bench fairness` and is
printed here too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import fairness_model
from fidelity_engine import Planned, RealEngine, RealRun, real_engine
from fidelity_fit import fit_frontend, fit_steps, step_errors_percent
from fidelity_judge import METRICS, Judged, Metric, Probe, error_of, together
from fidelity_log import Arrival
from fidelity_model import predict
from fidelity_published import published_figures
from fidelity_workloads import HELD_OUT, HeldOut, probe_stages
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from rich.table import Table

from testbed.real_vllm import BLOCK_TOKENS, make_tiny_model, vllm_python
from tidegate.simulator.engine_model import Calibration, StepTimeModel
from tidegate.simulator.engine_model.calibrations import FACTORS

WITHIN = Aim("<=", 25)
STRETCH_PERCENT = 15
_SAMPLE_REQUESTS = 120
_FEWEST_REQUESTS, _MOST_REQUESTS = 60, 600
_ARTIFACT_MEMBERS = 16
"""Runs of an ensemble beside the artifact's; `scripts/bench fairness` makes more."""


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--repetitions", type=int, default=3, help="of each held-out run")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one run, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep notes and constants here")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Probes, measures, predicts; an error for each figure, and what the rules alone say."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    console.print(f"load of the machine before: {load}", style="dim", highlight=False)
    try:
        figures = _against_vllm(arguments, console)
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        figures = _missing(f"{type(error).__name__}: {error}")
    _say(console, "the model beside published throughput of GPUs")
    return [*figures, *published_figures(), *_against_artifact(console)]


def _missing(why: str) -> list[Figure]:
    return [
        figure(f"{held_out.name}, {metric.name}: error", None, "%", WITHIN, why)
        for held_out in HELD_OUT
        for metric in METRICS
    ]


def _against_vllm(arguments: argparse.Namespace, console: Console) -> list[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-f-")))
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
        python = vllm_python()
        model = make_tiny_model(python, folder / "model")
        started = time.monotonic()
        engines = [
            stack.enter_context(real_engine(python, model, held_out.flags, folder / str(number)))
            for number, held_out in enumerate(HELD_OUT)
        ]
        for engine in engines:
            engine.until_ready()
            engine.run(probe_stages(0)[1], seed=0)  # the first request pays for what is set up late
        _say(console, f"{len(engines)} engines started in {time.monotonic() - started:.0f} s")
        probe, runs = _probe_and_run(engines, arguments, (arguments.keep or folder))
        console.print(_constants_table(probe))
        if arguments.keep is not None:
            for number, engine in enumerate(engines):
                kept = arguments.keep / f"notes-{number}.jsonl"
                kept.write_bytes(engine.notes_file.read_bytes())
    judged = [Judged(held_out, probe, runs[held_out.name]) for held_out in HELD_OUT]
    figures = [
        figure("probe: error of one step, median", probe.step_error_percent, "%"),
        figure("probe: the engine's share of a core", probe.core_percent, "%"),
    ]
    for one in judged:
        figures += one.rule_figures()
        _say(console, f"{one.held_out.name}: {one.summary()}")
    return [*figures, *_error_figures(judged, probe, console)]


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False)


def _probe_and_run(
    engines: Sequence[RealEngine], arguments: argparse.Namespace, folder: Path
) -> tuple[Probe, dict[str, list[RealRun]]]:
    """A round of the probe before each repetition of the held-out runs, so that both meet the same
    machine; the constants are of the probe's rounds alone."""
    rounds: list[RealRun] = []
    runs: dict[str, list[RealRun]] = {held_out.name: [] for held_out in HELD_OUT}
    for repetition in range(arguments.repetitions):
        rounds += [engines[0].run(stage, repetition) for stage in probe_stages(repetition)]
        step_time = _fitted(rounds, folder / "cpu_tiny.json").calibration.step_time
        for held_out, engine in zip(HELD_OUT, engines, strict=True):
            seed = 1000 * arguments.seed + repetition
            planned = _planned(held_out, step_time, arguments.seconds, seed)
            runs[held_out.name].append(engine.run(planned, seed))
    return _fitted(rounds, folder / "cpu_tiny.json"), runs


def _fitted(runs: Sequence[RealRun], file: Path) -> Probe:
    """The probe's constants, by way of the file that they are kept in."""
    on_wall = [run.notes for run in runs]
    notes = [one.on_engine_clock() for one in on_wall]
    steps = [step for one in notes for step in one.steps]
    frontend = fit_frontend([start for one in on_wall for start in one.idle_starts])
    when = time.strftime("%Y-%m-%d", time.gmtime())
    measured = Calibration(
        step_time=fit_steps(steps),
        kv_capacity_tokens=(HELD_OUT[0].flags.num_gpu_blocks - 1) * BLOCK_TOKENS,
        sources={"*": f"probe of vLLM on this machine's CPU, {len(steps)} steps, {when}"},
    )
    file.write_text(json.dumps(measured.to_json(), indent=2) + "\n")
    calibration = Calibration.from_json(json.loads(file.read_text()))
    share = sum(n.busy_seconds for n in notes) / sum(n.busy_seconds for n in on_wall)
    error, _ = step_errors_percent(calibration.step_time, steps)
    return Probe(calibration, frontend, 100 * share, error)


def _constants_table(probe: Probe) -> Table:
    title = f"cpu_tiny: {probe.calibration.sources['*']}"
    table = Table(title=title, title_justify="left")
    table.add_column("constant")
    table.add_column("seconds", justify="right")
    for name, value in probe.calibration.to_json()["step_time"].items():
        table.add_row(name, f"{value:.3g}")
    return table


def _planned(
    held_out: HeldOut, step_time: StepTimeModel, seconds: float, seed: int
) -> list[Planned]:
    """As many requests as the engine serves in about that time, and when they are sent."""
    sample = [
        Arrival(p.name, 0.0, 0.0, 0.0, p.prompt_tokens, p.output_tokens, p.priority, 0)
        for p in held_out.requests(_SAMPLE_REQUESTS, seed)
    ]
    one = predict(sample, held_out.flags, step_time).makespan_seconds / _SAMPLE_REQUESTS
    count = round(max(_FEWEST_REQUESTS, min(seconds / one, _MOST_REQUESTS)))
    return held_out.spread(held_out.requests(count, seed), one * count, seed)


def _error_figures(judged: Sequence[Judged], probe: Probe, console: Console) -> list[Figure]:
    varied = {
        (name, factor): [one.predictions(calibration) for one in judged]
        for name, factor, calibration in probe.calibration.variations()
    }
    errors: list[float] = []
    figures: list[Figure] = []
    tables: dict[str, dict[tuple[str, float], float]] = {}
    for index, one in enumerate(judged):
        for metric in one.metrics:
            error = error_of(metric, one.predicted, one.measured)
            moved = {
                key: error_of(metric, predictions[index], one.measured)
                for key, predictions in varied.items()
            }
            name = f"{one.held_out.name}, {metric.name}: error"
            tables[name] = moved
            errors.append(error)
            figures.append(figure(name, error, "%", WITHIN, _why(metric, one, moved)))
    console.print(_variation_table(tables, list(varied), dict(zip(tables, errors, strict=True))))
    return [*figures, *_summary_figures(errors, tables, judged)]


def _why(metric: Metric, one: Judged, moved: dict[tuple[str, float], float]) -> str:
    low, high = (f(metric.read(o) for o in one.measured) for f in (min, max))
    return (
        f"vLLM {metric.read(together(one.measured)):,.0f} ({low:,.0f}..{high:,.0f} a run), "
        f"model {metric.read(together(one.predicted)):,.0f} {metric.unit}; "
        f"constants at 0.8 and 1.2: {min(moved.values()):.0f}..{max(moved.values()):.0f}%"
    )


def _variation_table(
    tables: dict[str, dict[tuple[str, float], float]],
    keys: Sequence[tuple[str, float]],
    errors: dict[str, float],
) -> Table:
    table = Table(title="errors in % with one constant at 0.8 | 1.2", title_justify="left")
    table.add_column("figure")
    table.add_column("as is", justify="right")
    constants = list(dict.fromkeys(name for name, _ in keys))
    for name in constants:
        short = name.removesuffix("_seconds").removesuffix("_tokens")
        table.add_column(short.replace("_", " "), justify="right")
    for name, moved in tables.items():
        cells = [" | ".join(f"{moved[constant, f]:.0f}" for f in FACTORS) for constant in constants]
        table.add_row(name.removesuffix(": error"), f"{errors[name]:.0f}", *cells)
    return table


def _summary_figures(
    errors: Sequence[float],
    tables: dict[str, dict[tuple[str, float], float]],
    judged: Sequence[Judged],
) -> list[Figure]:
    within = 100 * sum(error <= STRETCH_PERCENT for error in errors) / len(errors)
    on_wall = [error for one in judged for error in one.wall_errors_percent()]
    figures = [
        figure("all: median error", statistics.median(errors), "%"),
        figure(f"all: share of the errors within {STRETCH_PERCENT}%", within, "%", Aim(">=", 100)),
        figure("all, on the wall's clock: median error", statistics.median(on_wall), "%"),
        figure("all, on the wall's clock: largest error", max(on_wall), "%"),
    ]
    for key in next(iter(tables.values())):
        moved = [table[key] for table in tables.values()]
        figures.append(
            figure(f"all, {key[0]} x {key[1]}: median error", statistics.median(moved), "%")
        )
    return figures


def _against_artifact(console: Console) -> Sequence[Figure]:
    """The other engine model, S-LoRA's, beside the runs that VTC's artifact published."""
    traces = os.environ.get("TIDEGATE_TRACES")
    if not traces:
        why = "TIDEGATE_TRACES names no folder of traces (docs/benchmarks.md)"
        return [figure("VTC's artifact: the model beside its runs", None, "", why=why)]
    jobs = len(os.sched_getaffinity(0))
    members = argparse.Namespace(members=_ARTIFACT_MEMBERS, jobs=jobs)
    return fairness_model.measure(members, console, Path(traces))


if __name__ == "__main__":
    sys.exit(benchmark("fidelity", __doc__ or "", measure, options))
