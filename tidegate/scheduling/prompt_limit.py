"""The prompt limit: how large a prompt may be, and what becomes of a larger one.

Use: ``judge(limit, prompt_tokens, pace)`` before anything else is done with a request. O(log n) in
the prompt's tokens.

Theory
------
One prompt of 200,000 tokens takes eight seconds of an engine in which everybody waits for tokens
(source 000, incident D). A limit in tokens is exact and the same on every engine. A limit in
seconds of prefill follows the engine: its time by itself, at the rate that the step-time fit
measured, for the whole prompt (what the prefix cache would spare is not known before it is asked
for). It does not depend on what else runs at the moment, so that the same prompt is not refused at
noon and served at night. Before a step was measured only the tokens are judged: nothing is refused
on a guess.

Beyond it, ``Reject`` answers 413, ``Truncate`` keeps the end of the prompt (what was said last),
as many tokens as are within both limits, and ``BestEffort`` serves all of it in the lowest place of
its tenant's queue.

Bound: under ``Reject`` and ``Truncate`` no prompt is longer than ``max_tokens`` nor, once steps
were measured, takes longer by itself than ``max_prefill_seconds`` and the fit's error.
Invariants: what is within the limits passes unchanged; the tokens that a truncation keeps are
within them, and one more would not be. Source: source 000, incident D and checklist item 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.scheduling.contracts import OnExceed, PromptLimit
from tidegate.scheduling.engine_time import EnginePace


@dataclass(frozen=True, slots=True)
class PromptVerdict:
    """What becomes of a prompt."""

    exceeded: OnExceed | None
    """Unset: it is within the limits."""
    most_tokens: int
    """The largest that would be; at 0 none is."""


def judge(limit: PromptLimit | None, prompt_tokens: int, pace: EnginePace) -> PromptVerdict:
    """Whether a prompt is within the limit of its tier, and if not, what is done."""
    if limit is None or _is_within(limit, prompt_tokens, pace):
        return PromptVerdict(None, prompt_tokens)
    low, high = 0, prompt_tokens
    while high - low > 1:
        middle = (low + high) // 2
        if _is_within(limit, middle, pace):
            low = middle
        else:
            high = middle
    # Nothing is left of a prompt of no tokens: what cannot be cut to one is rejected.
    return PromptVerdict(limit.on_exceed if low else _without_truncation(limit.on_exceed), low)


def _without_truncation(on_exceed: OnExceed) -> OnExceed:
    return OnExceed.REJECT if on_exceed is OnExceed.TRUNCATE else on_exceed


def _is_within(limit: PromptLimit, tokens: int, pace: EnginePace) -> bool:
    if limit.max_tokens is not None and tokens > limit.max_tokens:
        return False
    if limit.max_prefill_seconds is None or not pace.is_measured:
        return True
    return pace.prefill_seconds(tokens) <= limit.max_prefill_seconds
