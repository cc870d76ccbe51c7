"""Real vLLM on CPU with the plug-in: latency of a protected tier, throughput, what a plan costs.

Three engines with the tests' tiny model stay up side by side (stock first come first served, stock
priority, with the plug-in) and take turns, so that all meet the same machine: in each round each
serves the same arrivals. ``plug-in + sidecar`` is the plug-in's engine behind the sidecar's own
scheduler and entrance. Times are on the clock of the engine's thread (``engine_worker``), which
stands still while something else has the core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engine_workloads as load
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from testbed.real_vllm import ENVIRONMENT, VllmError, make_tiny_model, vllm_python

ROOT = Path(__file__).resolve().parents[1]
FCFS, PRIORITY, PLUGIN, BOTH = "stock FCFS", "stock priority", "plug-in", "plug-in + sidecar"
CONTESTANTS = (FCFS, PRIORITY, PLUGIN, BOTH)
START_SECONDS = 1_200.0
PAIRS = 7
"""Of runs of a lone tenant, half as long as others."""
_ENVIRONMENT = ENVIRONMENT | {
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "benchmarks"))),
}
Run = dict[str, Any]


class Engine:
    """One ``engine_worker``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def answer(self) -> Any:
        """The next line that is one; VllmError: it ended before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        said = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise VllmError(f"the engine ended: {' '.join(said)[:300]}")

    def run(self, sent: Sequence[load.Sent], seconds: float, *, front: bool = False) -> Run:
        """Serve these; what came of it."""
        told = {
            "requests": [one.json() for one in sent],
            "seconds": seconds,
            "front": load.policy() if front else None,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer: Run = self.answer()
        return answer


@contextmanager
def engines(python: Path, model: Path, folder: Path) -> Iterator[dict[str, Engine]]:
    """The three, started side by side."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps(load.policy()))
    plugin = {
        "scheduler_cls": "tidegate.vllm_plugin.TidegateScheduler",
        "additional_config": {
            "tidegate": {"policy": str(policy), "statistics": str(folder / "steps.sock")}
        },
    }
    kinds: dict[str, dict[str, Any]] = {
        FCFS: {},
        PRIORITY: {"scheduling_policy": "priority", "priorities": load.PRIORITIES},
        PLUGIN: plugin,
    }
    with ExitStack() as stack:
        started = {}
        for number, (name, arguments) in enumerate(kinds.items()):
            log = folder / f"{number}.log"
            output = stack.enter_context(log.open("w"))
            process = subprocess.Popen(
                [
                    python, ROOT / "benchmarks" / "engine_worker.py", model,
                    json.dumps(arguments | _size()),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
                env={**os.environ, **_ENVIRONMENT},
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            started[name] = Engine(process, log)
        for one in started.values():
            one.answer()
        yield {**started, BOTH: started[PLUGIN]}


def _size() -> dict[str, Any]:
    return {
        "max_model_len": 4096,
        "max_num_seqs": load.SEATS,
        "max_num_batched_tokens": load.BATCHED_TOKENS,
        "block_size": load.BLOCK_TOKENS,
        "num_gpu_blocks_override": load.BLOCKS,
        "enforce_eager": True,
        "disable_log_stats": True,
    }


@dataclass
class Tally:
    """All runs of one contestant on one workload."""

    t0_seconds: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    preemptions: int = 0
    lost_tokens: int = 0
    scheduled_tokens: int = 0
    kept_per_second: list[float] = field(default_factory=list)
    """Tokens computed, less those computed again."""
    waited_steps: list[float] = field(default_factory=list)
    """Of each T0, that began after it was due and did not compute it."""
    failures: int = 0
    steps: int = 0
    seconds: float = 0.0
    plan_seconds: float = 0.0

    def add(self, run: Run, sent: Sequence[load.Sent]) -> None:
        """One run; a T0 without a first token waited to the end of it."""
        for one in sent:
            if one.tier == "t0":
                first = run["first_token"][one.name]
                self.t0_seconds.append((run["seconds"] if first is None else first) - one.at)
        self.waited_steps += [math.inf if n is None else n for n in run["waited_steps"]]
        self.tokens_per_second.append(run["generated"] / run["seconds"])
        kept = run["scheduled_tokens"] - run["lost_tokens"]
        self.kept_per_second.append(kept / run["seconds"])
        self.preemptions += run["preemptions"]
        self.lost_tokens += run["lost_tokens"]
        self.scheduled_tokens += run["scheduled_tokens"]
        self.failures += run["failures"]
        self.steps += run["steps"]
        self.seconds += run["seconds"]
        self.plan_seconds += run["plan_seconds"]

    def t0(self, percent: float) -> float:
        """Nearest rank, in seconds."""
        return _percentile(self.t0_seconds, percent)

    @property
    def lost_ratio(self) -> float:
        return self.lost_tokens / max(self.scheduled_tokens, 1)


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def measure_rates(engine: Engine, mix: load.Workload, seconds: float) -> dict[str, float]:
    """Requests a second of each shape that an engine serves which has nothing else to do."""
    rates = {}
    for shape in mix.shapes:
        run = engine.run(load.backlog(shape, 400, seed=0), seconds)
        rates[shape.tier] = max(run["ended"], 1) / run["seconds"]
    return rates


def rounds(
    served: Mapping[str, Engine], mix: load.Workload, count: int, seconds: float
) -> tuple[dict[str, Tally], Tally]:
    """By contestant, and T0 alone on the first of them."""
    rates = measure_rates(served[FCFS], mix, seconds / 2)
    tallies, alone = {name: Tally() for name in CONTESTANTS}, Tally()
    for number in range(count):
        parts = {s.tier: load.arrivals(s, rates[s.tier], seconds, number) for s in mix.shapes}
        everything = [one for part in parts.values() for one in part]
        order = list(CONTESTANTS)
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            run = served[name].run(everything, seconds, front=name == BOTH)
            tallies[name].add(run, everything)
        alone.add(served[FCFS].run(parts["t0"], seconds), parts["t0"])
    return tallies, alone


def mix_figures(mix: load.Workload, tallies: Mapping[str, Tally], alone: Tally) -> list[Figure]:
    """Of one workload."""
    found = [
        figure(f"{mix.name}: T0 TTFT p{p} alone", alone.t0(p) * 1e3, "ms") for p in (50, 95, 99)
    ]
    for name, tally in tallies.items():
        head, ours = f"{mix.name}: {name}: ", name in (PLUGIN, BOTH)
        found += _latency(head, tally, alone, Aim("<=", 1.5) if ours else None)
        found += _work(head, tally, tallies[FCFS], Aim(">=", 0.95) if ours else None)
    steered = tallies[PLUGIN]
    found.append(
        figure(
            f"{mix.name}: plug-in: planning's share of the engine's time",
            100 * steered.plan_seconds / steered.seconds,
            "%",
            why=f"{1e3 * steered.plan_seconds / steered.steps:.2f} ms of steps of "
            f"{1e3 * steered.seconds / steered.steps:.1f} ms with idle time; a GPU's take 20 to 40",
        )
    )
    if mix.name == "avalanche":
        found += _avalanche(tallies)
    return found


def _latency(head: str, tally: Tally, alone: Tally, aim: Aim | None) -> list[Figure]:
    """T0's, and whether it lies with the scheduler or with the step that it found under way."""
    found = []
    for percent in (50, 95, 99):
        times = tally.t0(percent) / alone.t0(percent)
        why = f"{tally.t0(percent) * 1e3:.0f} ms of {len(tally.t0_seconds)} requests"
        name = f"{head}T0 TTFT p{percent} over alone"
        found.append(figure(name, times, "", aim if percent == 95 else None, why))
    at_once = sum(steps == 0 for steps in tally.waited_steps)
    found.append(
        figure(
            f"{head}T0 in the first step that began after it came",
            100 * at_once / len(tally.waited_steps),
            "%",
            why=f"p95: {_percentile(tally.waited_steps, 95):.0f} steps later",
        )
    )
    return found


def _work(head: str, tally: Tally, fcfs: Tally, aim: Aim | None) -> list[Figure]:
    """What an engine got done, and what it did twice."""
    generated = _over(tally.tokens_per_second, fcfs.tokens_per_second)
    why = f"median of {len(generated)} rounds, {min(generated):.2f} to {max(generated):.2f}"
    return [
        figure(f"{head}throughput over FCFS", statistics.median(generated), "", aim, why),
        figure(
            f"{head}tokens computed and kept, over FCFS",
            statistics.median(_over(tally.kept_per_second, fcfs.kept_per_second)),
            "",
            why="prompts and outputs; how many are outputs depends on whose turn it is",
        ),
        figure(
            f"{head}preemptions",
            float(tally.preemptions),
            "",
            why=f"{100 * tally.lost_ratio:.1f}% of tokens scheduled were computed again, "
            f"{tally.failures} hooks failed",
        ),
    ]


def _over(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _avalanche(tallies: Mapping[str, Tally]) -> list[Figure]:
    theirs, ours = tallies[PRIORITY], tallies[PLUGIN]
    lost = ours.lost_ratio / theirs.lost_ratio if theirs.lost_ratio else None
    return [
        figure(
            "avalanche: tokens computed again over scheduled, plug-in over stock priority",
            lost,
            "",
            Aim("<=", 0.2),
            f"{100 * ours.lost_ratio:.2f}% for {100 * theirs.lost_ratio:.2f}%",
        ),
        figure(
            "avalanche: T0 TTFT p99, plug-in over stock priority",
            ours.t0(99) / theirs.t0(99),
            "",
            Aim("<=", 0.5),
        ),
    ]


def lone_tenant(served: Mapping[str, Engine], pairs: int, seconds: float) -> Figure:
    """A backlog of one tier, stock and plug-in in turn."""
    shape = load.workloads()[0].shapes[-1]
    ratios, planning = [], []
    for number in range(pairs):
        sent = load.backlog(shape, 400, number)
        order = (FCFS, PLUGIN) if number % 2 else (PLUGIN, FCFS)
        runs = {name: served[name].run(sent, seconds) for name in order}
        rate = {name: run["generated"] / run["seconds"] for name, run in runs.items()}
        ratios.append(rate[PLUGIN] / rate[FCFS])
        planning.append(runs[PLUGIN]["plan_seconds"] / runs[PLUGIN]["seconds"])
    why = (
        f"median of {pairs} interleaved pairs, {min(ratios):.3f} to {max(ratios):.3f}; planning "
        f"takes {100 * statistics.median(planning):.1f}% of so small a model's steps"
    )
    name = "a lone tenant's throughput with the plug-in, over stock"
    return figure(name, statistics.median(ratios), "", Aim(">=", 0.98), why)


def plan_figures(python: Path, model: Path) -> list[Figure]:
    """What a plan costs, by class."""
    done = subprocess.run(
        [python, ROOT / "benchmarks" / "engine_plan.py", model],
        capture_output=True, text=True, env={**os.environ, **_ENVIRONMENT}, check=False,
        timeout=START_SECONDS,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        why = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return [figure("plan time", None, "ms", Aim("<=", 0.3), why[0][:300])]
    found = []
    for variant, told in json.loads(lines[-1]).items():
        extra = 1e3 * (told["ours"] - told["stock"])
        why = f"schedule(): {1e3 * told['ours']:.2f} ms, stock's {1e3 * told['stock']:.2f} ms"
        name = f"plan time, {variant}, 256 running and 200 waiting, median"
        found.append(figure(name, extra, "ms", Aim("<=", 0.3), why))
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """How long it takes."""
    parser.add_argument("--rounds", type=int, default=7, help="of each workload (7)")
    parser.add_argument("--seconds", type=float, default=6.0, help="engine time of a run (6)")
    parser.add_argument("--only", choices=("mixes", "plan"), help="one part")


def measure(arguments: argparse.Namespace, console: Console) -> list[Figure]:
    """Everything."""
    mixes = load.workloads()
    runs = sum(not mix.missing for mix in mixes) * (5 * arguments.rounds + 2) + PAIRS
    console.print(f"about {(runs * arguments.seconds + 180) / 60:.0f} minutes of one idle core")
    found: list[Figure] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tg-") as scratch:
        try:
            python = vllm_python()
            model = make_tiny_model(python, Path(scratch, "model"))
            if arguments.only != "mixes":
                found += plan_figures(python, model)
            if arguments.only != "plan":
                found += _mixes(python, model, Path(scratch), mixes, arguments, console)
        except VllmError as missing:
            found.append(figure("real vLLM on CPU", None, "", why=str(missing)))
    console.print(f"{time.monotonic() - began:.0f} s")
    return found


def _mixes(
    python: Path,
    model: Path,
    folder: Path,
    mixes: Sequence[load.Workload],
    arguments: argparse.Namespace,
    console: Console,
) -> list[Figure]:
    found = []
    with engines(python, model, folder) as served:
        console.print("engines are up")
        found.append(lone_tenant(served, PAIRS, arguments.seconds / 2))
        for mix in mixes:
            if mix.missing:
                found.append(figure(mix.name, None, "", why=mix.missing))
                continue
            console.print(mix.name)
            tallies, alone = rounds(served, mix, arguments.rounds, arguments.seconds)
            found += mix_figures(mix, tallies, alone)
    return found


if __name__ == "__main__":
    sys.exit(benchmark("engine", (__doc__ or "").splitlines()[0], measure, options))
