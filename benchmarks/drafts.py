"""Drafts that give way to prompts: what planning both together gains.

One engine of the node, a draft of three tokens for everybody, 240 long answers of T3 under way
(prompts of 100 tokens, outputs of 1,500) and one T0 a second (800 and 100); one seed, steps of
1,024 and of 2,048 tokens. In the smaller ones decodes and their drafts leave prompts next to
nothing, unless they give way (`tidegate/scheduling/drafts.py`); in the larger ones all have room.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from node_systems import DRAFT_TOKENS
from report import Figure, benchmark, figure
from rich.console import Console
from simulated import Run, RunSummary, execute, model_only

from tidegate.simulator.engine_model import DRAFTS, Speculation
from tidegate.simulator.simulation.node_policy import node_policy, one_engine
from tidegate.simulator.simulation.plugin import PluginOptions
from tidegate.simulator.simulation.system import Scheduling, System
from tidegate.workload.clients.client import (
    ClosedClient,
    OpenClient,
    Workload,
    constant,
    log_normal,
    poisson,
)
from tidegate.workload.clients.mixed_node import tenants_of

SECONDS, WARMUP_SECONDS, SEED = 150.0, 40.0, 1
STEP_TOKENS = (1_024, 2_048)
LONG_ANSWERS = 240


def long_answers(seed: int) -> Workload:
    """Decodes that fill a step, and prompts that come meanwhile."""
    answers = ClosedClient(
        "t3", "t3", tenants_of("t3"), LONG_ANSWERS, constant(100), constant(1_500), seed,
        spread_seconds=10.0,
    )  # fmt: skip
    prompts = OpenClient(
        "t0", "t0", tenants_of("t0"), poisson(1.0), log_normal(800, 0.5, 4_000),
        log_normal(100, 0.5, 1_000), seed,
    )  # fmt: skip
    return Workload(name="long answers", tiers=("t0", "t3"), clients=(prompts, answers))


def drafting(step_tokens: int, drafts_yield: bool, work: Workload) -> System:
    """Ours, with a draft for all."""
    system = one_engine(
        Scheduling.TIDEGATE, node_policy(work, max_num_batched_tokens=step_tokens),
        max_num_batched_tokens=step_tokens, plugin=PluginOptions(drafts_yield=drafts_yield),
    )  # fmt: skip
    draft = Speculation.head(DRAFTS["chat_tp8"], DRAFT_TOKENS)
    return System(system.name, (replace(system.groups[0], speculation=draft),))


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """With and without, in small and large steps."""
    runs = [
        Run(
            f"{tokens} {drafts_yield}", long_answers, partial(drafting, tokens, drafts_yield),
            SEED, SECONDS, WARMUP_SECONDS,
        )
        for tokens in STEP_TOKENS
        for drafts_yield in (True, False)
    ]  # fmt: skip
    done = execute(runs, arguments.jobs, console, "long answers with drafts")
    found: list[Figure] = []
    for tokens in STEP_TOKENS:
        yields, keeps = (done[f"{tokens} {drafts_yield}", SEED] for drafts_yield in (True, False))
        found += _figures(f"steps of {tokens:,} tokens", yields, keeps)
    return model_only(found)


def _figures(head: str, yields: RunSummary, keeps: RunSummary) -> list[Figure]:
    found = [
        figure(
            f"{head}: generated tokens/s with drafts that give way, over those that do not",
            yields.tokens_per_second / keeps.tokens_per_second,
            "",
            why=f"{yields.tokens_per_second:,.0f} and {keeps.tokens_per_second:,.0f}",
        )
    ]
    for name, one in (("give way", yields), ("do not", keeps)):
        t0 = one.tiers["t0"]
        found.append(
            figure(
                f"{head}: T0 TTFT p50, drafts {name}",
                t0.ttft_p50,
                "s",
                why=f"P99 {t0.ttft_p99:.3g} s of {t0.requests} requests; "
                f"T0's time per token {1e3 * t0.seconds_per_token:.1f} ms",
            )
        )
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")


if __name__ == "__main__":
    sys.exit(benchmark("drafts", __doc__ or "", measure, options))
