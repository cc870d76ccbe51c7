"""What the engine has of prompts that it has not computed yet, and how many steps that takes.

Theory of operation: each step seen is taken to have prefilled its worth (what the running
sequences leave of its budget), oldest first, and of one prompt no more than a chunk, where the
engine computes chunks. A start says where the engine really is, so that miscounted steps and
misjudged prompts never add up: behind the oldest, it has done no more than one step's worth.

There is room while less than two steps' worth is outstanding: one for the step that runs, which we
shall hear of when it ends, and one for the step that the engine begins at that moment. A prompt of
many budgets passes once less than that is ahead of it. Where somebody was promised a time between
tokens and no plug-in keeps the prefill budget, two of that are the bound while anything decodes:
each prefill token of a step makes all decodes wait. A prompt longer than a chunk has two chunks of
those outstanding, and its prefill takes as many steps as it has chunks.

Bound: a prompt finds at most two steps' worth and one prompt ahead of it in the engine's queue.
O(prompts outstanding) a question or step. Source: chunked prefills as of Sarathi-Serve (OSDI 2024).
"""

from __future__ import annotations

from tidegate.scheduling.contracts import EngineLimits

DEFAULT_BUDGET_TOKENS = 2_048


class _Prompt:
    __slots__ = ("left_tokens", "sequences", "tokens")

    def __init__(self, sequences: int, tokens: int) -> None:
        self.sequences = sequences
        self.tokens = self.left_tokens = tokens
        """Left to prefill, as far as the steps seen tell."""


class EnginePrefills:
    """Of one engine; ``running``: the sequences that decode."""

    def __init__(self) -> None:
        self.budget_tokens = DEFAULT_BUDGET_TOKENS
        self.tokens = 0
        """Outstanding."""
        self._window_tokens: int | None = None
        self._chunk_tokens: int | None = None
        self._prompts: dict[str, _Prompt] = {}
        """Oldest first."""

    def apply_limits(
        self, limits: EngineLimits, budget_tokens: int | None, chunk_tokens: int | None
    ) -> None:
        """Hot reload: at most two of ``budget_tokens`` are outstanding while anything decodes."""
        self.budget_tokens = limits.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        self._window_tokens = None if budget_tokens is None else 2 * budget_tokens
        self._chunk_tokens = chunk_tokens

    @property
    def mean_tokens(self) -> int:
        """Of those outstanding; at least 1."""
        return max(1, self.tokens // max(1, len(self._prompts)))

    def has_room(self, running: int) -> bool:
        """Whether another prompt would be begun within two steps."""
        most = 2 * self._per_step(running)
        if self._window_tokens is not None and running:
            most = min(most, self._window_tokens)
        return self._within_two_steps() < most

    def _within_two_steps(self) -> int:
        """Tokens that the next two steps could compute if their budgets had room."""
        chunk = self._chunk_tokens
        if chunk is None:
            return self.tokens
        return sum([min(p.left_tokens, 2 * chunk * p.sequences) for p in self._prompts.values()])

    def steps_of(self, sequences: int, prompt_tokens: int, running: int) -> tuple[int, int]:
        """How many a new prompt takes by itself, and behind those that are outstanding."""
        per_step = self._per_step(running)
        own = prompt_tokens // self._most_of_one(sequences, per_step) + 1
        return own, max((self.tokens + prompt_tokens) // per_step + 1, own)

    def dispatched(self, request_id: str, sequences: int, prompt_tokens: int) -> None:
        """A prompt goes to the engine."""
        self._prompts[request_id] = _Prompt(sequences, prompt_tokens)
        self.tokens += prompt_tokens

    def started(self, request_id: str, running: int) -> None:
        """It is computed (KeyError: not outstanding)."""
        was_oldest = next(iter(self._prompts)) == request_id
        self.forget(request_id)
        if was_oldest:
            self._take_back_more_than_a_step(running)

    def forget(self, request_id: str) -> None:
        """It is not outstanding any more, computed or not."""
        self.tokens -= self._prompts.pop(request_id).left_tokens

    def step(self, running: int) -> None:
        """A step ended."""
        tokens = self._per_step(running)
        for prompt in self._prompts.values():
            done = min(self._most_of_one(prompt.sequences, tokens), prompt.left_tokens)
            prompt.left_tokens -= done
            self.tokens -= done
            tokens -= done
            if not tokens:
                return

    def _per_step(self, running: int) -> int:
        # vLLM serves running sequences first; where they fill the budget, prefills crawl.
        return max(self.budget_tokens - running, self.budget_tokens // 4, 1)

    def _most_of_one(self, sequences: int, tokens: int) -> int:
        """Of so many tokens of a step, what one request may have."""
        chunk = self._chunk_tokens
        return tokens if chunk is None else min(tokens, chunk * sequences)

    def _take_back_more_than_a_step(self, running: int) -> None:
        credit = self._per_step(running)
        for prompt in self._prompts.values():
            done = prompt.tokens - prompt.left_tokens
            if done == 0:
                return
            excess = max(0, done - credit)
            credit -= done - excess
            prompt.left_tokens += excess
            self.tokens += excess
