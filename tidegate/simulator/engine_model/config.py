"""What an engine is made of: sizes and policy named like vLLM's flags, and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.simulator.engine_model.speculation import Speculation
from tidegate.simulator.engine_model.step_time import StepTimeModel
from tidegate.simulator.engine_model.waiting import SchedulingPolicy

NULL_BLOCKS = 1
"""vLLM's block pool keeps its first block as a placeholder and never gives it out."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and policy, named like vLLM's flags.

    Of ``num_gpu_blocks`` all but ``NULL_BLOCKS`` can be used. ``long_prefill_token_threshold``
    caps the chunk of one request while there are others, 0: no cap; ``..._adaptive`` floors it at
    an even share of the step. ``scheduler_reserve_full_isl``: a request enters only where its whole
    sequence fits now, else where its first chunk does. ``watermark``: the fraction of all blocks
    that an admission leaves free while anything runs.
    """

    step_time: StepTimeModel
    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    enable_prefix_caching: bool = True
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.num_gpu_blocks <= NULL_BLOCKS:
            raise ValueError(f"num_gpu_blocks must be at least {NULL_BLOCKS + 1}")
        if not 0 <= self.watermark < 1:
            raise ValueError("watermark must be at least 0 and less than 1")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def lookahead_tokens(self) -> int:
        """KV slots that a row takes for its draft, beyond the tokens it computes."""
        return 0 if self.speculation is None else self.speculation.lookahead_tokens

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return (self.num_gpu_blocks - NULL_BLOCKS) * self.block_size


@dataclass(slots=True)
class EngineTotals:
    """Counters since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
