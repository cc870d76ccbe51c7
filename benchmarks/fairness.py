"""How fairly tenants share an engine: the VTC artifact's trace, and what the constants change.

Three parts (``--only``):

* *model*: the engine model, its constants fitted on the published FCFS run's latencies alone,
  beside the published runs of every policy. Where the model is right about those, it may be
  believed about a policy that was never run there.
* *ours*: the production scheduler (unit Tokens) beside VTC, its oracle, start-time fair queueing
  and deficit round robin, in one ensemble, on the trace and on the trace in reverse; then with
  each constant at 0.8 and 1.2.
* *prefix*: whether an order by cached prefix inside a quantum pays, on Mooncake's conversations.

An ensemble is the same runs with every constant 1% off (normal): medians and ranges, as one run
says little about a largest gap. Model only: nothing ran on an A10G here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import fairness_model
import fairness_ours
import fairness_prefix
from report import Figure, benchmark, figure
from rich.console import Console

PARTS = {
    "model": fairness_model.measure,
    "ours": fairness_ours.measure,
    "prefix": fairness_prefix.measure,
}


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes; unset: one a core")
    parser.add_argument("--members", type=int, default=32, help="runs of an ensemble; at least 16")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="parts; unset: all")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """The figures of the parts asked for."""
    traces = os.environ.get("TIDEGATE_TRACES")
    if not traces:
        why = "TIDEGATE_TRACES names no folder of traces (docs/benchmarks.md)"
        return [figure(part, None, "", why=why) for part in arguments.only or PARTS]
    figures: list[Figure] = []
    for part in arguments.only or PARTS:
        figures += PARTS[part](arguments, console, Path(traces))
    return figures


if __name__ == "__main__":
    raise SystemExit(benchmark("fairness", __doc__ or "", measure, options))
