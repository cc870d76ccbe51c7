"""Whether the engine model deserves belief: it predicts runs of real vLLM on CPU that it never saw.

Real vLLM serves a tiny model on this machine. A short probe fits the step-time constants; then come
held-out runs (three tiers by vLLM's priority, forced preemption in a small KV cache, chunked
prefill with a small step), each several times with other requests. The model is given the arrivals
and the constants and nothing else, and what it says of TTFT by tier, throughput, preemptions and
recomputed tokens is laid beside what vLLM did. Each error is of the medians over the repetitions,
on the clock of the engine's own thread, which stands still while another process has its core, and
counts from where the engine's process had the request; errors on the wall's clock, with the API
process in front, are printed beside. `steps scheduled alike` needs no clock at all.

What it can't show: a GPU, and what the model leaves out (see the engine model's docstring). The
other half of the check, against the published runs of VTC's artifact, is `scripts/bench fairness`'s
and is printed here too where that can be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fidelity_engine import (
    EngineFlags,
    MissingError,
    RealEngine,
    RealRun,
    make_model,
    real_engine,
    vllm_python,
)
from fidelity_fit import fit_frontend, fit_steps, step_errors_percent
from fidelity_log import Arrival, Outcome, percentile
from fidelity_model import Frontend, predict, replay
from fidelity_workloads import HELD_OUT, TIERS, HeldOut, probe_stages
from report import Aim, Figure, benchmark, figure
from rich.console import Console
from rich.table import Table

from tidegate.simulator.engine_model import Calibration
from tidegate.simulator.engine_model.calibrations import FACTORS

WITHIN = Aim("<=", 25)
STRETCH_PERCENT = 15
PROBE_ROUNDS = 3
_SAMPLE_REQUESTS = 120
_ARTIFACT = ("fairness", "fidelity_figures")
"""Module and function of the check against VTC's artifact: (Console) -> Sequence[Figure]."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe found: constants on the engine's clock, and its share of the wall's.

    `frontend` is the API process, for the wall's clock alone.
    """

    calibration: Calibration
    frontend: Frontend
    core_percent: float
    steps: int
    step_error_percent: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run, read off an outcome; `unit` is how it is printed."""

    name: str
    unit: str
    read: Callable[[Outcome], float]


def _ttft(tier: str, percent: int) -> Callable[[Outcome], float]:
    def read(outcome: Outcome) -> float:
        of_tier = [
            seconds
            for name, seconds in outcome.first_token_seconds.items()
            if name.startswith(f"{tier}-")
        ]
        return 1000 * percentile(of_tier, percent)

    return read


METRICS = (
    *(Metric(f"{t.upper()} TTFT p{p}", "ms", _ttft(t, p)) for t in TIERS for p in (50, 95)),
    Metric("throughput", "tokens/s", lambda outcome: outcome.tokens_per_second),
    Metric("preemptions", "", lambda outcome: outcome.preemptions),
    Metric("recomputed tokens", "", lambda outcome: outcome.recomputed_tokens),
)


def error_percent(predicted: float, measured: float) -> float:
    """Of the measured; a count that should be 0 is off by 100 percent each."""
    return 100 * abs(predicted - measured) / (measured or 1.0)


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
    except (MissingError, OSError, RuntimeError, TimeoutError, ValueError) as error:
        figures = _missing(f"{type(error).__name__}: {error}")
    return [*figures, *_against_artifact(console)]


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
        model = make_model(python, folder / "model")
        started = time.monotonic()
        engines = [
            stack.enter_context(real_engine(python, model, held_out.flags, folder / str(number)))
            for number, held_out in enumerate(HELD_OUT)
        ]
        for engine in engines:
            engine.until_ready()
            engine.run(probe_stages(0)[1], seed=0)  # the first request pays for what is set up late
        _say(console, f"{len(engines)} engines started in {time.monotonic() - started:.0f} s")
        calibration_file = (arguments.keep or folder) / "cpu_tiny.json"
        probe = _probe(engines[0], HELD_OUT[0].flags, calibration_file)
        console.print(_constants_table(probe))
        figures = [
            figure("probe: error of one step, median", probe.step_error_percent, "%"),
            figure("probe: the engine's share of a core", probe.core_percent, "%"),
        ]
        judged: list[Judged] = []
        for held_out, engine in zip(HELD_OUT, engines, strict=True):
            runs = _run_held_out(held_out, engine, probe, arguments)
            judged.append(Judged(held_out, probe, runs))
            figures += judged[-1].rule_figures()
            _say(console, f"{held_out.name}: {judged[-1].summary()}")
        if arguments.keep is not None:
            for number, engine in enumerate(engines):
                kept = arguments.keep / f"notes-{number}.jsonl"
                kept.write_bytes(engine.notes_file.read_bytes())
    return [*figures, *_error_figures(judged, probe, console)]


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False)


