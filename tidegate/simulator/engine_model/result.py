"""What a step did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.simulator.engine_model.request import EngineRequest


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step. Its outcome is visible to callers at ``ends_at``.

    ``running``, ``waiting``, ``free_seats`` and ``free_blocks`` describe the step while it ran:
    after all admissions, before finished requests left. So a step with free seats and free blocks
    had room that the engine's queue did not fill. ``decode_tokens`` are those computed in
    ``decode_rows``, drafted ones included; ``sampled`` are the requests that got one or more of the
    ``generated_tokens``, each once. ``rows`` are the tokens computed
    of each request.
    """

    number: int
    started_at: float
    duration_seconds: float
    prefill_tokens: int
    decode_rows: int
    decode_tokens: int
    kv_tokens_read: int
    attention_pairs: float
    generated_tokens: int
    running: int
    waiting: int
    free_seats: int
    free_blocks: int
    rows: Sequence[tuple[EngineRequest, int]]
    first_scheduled: tuple[EngineRequest, ...]
    preempted: tuple[EngineRequest, ...]
    sampled: tuple[EngineRequest, ...]
    finished: tuple[EngineRequest, ...]

    @property
    def ends_at(self) -> float:
        """When the step's tokens leave the engine, on the caller's clock."""
        return self.started_at + self.duration_seconds

    @property
    def tokens(self) -> int:
        """All tokens that were computed."""
        return self.prefill_tokens + self.decode_tokens
