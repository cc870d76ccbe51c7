"""The gate of a pool that embeds: no stream shows a start, so prompt tokens in flight are counted.

Open while less than two budgets are in flight (one in the step that runs, one for the next), and
always when nothing is. Where ``max_num_seqs`` is known, two steps' worth of it bound the sequences
likewise. It answers to the same calls as ``gate.Gate``. O(1).

Bound: at most two budgets and one request are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.contracts import EngineLimits
from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS


class TokensInFlightGate:
    """Of one engine."""

    def __init__(self, limits: EngineLimits) -> None:
        self._flights: dict[str, tuple[int, int]] = {}
        """Sequences and prompt tokens of each."""
        self._sequences = 0
        self._tokens = 0
        self._budget_tokens = DEFAULT_BUDGET_TOKENS
        self._seats: int | None = None
        self.apply_limits(limits)

    @property
    def window(self) -> int:
        """Sequences of the present mean length that may be in flight."""
        if not self._tokens:
            return max(1, 2 * (self._seats or 1))
        fit = 2 * self._budget_tokens * self._sequences // self._tokens
        return max(1, fit if self._seats is None else min(fit, 2 * self._seats))

    @property
    def not_started(self) -> int:
        """Sequences in flight: none shows its start."""
        return self._sequences

    @property
    def in_flight(self) -> int:
        """Sequences dispatched and not ended."""
        return self._sequences

    def apply_limits(
        self,
        limits: EngineLimits,
        prefill_budget_tokens: int | None = None,
        chunk_tokens: int | None = None,
    ) -> None:
        """Hot reload of what is configured of the engine."""
        self._budget_tokens = limits.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        self._seats = limits.max_num_seqs

    def is_open(self) -> bool:
        """Whether one more request may be dispatched now."""
        if not self._flights:
            return True
        if self._seats is not None and self._sequences >= 2 * self._seats:
            return False
        return self._tokens < 2 * self._budget_tokens

    def lacks_place(self, without: Sequence[str] = ()) -> bool:
        """Nobody is taken off an embedding engine."""
        return False

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int) -> None:
        """A request goes to the engine."""
        self._flights[request_id] = (sequences, prompt_tokens)
        self._sequences += sequences
        self._tokens += prompt_tokens

    def started(self, request_id: str) -> None:
        """Nothing to learn: it holds its tokens until it ends."""

    def ended(self, request_id: str) -> None:
        """It has ended, however; exactly once (KeyError: not in flight)."""
        sequences, tokens = self._flights.pop(request_id)
        self._sequences -= sequences
        self._tokens -= tokens

    def step(self, queue_nonempty: bool) -> None:
        """Nothing to learn."""

    def engine_metrics(
        self, running: int | None, waiting: int | None, kv_used_ratio: float | None
    ) -> None:
        """Nothing to learn."""
