"""What a request that computed part of its prompt did in a step, with what it computed again."""

from __future__ import annotations

from tidegate.scheduling.engine_time import NO_WORK, RequestStep
from tidegate.scheduling.step_time_fit import prefill_work


def prefill_step(
    request: str,
    tokens: int,
    context_tokens: int,
    again_tokens: int = 0,
    caused_by: str | None = None,
) -> RequestStep:
    """``tokens`` after ``context_tokens``; the first ``again_tokens`` of them had been computed
    once before, and ``caused_by`` is who pays for those (None: itself)."""
    if not again_tokens:
        return RequestStep(request, prefill_work(tokens, context_tokens))
    new = tokens - again_tokens
    work = prefill_work(new, context_tokens + again_tokens) if new else NO_WORK
    again = prefill_work(again_tokens, context_tokens)
    return RequestStep(request, work, again, caused_by)
