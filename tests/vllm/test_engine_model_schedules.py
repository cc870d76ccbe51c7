"""The engine model schedules as real vLLM does: a run with preemptions, step by step.

The recorder, the client and the comparison are those of `scripts/bench fidelity`; times play no
part here, so a busy machine can't fail it.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_every_step_is_scheduled_alike(python: Path, tiny_model: Path) -> None:
    """Chunked prefill, three priorities, a KV cache that overflows, resumes that hit remains."""
    engine, workloads = module("fidelity_engine"), module("fidelity_workloads")
    flags = dataclasses.replace(workloads.TIGHT, max_num_batched_tokens=256, num_gpu_blocks=96)
    held_out = dataclasses.replace(workloads.HELD_OUT[1], flags=flags)
    planned = held_out.spread(held_out.requests(40, seed=5), 3.0, seed=5)
    with (
        module("tempfile").TemporaryDirectory(prefix="tg-") as folder,
        engine.real_engine(python, tiny_model, flags, Path(folder, "e")) as real,
    ):
        real.until_ready()
        notes = real.run(planned, seed=5).notes
    assert len(notes.arrivals) == 40
    assert notes.outcome.preemptions > 0
    assert notes.outcome.recomputed_tokens > 0
    assert module("fidelity_model").replay(notes, flags) == 100.0
