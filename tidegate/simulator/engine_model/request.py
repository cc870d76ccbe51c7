"""A request as the engine sees it: one sequence, lengths and hashes, no text."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidegate.simulator.engine_model.kv_cache import Block


class RequestState(enum.Enum):
    """Where a request stands; FINISHED and ABORTED are final."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One sequence. Counters are read by callers and written by the engine alone.

    ``prompt_block_hashes`` are the chained hashes of the prompt's full blocks (empty: nothing of
    it can be found in the prefix cache); ``content_key`` identifies the whole prompt with its
    salt, from which hashes of later blocks follow. ``output_tokens_target`` is exactly how many
    tokens will be generated; 0 is a pooling request, done when its prompt is computed.
    ``cache_group`` labels the blocks that it fills.
    ``lost_tokens`` were computed and dropped by the last preemption and not yet computed again.
    ``traffic`` is the kind that a draft's acceptance is given for; of it, at most
    ``most_drafted_tokens`` are drafted a step (None: as many as the engine does; 0: none).
    """

    request_id: str
    prompt_tokens: int
    output_tokens_target: int
    priority: int = 0
    arrived_at: float = 0.0
    prompt_block_hashes: Sequence[int] = ()
    content_key: int = 0
    cache_group: int = 0
    traffic: str = ""
    most_drafted_tokens: int | None = None

    state: RequestState = RequestState.WAITING
    arrival_number: int = -1
    computed_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    published_blocks: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0
    recomputed_tokens: int = 0
    arrived_step: int = -1
    first_scheduled_at: float | None = None
    first_scheduled_step: int = -1
    first_token_at: float | None = None
    finished_at: float | None = None
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1:
            raise ValueError("a prompt has at least one token")
        if self.output_tokens_target < 0:
            raise ValueError("output_tokens_target must not be negative")

    def again(self, priority: int, now: float) -> EngineRequest:
        """The same, aborted and sent once more: a preemption from outside the engine."""
        return replace(
            self,
            priority=priority,
            arrived_at=now,
            state=RequestState.PREEMPTED,
            arrival_number=-1,
            computed_tokens=0,
            output_tokens=0,
            drafted_tokens=0,
            published_blocks=0,
            preemptions=self.preemptions + 1,
            lost_tokens=max(self.lost_tokens, self.computed_tokens),
            first_token_at=None,
            finished_at=None,
            blocks=[],
        )

    @property
    def total_tokens(self) -> int:
        """Tokens known so far: prompt and generated ones."""
        return self.prompt_tokens + self.output_tokens

    def block_hash(self, index: int) -> int | None:
        """Hash of the full block ``index`` of prompt and output; None: not cacheable."""
        hashes = self.prompt_block_hashes
        if index < len(hashes):
            return hashes[index]
        # A prompt that brought no hashes takes no part in prefix caching. Ints hash the same in
        # every process, so this is deterministic.
        return hash((self.content_key, index)) if hashes or self.content_key else None