def _probe(engine: RealEngine, flags: EngineFlags, file: Path) -> Probe:
    """Runs the probe, fits, writes the constants and takes them from the file."""
    runs = [engine.run(stage, seed) for seed in range(PROBE_ROUNDS) for stage in probe_stages(seed)]
    on_wall = [run.notes for run in runs]
    notes = [one.on_engine_clock() for one in on_wall]
    steps = [step for one in notes for step in one.steps]
    frontend = fit_frontend([start for one in on_wall for start in one.idle_starts])
    when = time.strftime("%Y-%m-%d", time.gmtime())
    measured = Calibration(
        step_time=fit_steps(steps),
        kv_capacity_tokens=(flags.num_gpu_blocks - 1) * 32,
        sources={"*": f"probe of vLLM on this machine's CPU, {len(steps)} steps, {when}"},
    )
    file.write_text(json.dumps(measured.to_json(), indent=2) + "\n")
    calibration = Calibration.from_json(json.loads(file.read_text()))
    share = sum(n.busy_seconds for n in notes) / sum(n.busy_seconds for n in on_wall)
    error, _ = step_errors_percent(calibration.step_time, steps)
    return Probe(calibration, frontend, 100 * share, len(steps), error)


def _constants_table(probe: Probe) -> Table:
    title = f"cpu_tiny: {probe.calibration.sources['*']}"
    table = Table(title=title, title_justify="left")
    table.add_column("constant")
    table.add_column("seconds", justify="right")
    for name, value in probe.calibration.to_json()["step_time"].items():
        table.add_row(name, f"{value:.3g}")
    return table


def _run_held_out(
    held_out: HeldOut, engine: RealEngine, probe: Probe, arguments: argparse.Namespace
) -> list[RealRun]:
    """Its repetitions, each with other requests, about as long as asked for."""
    runs = []
    for repetition in range(arguments.repetitions):
        seed = 1000 * arguments.seed + repetition
        sample = held_out.requests(_SAMPLE_REQUESTS, seed)
        at_once = [
            Arrival(p.name, 0.0, 0.0, 0.0, p.prompt_tokens, p.output_tokens, p.priority, 0)
            for p in sample
        ]
        step_time = probe.calibration.step_time
        seconds = predict(at_once, held_out.flags, step_time).makespan_seconds
        count = round(max(60, min(_SAMPLE_REQUESTS * arguments.seconds / seconds, 600)))
        planned = held_out.spread(
            held_out.requests(count, seed), seconds * count / _SAMPLE_REQUESTS, seed
        )
        runs.append(engine.run(planned, seed))
    return runs


