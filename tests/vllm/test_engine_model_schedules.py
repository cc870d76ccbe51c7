"""The engine model schedules as real vLLM does: a run with preemptions, step by step.

The recorder, the client and the comparison are those of `scripts/bench fidelity`; times play no
part here, so a busy machine can't fail it.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_every_step_is_scheduled_alike(python: Path, tiny_model: Path) -> None:
    """Chunked prefill with a cap on one prompt, three priorities, prefixes in common, a watermark,
    a KV cache that overflows, resumes that hit what remains."""
    engine, workloads = module("fidelity_engine"), module("fidelity_workloads")
    flags = dataclasses.replace(
        workloads.TIGHT,
        max_num_batched_tokens=256,
        num_gpu_blocks=96,
        long_prefill_token_threshold=96,
        watermark=0.05,
    )
    held_out = dataclasses.replace(workloads.HELD_OUT[1], flags=flags)
    planned = [
        dataclasses.replace(one, shared_tokens=min(one.prompt_tokens - 1, 40 * (number % 4)))
        for number, one in enumerate(held_out.spread(held_out.requests(60, seed=5), 4.0, seed=5))
    ]
    with (
        module("tempfile").TemporaryDirectory(prefix="tg-") as folder,
        engine.real_engine(python, tiny_model, flags, Path(folder, "e")) as real,
    ):
        real.until_ready()
        notes = real.run(planned, seed=5).notes
    assert len(notes.arrivals) == 60
    assert notes.outcome.preemptions > 0
    assert notes.outcome.recomputed_tokens > 0
    assert prefix_hits_tokens(notes) > 500
    shared = {one.name: one.shared_tokens for one in planned}
    replay = module("fidelity_model").replay
    assert replay(notes, flags, shared) == 100.0
    assert replay(notes, flags) < 100.0  # had the model not known of the prefixes


def prefix_hits_tokens(notes: Any) -> int:
    """Tokens that requests had computed when they were first served."""
    first: dict[str, int] = {}
    for step in notes.steps:
        for row in step.rows:
            first.setdefault(row.name, row.computed)
    return sum(first.values())
