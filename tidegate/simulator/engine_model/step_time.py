"""How long a step takes, and where every constant comes from.

    seconds = overhead + max(floor, base + per_token * tokens)
              + per_kv_token * kv_tokens_read + per_pair * attention_pairs

``tokens`` counts every token of the step, ``kv_tokens_read`` the context that decodes read, and
``attention_pairs`` is, over prefill chunks, ``chunk * (context + chunk / 2)``. The floor is the
memory-bound regime (weights are read once, however few the tokens), the line the compute-bound
one. Constants are taken from published measurements or from hardware figures and are never fitted
to a number that a figure or a benchmark of this project reports.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """The constants of the step time, in seconds (per token, per KV token, per pair)."""

    overhead_seconds: float
    floor_seconds: float
    base_seconds: float
    per_token_seconds: float
    per_kv_token_seconds: float = 0.0
    per_pair_seconds: float = 0.0

    def __post_init__(self) -> None:
        for constant in fields(self):
            if getattr(self, constant.name) < 0:
                raise ValueError(f"{constant.name} must not be negative")

    def seconds(self, tokens: int, kv_tokens_read: int = 0, attention_pairs: float = 0.0) -> float:
        """Duration of a step of ``tokens`` tokens, in seconds."""
        return (
            self.overhead_seconds
            + max(self.floor_seconds, self.base_seconds + self.per_token_seconds * tokens)
            + self.per_kv_token_seconds * kv_tokens_read
            + self.per_pair_seconds * attention_pairs
        )

    def scaled(self, factor: float) -> StepTimeModel:
        """The same engine, every step ``factor`` times as long."""
        if factor <= 0:
            raise ValueError("the time scale must be positive")
        return StepTimeModel(*(getattr(self, constant.name) * factor for constant in fields(self)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A step-time model together with the KV capacity and the source of every constant."""

    step_time: StepTimeModel
    kv_capacity_tokens: int
    sources: dict[str, str]


_VIDUR = (
    "microsoft/vidur @ 7d47513, data/profiling/compute/h100/meta-llama/Llama-2-70b-hf/mlp.csv "
    "x 80 layers, plus network/h100_dgx/all_reduce.csv at tokens x 8192 x 2 bytes x 160 "
    "(read 2026-11)"
)
_KV_BYTES = "80 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes = 327,680 bytes a token"

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
    sources={
        "overhead_seconds": "assumption for scheduler, sampling and launch (2..5 ms), 2026-11",
        "floor_seconds": f"median of 1..64 tokens: {_VIDUR}",
        "base_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_token_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_kv_token_seconds": f"{_KV_BYTES} / 8 GPUs / (3.35 TB/s x 0.8); NVIDIA H100 SXM sheet",
        "per_pair_seconds": (
            "4 x 8192 x 80 = 2.62 MFLOP a pair / 8 GPUs / (989 TFLOP/s x 0.47); "
            "NVIDIA H100 SXM sheet"
        ),
        "kv_capacity_tokens": (
            f"(8 x 80 GB x 0.9 - 141 GB weights - 2..4 GB a GPU) / ({_KV_BYTES})"
        ),
    },
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
    sources={
        "overhead_seconds": H100_70B_TP8.sources["overhead_seconds"],
        "floor_seconds": f"median of 1..64 tokens: {_VIDUR}",
        "base_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_token_seconds": f"line through 256 and 4,096 tokens: {_VIDUR}",
        "per_kv_token_seconds": f"{_KV_BYTES} / 4 GPUs / (3.35 TB/s x 0.8); NVIDIA H100 SXM sheet",
        "per_pair_seconds": "2.62 MFLOP a pair / 4 GPUs / (989 TFLOP/s x 0.47)",
        "kv_capacity_tokens": (
            f"(4 x 80 GB x 0.9 - 141 GB weights - 2..4 GB a GPU) / ({_KV_BYTES})"
        ),
    },
)

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
    "test": TEST,
}