class Judged:
    """A held-out run's repetitions, measured and predicted, on both clocks."""

    def __init__(self, held_out: HeldOut, probe: Probe, runs: Sequence[RealRun]) -> None:
        self.held_out = held_out
        self._probe = probe
        self._runs = runs
        self._notes = [run.notes.on_engine_clock() for run in runs]
        self.measured = [notes.outcome for notes in self._notes]
        self.predicted = self.predictions(probe.calibration)

    def predictions(self, calibration: Calibration) -> list[Outcome]:
        """One a repetition; the KV cache is as much smaller or larger as the calibration's."""
        factor = calibration.kv_capacity_tokens / self._probe.calibration.kv_capacity_tokens
        flags = self.held_out.flags.with_blocks(factor)
        return [predict(notes.arrivals, flags, calibration.step_time) for notes in self._notes]

    def wall_errors_percent(self) -> list[float]:
        """Of the same figures on the wall's clock, by constants slowed by the probe's share."""
        step_time = self._probe.calibration.step_time.scaled(100 / self._probe.core_percent)
        predicted = [
            predict(run.notes.arrivals, self.held_out.flags, step_time, self._probe.frontend)
            for run in self._runs
        ]
        measured = [run.notes.outcome for run in self._runs]
        return [_error_of_medians(metric, predicted, measured) for metric in self.metrics]

    @property
    def metrics(self) -> list[Metric]:
        """All, but for preemptions where there were none and were to be none."""
        outcomes = [*self.measured, *self.predicted]
        return [metric for metric in METRICS if any(metric.read(o) for o in outcomes)]

    @property
    def core_percent(self) -> float:
        """The engine's clock over the wall's while it was busy."""
        wall = sum(run.notes.busy_seconds for run in self._runs)
        return 100 * sum(notes.busy_seconds for notes in self._notes) / wall

    def summary(self) -> str:
        """For the console."""
        requests = "/".join(str(len(notes.arrivals)) for notes in self._notes)
        seconds = "/".join(f"{run.notes.outcome.makespan_seconds:.1f}" for run in self._runs)
        later = [
            1000 * (seconds - run.notes.outcome.first_token_seconds[name])
            for run in self._runs
            for name, seconds in run.client_ttft_seconds.items()
        ]
        before = [
            1000 * (a.reached_at - a.ranked_at) for run in self._runs for a in run.notes.arrivals
        ]
        return (
            f"{requests} requests in {seconds} s, the engine had {self.core_percent:.0f}% of a "
            f"core; the API process took {percentile(before, 50):.1f} ms (p95 "
            f"{percentile(before, 95):.1f}) before it, and the client saw first tokens "
            f"{percentile(later, 50):.1f} ms (p95 {percentile(later, 95):.1f}) after it"
        )

    def rule_figures(self) -> list[Figure]:
        """What needs no clock, and the step times alone."""
        alike = [replay(run.notes, self.held_out.flags) for run in self._runs]
        steps = [step for notes in self._notes for step in notes.steps]
        one, whole = step_errors_percent(self._probe.calibration.step_time, steps)
        name = self.held_out.name
        return [
            figure(
                f"{name}: steps scheduled alike", min(alike), "%", Aim(">=", 99.9),
                f"{len(steps):,} steps",
            ),
            figure(f"{name}: error of one step, median", one, "%"),
            figure(f"{name}: error of all steps together", whole, "%"),
            figure(f"{name}: the engine's share of a core", self.core_percent, "%"),
        ]  # fmt: skip


def _error_of_medians(
    metric: Metric, predicted: Sequence[Outcome], measured: Sequence[Outcome]
) -> float:
    return error_percent(_median(metric, predicted), _median(metric, measured))


def _median(metric: Metric, outcomes: Sequence[Outcome]) -> float:
    return statistics.median(metric.read(outcome) for outcome in outcomes)


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
            error = _error_of_medians(metric, one.predicted, one.measured)
            moved = {
                key: _error_of_medians(metric, predictions[index], one.measured)
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
        f"vLLM {_median(metric, one.measured):,.0f} ({low:,.0f}..{high:,.0f}), "
        f"model {_median(metric, one.predicted):,.0f} {metric.unit}; "
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
    module, function = _ARTIFACT
    try:
        check = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):
        return []
    figures: Sequence[Figure] = check(console)
    return figures


if __name__ == "__main__":
    sys.exit(benchmark("fidelity", __doc__ or "", measure, options))
