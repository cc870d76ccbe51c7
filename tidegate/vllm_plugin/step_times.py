"""How long this engine's steps take, learned from those that it runs.

Theory of operation: a step's time is what its decodes wait for: from the output before it to its
own. So with two steps in flight (async scheduling) the time that one waits for the other counts
once, and without, the time between two steps counts too. After an idle time there is no output to
count from: a step that begins while nothing runs counts from there. A step that computes nothing
has an output as well, from which the next one counts. What a step computes is read once it is
scheduled, when its requests still stand where they stood, and learned when its output is back:
nothing of it is planning.

The planner asks by tokens, context read and pairs, so that is what the fit is told: what a sequence
costs besides is learned as part of its token and of the context that it reads. Of an encoder's
tokens it is told nothing; a step with many is an outlier, which the fit bounds.

Bound: O(requests of the step), in each of the first ``LEARN_ALL`` steps and in one of
``LEARN_EVERY`` after them; O(1) otherwise.

Invariants: each step is learned at most once, with its own time; before the first is, there is no
model, and the planner's budget is tokens.
"""

from __future__ import annotations

from collections import deque

from tidegate.scheduling.plan_request import StepTimeModel
from tidegate.scheduling.step_time_fit import StepTimeFit, StepWork
from tidegate.vllm_plugin.vllm_types import VllmScheduler, VllmSchedulerOutput

LEARN_ALL = 64
"""Of six coefficients and a noise of a tenth, known to a few percent."""
LEARN_EVERY = 13
"""No factor in common with the four steps in which tiers stand back three times and run once."""
_MOST_IN_FLIGHT = 16
"""Steps whose output is awaited; more never is, so the oldest has been lost."""


class StepTimes:
    """Of one engine. ``now``: of one clock, in seconds."""

    def __init__(self, scheduler: VllmScheduler, now: float) -> None:
        self._scheduler = scheduler
        self._fit = StepTimeFit()
        self._last_output_at = self._since = now
        self._unlearned = 0
        """Steps scheduled since the last that was to be learned."""
        self._in_flight: deque[tuple[VllmSchedulerOutput, StepWork, float]] = deque(
            maxlen=_MOST_IN_FLIGHT
        )
        """Those to be learned, and since when their time counts at the earliest."""

    @property
    def model(self) -> StepTimeModel | None:
        """What the planner goes by; None: no step was measured yet."""
        return self._fit if self._fit.observed else None

    def begins(self, now: float) -> None:
        """Before ``schedule()``."""
        self._since = self._last_output_at if self._scheduler.running else now

    def scheduled(self, output: VllmSchedulerOutput) -> None:
        """After ``schedule()``."""
        if not output.num_scheduled_tokens:
            return
        self._unlearned += 1
        if self._fit.observed < LEARN_ALL or self._unlearned >= LEARN_EVERY:
            self._unlearned = 0
            self._in_flight.append((output, self._work(output), self._since))

    def returned(self, output: VllmSchedulerOutput, now: float) -> None:
        """The output of a step is back; those before it will not come any more."""
        last, self._last_output_at = self._last_output_at, now
        if not any(step[0] is output for step in self._in_flight):
            return
        while True:
            scheduled, work, since = self._in_flight.popleft()
            if scheduled is output:
                break
        self._fit.observe(work, now - max(since, last))

    def _work(self, output: VllmSchedulerOutput) -> StepWork:
        requests = self._scheduler.requests
        total = read = 0
        pairs = 0.0
        for name, tokens in output.num_scheduled_tokens.items():
            request = requests[name]
            context = request.num_computed_tokens - tokens
            total += tokens
            if len(request._all_token_ids) - context > 1:
                pairs += tokens * (context + tokens / 2)
            else:  # as StepBudget counts decodes
                read += context + 1
        return StepWork(total, pairs, kv_tokens_read=read)
