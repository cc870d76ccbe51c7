"""Every constant of the simulated engines, with its source and date: the one place for them.

A calibration is one engine (hardware, model, parallelism): step-time constants and KV capacity.
A draft calibration is what one draft proposes to that engine and what its passes cost. They come
from published measurements or from hardware figures and **are never fitted to a number that a
figure or a benchmark of this project reports**; a change here is a commit of its own, before the
figures that it moves are run.

How far a figure depends on them is shown, not argued: ``variations`` yields a calibration with each
constant at 0.8 and 1.2 of itself, and every figure is printed with all of them.

The engine of VTC's artifact (one A10G) runs another loop, whose times have another form:
``slora.timing``. Its two calibrations come out of ``slora.fitting``, which anybody with the traces
can run again; **neither saw a number that a figure reports**.

vLLM on this machine's CPU has no entry: it is another number on every machine, so
``scripts/bench fidelity`` measures it by a short probe each time and prints what it found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from tidegate.simulator.engine_model.step_time import StepTimeModel
from tidegate.simulator.slora.timing import Timing

KV_CAPACITY = "kv_capacity_tokens"
FACTORS = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A step-time model together with the KV capacity and the source of every constant.

    ``sources`` names each constant, or has one entry ``*`` for all of them.
    """

    step_time: StepTimeModel
    kv_capacity_tokens: int
    sources: dict[str, str]

    def scaled_constant(self, name: str, factor: float) -> Calibration:
        """The same with one constant (of the step time, or the KV capacity) times ``factor``."""
        if factor <= 0:
            raise ValueError("the factor must be positive")
        if name == KV_CAPACITY:
            return replace(self, kv_capacity_tokens=round(self.kv_capacity_tokens * factor))
        value = getattr(self.step_time, name) * factor
        return replace(self, step_time=replace(self.step_time, **{name: value}))

    def variations(self) -> Iterator[tuple[str, float, Calibration]]:
        """(constant, factor, calibration) for each constant that is not 0, at 0.8 and at 1.2."""
        names = [c.name for c in fields(StepTimeModel) if getattr(self.step_time, c.name)]
        for name in (*names, KV_CAPACITY):
            for factor in FACTORS:
                yield name, factor, self.scaled_constant(name, factor)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, for a calibration that was measured."""
        step_time = {c.name: getattr(self.step_time, c.name) for c in fields(StepTimeModel)}
        return {
            "step_time": step_time,
            KV_CAPACITY: self.kv_capacity_tokens,
            "sources": dict(self.sources),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Calibration:
        """What ``to_json`` gave. KeyError, TypeError or ValueError: it is not that."""
        step_time = StepTimeModel(**{k: float(v) for k, v in document["step_time"].items()})
        return cls(step_time, int(document[KV_CAPACITY]), dict(document["sources"]))


@dataclass(frozen=True, slots=True)
class DraftCalibration:
    """A draft for speculation: what one of its passes takes, and how often it is right.

    ``acceptance_percent`` is accepted over drafted tokens, as vLLM's metrics count it, by kind of
    traffic.
    """

    pass_time: StepTimeModel
    acceptance_percent: dict[str, float]
    sources: dict[str, str]


_VIDUR = (
    "microsoft/vidur @ 7d47513, data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv "
    "x 80 layers, plus network/h100_dgx/all_reduce.csv at tokens x 8192 x 2 bytes x 160 "
    "(read 2026-11)"
)
_KV_BYTES = "80 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes = 327,680 bytes a token"
_BY_TOKENS = "0: the profile counts a decode as one token; sampling stands in the overhead"
_NO_GRAPHS = "0: the profile times kernels one by one; launches stand in the overhead"
_OVERHEAD = "assumption for scheduler, sampling and launch (2..5 ms), 2026-11"


def _bf16_sources(gpus: int) -> dict[str, str]:
    return {
        "overhead_seconds": _OVERHEAD,
        "floor_seconds": f"median of 1..64 tokens: {_VIDUR}",
        "base_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_token_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_row_seconds": _BY_TOKENS,
        "prefill_seconds": _NO_GRAPHS,
        "per_kv_token_seconds": (
            f"{_KV_BYTES} / {gpus} GPUs / (3.35 TB/s x 0.8); NVIDIA H100 SXM sheet"
        ),
        "per_pair_seconds": (
            f"4 x 8192 x 80 = 2.62 MFLOP a pair / {gpus} GPUs / (989 TFLOP/s x 0.47); "
            "NVIDIA H100 SXM sheet"
        ),
        "kv_capacity_tokens": (
            f"({gpus} x 80 GB x 0.9 - 141 GB weights - 2..4 GB a GPU) / ({_KV_BYTES})"
        ),
    }


H100_70B_TP8 = Calibration(
    step_time=StepTimeModel(
        overhead_seconds=0.003,
        floor_seconds=0.0140,
        base_seconds=0.0095,
        per_token_seconds=4.12e-5,
        per_kv_token_seconds=1.53e-8,
        per_pair_seconds=7.0e-10,
    ),
    kv_capacity_tokens=1_200_000,
    sources=_bf16_sources(gpus=8),
)

H100_70B_TP4 = Calibration(
    step_time=StepTimeModel(
        overhead_seconds=0.003,
        floor_seconds=0.0215,
        base_seconds=0.0102,
        per_token_seconds=6.55e-5,
        per_kv_token_seconds=3.06e-8,
        per_pair_seconds=1.4e-9,
    ),
    kv_capacity_tokens=400_000,
    sources=_bf16_sources(gpus=4),
)

_FP8_WEIGHTS = "70.6 GB of FP8 weights"
_FP8_KV_BYTES = "80 layers x 8 KV heads x 128 x 2 (K, V) x 1 byte (FP8, assumed) = 163,840 a token"

H100_70B_FP8_TP2 = Calibration(
    step_time=StepTimeModel(
        overhead_seconds=0.003,
        floor_seconds=0.0147,
        base_seconds=0.0100,
        per_token_seconds=8.2e-5,
        per_kv_token_seconds=3.06e-8,
        per_pair_seconds=2.8e-9,
    ),
    kv_capacity_tokens=410_000,
    sources={
        "overhead_seconds": _OVERHEAD,
        "floor_seconds": (
            f"{_FP8_WEIGHTS} / 2 GPUs / (3.35 TB/s x 0.8) + 160 all-reduces of 9 us (assumed); "
            "NVIDIA H100 SXM sheet, 2026-11"
        ),
        "base_seconds": "0.68 of the floor, as in the measured line of 8 GPUs",
        "per_token_seconds": (
            "2 x 70.6 GFLOP / 2 GPUs / (1,979 TFLOP/s FP8 x 0.43, the part of 989 that the line of "
            "8 GPUs reaches in bf16); NVIDIA H100 SXM sheet, 2026-11"
        ),
        "per_row_seconds": _BY_TOKENS,
        "prefill_seconds": _NO_GRAPHS,
        "per_kv_token_seconds": f"{_FP8_KV_BYTES} / 2 GPUs / (3.35 TB/s x 0.8)",
        "per_pair_seconds": "2.62 MFLOP a pair / 2 GPUs / (989 TFLOP/s x 0.47)",
        "kv_capacity_tokens": (
            f"(2 x 80 GB x 0.9 - {_FP8_WEIGHTS} - 3 GB a GPU) / ({_FP8_KV_BYTES})"
        ),
    },
)
"""Not measured by anyone: hardware figures and the efficiency of the line of 8 GPUs.
``scripts/bench fidelity`` lays it beside the throughput that NVIDIA publishes for that machine."""

TEST = Calibration(
    step_time=StepTimeModel(
        overhead_seconds=0.0005,
        floor_seconds=0.0015,
        base_seconds=0.001,
        per_token_seconds=1e-6,
    ),
    kv_capacity_tokens=262_144,
    sources={"*": "no hardware: chosen so that tests run fast (2 ms a small step), 2026-11"},
)

CALIBRATIONS: dict[str, Calibration] = {
    "h100_70b_tp8": H100_70B_TP8,
    "h100_70b_tp4": H100_70B_TP4,
    "h100_70b_fp8_tp2": H100_70B_FP8_TP2,
    "test": TEST,
}

_HEAD_PARTS = (
    "an EAGLE-3 head reads one decoder layer (1.76 GB), a 3 x 8192 to 8192 projection (0.4 GB) and "
    "an output layer of 32,000 tokens (0.5 GB): 1.5 of the target's 80 layers"
)


def _head(target: Calibration, acceptance_percent: dict[str, float]) -> DraftCalibration:
    """An EAGLE-3 head beside ``target``: that many of its layers, and one launch a pass."""
    share = 1.5 / 80
    time = target.step_time
    return DraftCalibration(
        pass_time=StepTimeModel(
            overhead_seconds=0.0005,
            floor_seconds=time.floor_seconds * share,
            base_seconds=time.base_seconds * share,
            per_token_seconds=time.per_token_seconds * share,
            per_kv_token_seconds=time.per_kv_token_seconds / 80,
            per_pair_seconds=time.per_pair_seconds / 80,
        ),
        acceptance_percent=acceptance_percent,
        sources={
            "overhead_seconds": "assumption for launch and sampling of a pass (0.3..1 ms), 2026-11",
            "floor_seconds": f"1.5/80 of the target's: {_HEAD_PARTS}",
            "base_seconds": f"1.5/80 of the target's: {_HEAD_PARTS}",
            "per_token_seconds": f"1.5/80 of the target's: {_HEAD_PARTS}",
            "per_row_seconds": _BY_TOKENS,
            "prefill_seconds": _NO_GRAPHS,
            "per_kv_token_seconds": "one attention layer of 80",
            "per_pair_seconds": "one attention layer of 80",
            "acceptance_percent": (
                "source 000, incident C: T0 0.78 with a chat draft alone, 0.41 when one draft "
                "serves all, 0.74 with a draft for each kind (as given there, not measured); that "
                "a draft of the other kind does no better than the shared one is an assumption"
            ),
        },
    )


MIXED_ACCEPTANCE_PERCENT = 41.0
MATCHED_ACCEPTANCE_PERCENT = 74.0
"""The lower end of what source 000 gives for a matched draft, 74 to 78."""
_SHARED = {"chat": MIXED_ACCEPTANCE_PERCENT, "code": MIXED_ACCEPTANCE_PERCENT}
_CHAT = {"chat": MATCHED_ACCEPTANCE_PERCENT, "code": MIXED_ACCEPTANCE_PERCENT}
_CODE = {"chat": MIXED_ACCEPTANCE_PERCENT, "code": MATCHED_ACCEPTANCE_PERCENT}

DRAFTS: dict[str, DraftCalibration] = {
    f"{name}_tp{tensor}": _head(target, acceptance)
    for tensor, target in ((8, H100_70B_TP8), (4, H100_70B_TP4))
    for name, acceptance in (("shared", _SHARED), ("chat", _CHAT), ("code", _CODE))
}
"""By draft and the parallelism of its target: ``shared`` is one draft for all traffic."""


@dataclass(frozen=True, slots=True)
class LoopCalibration:
    """Constants of the S-LoRA loop and where they come from."""

    timing: Timing
    source: str


A10G_PROFILE = LoopCalibration(
    Timing(
        per_step_seconds=0.02302,
        per_sequence_seconds=1.817e-4,
        per_kv_token_seconds=1.357e-6,
        per_prompt_token_seconds=2.263e-4,
    ),
    "relative least squares on the rows of at most 160 sequences of Ying1123/VTC-artifact @ "
    "192c2e20, fair_bench/cost_profile.json; fitted 2026-11-30",
)
"""Llama-2-7B on one A10G with a KV pool of 10,000 tokens, from timed forward passes."""

A10G_FIRST_COME = LoopCalibration(
    Timing(
        per_step_seconds=0.02340,
        per_sequence_seconds=2.052e-4,
        per_kv_token_seconds=1.395e-6,
        per_prompt_token_seconds=2.455e-4,
        per_prefill_seconds=0.001348,
        per_request_seconds=0.02687,
        client_seconds=0.05056,
    ),
    "simplex on the first and last tokens of Ying1123/VTC-artifact @ 192c2e20, FCFS run of the "
    "real trace alone, begun at the cost profile; mean error left 1.45 s of latencies around 50 s; "
    "fitted 2026-11-30",
)
"""The same with its server, from the published first-come run's first and last tokens alone."""
