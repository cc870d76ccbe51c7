"""What each request did in a step, as a timed scheduler is told: for cost in engine time.

Read right after the step, before the next one moves the requests on. What a preempted request
computes again, up to where it stood, is told apart, with the tier for which it was preempted.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.scheduling.engine_time import NO_WORK, RequestStep
from tidegate.scheduling.prefill_step import prefill_step
from tidegate.scheduling.step_time_fit import StepWork, decode_work
from tidegate.simulator.engine_model import EngineRequest, StepResult

Cause = Callable[[str], str | None]
"""The tier for which a request was preempted; None: for its own growth, or nobody knows."""


class StepRows:
    """Of one engine."""

    def __init__(self, cause: Cause) -> None:
        self._cause = cause
        self._lost: dict[str, int] = {}
        """Tokens that a preempted request had computed, until it has them again."""

    def of(self, step: StepResult) -> list[RequestStep]:
        """One for each request that computed anything."""
        for victim in step.preempted:
            self._lost[victim.request_id] = victim.lost_tokens
        lost, new = self._lost, tuple.__new__
        return [
            # Most are decodes of requests that never lost anything: at once, and as tuples, for
            # each named constructor is a call in Python, once for every request of every step.
            new(
                RequestStep,
                (
                    request.request_id,
                    new(StepWork, (tokens, 0.0, 1, request.computed_tokens, 0)),
                    NO_WORK,
                    None,
                ),
            )
            if request.computed_tokens - tokens >= request.prompt_tokens
            and request.request_id not in lost
            else self._row(request, tokens)
            for request, tokens in step.rows
        ]

    def _row(self, request: EngineRequest, tokens: int) -> RequestStep:
        name = request.request_id
        before = max(request.computed_tokens - tokens, 0)
        again = min(max(self._lost.get(name, 0) - before, 0), tokens)
        if again:
            return prefill_step(name, tokens, before, again, self._cause(name))
        self._lost.pop(name, None)
        if before >= request.prompt_tokens:
            return RequestStep(name, decode_work(request.computed_tokens, tokens))
        return prefill_step(name, tokens, before)
