"""Whether the engine's KV cache has room for one more prompt.

Theory of operation: what our requests hold is counted here at once: each its prompt, and one token
a step for each sequence that runs. The engine's own figure (used, 0..1) comes late and seldom, but
says what that count is worth: capacity = held and prefilled / used at the time of a reading, in the
same measure, so that shared prefixes and speculation are in it. Between readings the count goes on.

A reading may be of another moment (what has just ended is still in it) or of somebody else's
requests. So nothing is concluded while nothing of ours is in the engine; and an engine that is all
but empty while we count it half full has taught us a capacity that is none: it is forgotten. Else
it would stay, as one request at a time never fills what could be measured again.

Bound: O(1). Between two readings it errs by what requests grew otherwise than by a token a step.
"""

from __future__ import annotations

FULL_RATIO = 0.98
_MEASURABLE_RATIO = 0.05
"""Below it the quotient is noise."""
_BELIEVED_RATIO = 0.5
_PROMPTS_OVER = 16


class EngineKv:
    """KV use in tokens, of all requests in flight."""

    __slots__ = (
        "_capacity_tokens",
        "_mean_prompt_tokens",
        "_prompt_tokens",
        "_running",
        "_started_steps",
        "_step",
        "known",
    )

    def __init__(self) -> None:
        self.known = False
        """Whether the engine's last reading told its use."""
        self._capacity_tokens: float | None = None
        self._mean_prompt_tokens = 0.0
        self._prompt_tokens = 0
        self._running = 0
        self._started_steps = 0
        """Sum over running sequences of the step in which they started."""
        self._step = 0

    def dispatched(self, prompt_tokens: int) -> None:
        """A request goes to the engine."""
        self._prompt_tokens += prompt_tokens
        if not self._mean_prompt_tokens:
            self._mean_prompt_tokens = prompt_tokens
        self._mean_prompt_tokens += (prompt_tokens - self._mean_prompt_tokens) / _PROMPTS_OVER

    def started(self, sequences: int) -> int:
        """It produces tokens from now on; returned is the step, for :meth:`ended`."""
        self._running += sequences
        self._started_steps += sequences * self._step
        return self._step

    def ended(self, prompt_tokens: int, sequences: int, started_step: int | None) -> None:
        """It holds nothing any more."""
        self._prompt_tokens -= prompt_tokens
        if started_step is not None:
            self._running -= sequences
            self._started_steps -= sequences * started_step

    def step(self) -> None:
        """Each running sequence produced a token."""
        self._step += 1

    def reading(self, used_ratio: float | None, unfilled_tokens: int, preempted: bool) -> None:
        """The engine's own figure; None: it does not tell.

        ``unfilled_tokens``: of our prompts, not prefilled yet. ``preempted``: requests of ours lost
        what they held, so that the quotient would be too high.
        """
        self.known = used_ratio is not None
        filled_tokens = self.held_tokens - unfilled_tokens
        if used_ratio is None or filled_tokens <= 0:
            return
        if used_ratio < _MEASURABLE_RATIO:
            capacity = self._capacity_tokens
            if capacity is not None and filled_tokens > _BELIEVED_RATIO * capacity:
                self._capacity_tokens = None
        elif not preempted:
            self._capacity_tokens = filled_tokens / min(used_ratio, 1.0)

    @property
    def held_tokens(self) -> int:
        """Tokens whose keys and values our requests hold."""
        return self._prompt_tokens + self._running * self._step - self._started_steps

    def held_by(self, prompt_tokens: int, sequences: int, started_step: int | None) -> int:
        """Of those, what one request holds; arguments as of :meth:`ended`."""
        grown = 0 if started_step is None else sequences * (self._step - started_step)
        return prompt_tokens + grown

    def has_room(self, fewer_tokens: int = 0) -> bool:
        """For one more prompt of the usual length, were so many given back; True while the capacity
        is not known."""
        capacity = self._capacity_tokens
        if capacity is None:
            return True
        wanted = self.held_tokens - fewer_tokens + self._mean_prompt_tokens
        return wanted <= FULL_RATIO * capacity
