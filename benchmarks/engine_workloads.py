"""What ``scripts/bench engine`` sends: a protected tier beside batch work that is more than fits.

Rates follow the machine: what each shape of request alone lets an engine do is measured first, and
the loads are parts of that. T0 comes at half of its reserved half, batch at 1.2 times what fits.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.workload.traces.azure import read_azure_csv

T0_LOAD, BATCH_LOAD = 0.25, 1.2
RESERVED_PERCENT = 50
AZURE_PROMPT_SCALE, AZURE_OUTPUT_SCALE = 8, 4
MOST_PROMPT_TOKENS = 700
AZURE_ROWS = 4_000

Draw = Callable[[random.Random], tuple[int, int]]
"""Prompt and output tokens of one request."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one tier."""

    tier: str
    draw: Draw
    load: float
    """Offered, over what an engine that serves nothing else could."""
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """One mix; ``missing``: why it cannot be sent here."""

    name: str
    shapes: tuple[Shape, ...]
    missing: str = ""


def between(prompt: tuple[int, int], output: tuple[int, int]) -> Draw:
    """Uniform sizes."""
    return lambda draw: (draw.randint(*prompt), draw.randint(*output))


def workloads() -> list[Workload]:
    """All of them."""
    interactive = between((20, 120), (8, 24))
    return [
        Workload(
            "mixed",
            (
                Shape("t0", interactive, T0_LOAD),
                Shape("t2", between((1_000, 2_500), (8, 24)), 0.2),
                Shape("t3", between((100, 400), (30, 90)), BATCH_LOAD - 0.2),
            ),
        ),
        _azure(),
        Workload(
            "avalanche",
            (
                Shape("t0", between((60, 200), (10, 30)), T0_LOAD, shared_tokens=32),
                Shape("t3", between((60, 200), (300, 700)), BATCH_LOAD),
            ),
        ),
    ]


def _azure() -> Workload:
    folder = os.environ.get("TIDEGATE_TRACES")
    files = {
        tier: Path(folder or "", "azure2023", f"AzureLLMInferenceTrace_{name}.csv")
        for tier, name in (("t0", "conv"), ("t3", "code"))
    }
    if folder is None or not all(file.exists() for file in files.values()):
        return Workload("Azure lengths", (), "TIDEGATE_TRACES names no folder with azure2023")
    loads = {"t0": T0_LOAD, "t3": BATCH_LOAD}
    return Workload(
        "Azure lengths", tuple(Shape(tier, _lengths(files[tier]), loads[tier]) for tier in files)
    )


def _lengths(file: Path) -> Draw:
    rows = [
        (
            min(max(row.prompt_tokens // AZURE_PROMPT_SCALE, 4), MOST_PROMPT_TOKENS),
            max(row.output_tokens // AZURE_OUTPUT_SCALE, 2),
        )
        for row in islice(read_azure_csv(file), AZURE_ROWS)
    ]
    return lambda draw: draw.choice(rows)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as ``engine_worker`` takes it."""

    name: str
    tier: str
    at: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0

    def json(self) -> dict[str, Any]:
        return asdict(self)


def backlog(shape: Shape, count: int, seed: int) -> list[Sent]:
    """So many of a shape, all at once."""
    draw = random.Random(f"{shape.tier} {seed}")
    return [
        Sent(f"{shape.tier}-{i}", shape.tier, 0.0, *shape.draw(draw), shape.shared_tokens)
        for i in range(count)
    ]


def arrivals(shape: Shape, requests_per_second: float, seconds: float, seed: int) -> list[Sent]:
    """Poisson arrivals of a shape at its load; the same for the same seed."""
    draw = random.Random(f"{shape.tier} {seed}")
    sent: list[Sent] = []
    at = draw.expovariate(requests_per_second * shape.load)
    while at < seconds:
        sizes = shape.draw(draw)
        sent.append(Sent(f"{shape.tier}-{len(sent)}", shape.tier, at, *sizes, shape.shared_tokens))
        at += draw.expovariate(requests_per_second * shape.load)
    return sent


def policy() -> dict[str, Any]:
    """Of all workloads."""
    evictable = {"preemption": {"evictable": True}}
    tiers: list[dict[str, Any]] = [
        {"name": "t0", "priority": 200, "reserved_percent": RESERVED_PERCENT},
        {"name": "t2", "priority": 100, **evictable},
        {"name": "t3", "priority": 0, **evictable},
    ]
    queue = {"queue": {"max_wait_seconds": 600.0}}
    return {
        "version": 1,
        "generation": 1,
        "pool": "bench/pool",
        "model": {"name": "tiny"},
        "tiers": [tier | queue for tier in tiers],
        "tenants": [{"name": tier["name"], "tier": tier["name"]} for tier in tiers],
        "engine": {"max_num_seqs": SEATS, "max_num_batched_tokens": BATCHED_TOKENS},
        "kv_pools": [{"name": "protected", "tiers": ["t0"], "percent": RESERVED_PERCENT}],
    }


SEATS, BATCHED_TOKENS, BLOCKS, BLOCK_TOKENS = 24, 2_048, 240, 32
PRIORITIES = {"t0": 0, "t2": 100, "t3": 200}
"""As vLLM counts: lower is earlier."""
