"""How long a step takes.

    seconds = overhead + max(floor, base + per_token * tokens) + per_row * rows
              + per_kv_token * kv_tokens_read + per_pair * attention_pairs
              + prefill (if the step computes any prompt)

``tokens`` counts every token of the step, ``rows`` the sequences it serves, ``kv_tokens_read`` the
context that decodes read, and ``attention_pairs`` is, over prefill chunks,
``chunk * (context + chunk / 2)``. The floor is the memory-bound regime (weights are read once,
however few the tokens), the line the compute-bound one; what a sequence costs whatever its tokens
(sampling, the engine's own book-keeping) is the row's, and leaving the fast path of steps that only
decode (captured graphs on GPUs, decode kernels on CPUs) is ``prefill``'s. The constants stand in
``calibrations``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """The constants of the step time, in seconds: once a step, per token, row, KV token, pair."""

    overhead_seconds: float
    floor_seconds: float
    base_seconds: float
    per_token_seconds: float
    per_kv_token_seconds: float = 0.0
    per_pair_seconds: float = 0.0
    per_row_seconds: float = 0.0
    prefill_seconds: float = 0.0

    def __post_init__(self) -> None:
        for constant in fields(self):
            if getattr(self, constant.name) < 0:
                raise ValueError(f"{constant.name} must not be negative")

    def seconds(
        self, tokens: int, kv_tokens_read: int = 0, attention_pairs: float = 0.0, rows: int = 0
    ) -> float:
        """Duration of a step of ``tokens`` tokens in ``rows`` sequences, in seconds."""
        return (
            self.overhead_seconds
            + (self.prefill_seconds if attention_pairs else 0.0)
            + max(self.floor_seconds, self.base_seconds + self.per_token_seconds * tokens)
            + self.per_kv_token_seconds * kv_tokens_read
            + self.per_pair_seconds * attention_pairs
            + self.per_row_seconds * rows
        )

    def scaled(self, factor: float) -> StepTimeModel:
        """The same engine, every step ``factor`` times as long."""
        if factor <= 0:
            raise ValueError("the time scale must be positive")
        return StepTimeModel(*(getattr(self, constant.name) * factor for constant in fields(self)))
