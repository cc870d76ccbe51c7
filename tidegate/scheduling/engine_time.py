"""EngineTime: what a request costs, as its share of the engine's busy time.

Use: ``EnginePace.observe_rows(rows, seconds)`` after each step learns from it and says whom its
time is charged to; ``engine_seconds`` predicts a request's whole cost at dispatch,
``first_token_seconds`` and ``decode_seconds`` how long it will take. O(requests of the step), else
O(1).

Theory
------
The step-time fit says what each request's work adds to a step (its tokens, the context they attend
to, its row, the KV cache that it reads): its *marginal* time. What is left, c0, is paid for the
step itself. Decodes need a step each, and prefills ride along in it (Sarathi-Serve's piggybacking),
so c0 is split evenly over the rows that decode, and only in steps without any over the prefills, in
proportion to their marginal time. Each is then scaled by measured over predicted time.

Bounds
------
1. *Conserved*: the charges of a step sum to its measured time, hence those of a window to its busy
   time. An idle engine charges nobody.
2. *Isolated*: a neighbour's prefill changes nothing in what a decode is charged, but for the fit's
   error in that step: within 10% for a fit within 10% (issue 4).
3. *Caused*: what is computed again after a preemption is charged to whoever caused it.

A request pays more KV read as it grows and less of c0 in a fuller batch: both are true.
Source: the form of a step's time as in ``step_time_fit``; piggybacking: Sarathi-Serve (OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from tidegate.scheduling.step_time_fit import StepTimeFit, StepWork

PACE_STEPS = 32
"""Steps over which the mix that a request meets is averaged."""

NO_WORK = StepWork()


class RequestStep(NamedTuple):
    """What one request did in one step."""

    request: str
    work: StepWork
    recomputed: StepWork = NO_WORK
    """What was computed once before, in addition to ``work``."""
    caused_by: str | None = None
    """Who pays for that: the tier or tenant for which it was preempted; unset: itself."""


class StepCharges(NamedTuple):
    """A step's time in seconds, by who is charged."""

    by_request: dict[str, float]
    by_cause: dict[str, float]
    """Recomputed work, by :attr:`RequestStep.caused_by`."""


def split(fit: StepTimeFit, seconds: float, rows: Sequence[RequestStep]) -> StepCharges:
    """Whom a step of ``seconds`` is charged to; ValueError: nobody was in it."""
    if not rows:
        raise ValueError("a step that nobody was in has no cost to split")
    c0, token, pair, row_seconds, kv_token, encoder = fit.coefficients
    if decoding := sum([row.work[2] for row in rows]):
        row_seconds += c0 / decoding
    # Every row of every step passes here: StepTimeFit.marginal_seconds and a share of c0, inline.
    own = [
        token * tokens
        + pair * pairs
        + row_seconds * decodes
        + kv_token * kv_tokens
        + encoder * encoder_tokens
        for _, (tokens, pairs, decodes, kv_tokens, encoder_tokens), _, _ in rows
    ]
    again = [
        (row.request, row.caused_by, fit.marginal_seconds(row.recomputed))
        for row in rows
        if row.recomputed is not NO_WORK
    ]
    total = sum(own) + sum(each for _, _, each in again)
    if not total:
        own, total = [1.0] * len(rows), float(len(rows))
    scale = seconds / total
    charges = StepCharges(dict.fromkeys((row.request for row in rows), 0.0), {})
    for row, mine in zip(rows, own, strict=True):
        charges.by_request[row[0]] += mine * scale
    for request, cause, recomputed in again:
        if cause is None:
            charges.by_request[request] += recomputed * scale
        else:
            charges.by_cause[cause] = charges.by_cause.get(cause, 0.0) + recomputed * scale
    return charges


class EnginePace:
    """How fast one engine goes, in the mix that it runs at present."""

    __slots__ = (
        "budget_tokens",
        "decode_rows",
        "fit",
        "step_seconds",
        "step_tokens",
        "without_prefill_seconds",
    )

    def __init__(self, step_tokens: int) -> None:
        self.fit = StepTimeFit()
        self.step_tokens = step_tokens
        """Most tokens of a step."""
        self.budget_tokens = step_tokens
        """Most prefill tokens of a step in which anything decodes; fewer, where a plug-in keeps a
        budget (``entrance``)."""
        self.decode_rows = 1.0
        """Mean over recent steps that decode."""
        self.step_seconds = 0.0
        """Mean duration of those."""
        self.without_prefill_seconds = 0.0
        """Mean duration that they would have had with their decodes alone."""

    @property
    def is_measured(self) -> bool:
        """Whether any step was seen; before that all times are guesses."""
        return self.fit.observed > 0

    def observe(self, work: StepWork, seconds: float, decode_tokens: int) -> None:
        """A step ended; ``decode_tokens``: those of ``work.tokens`` that decodes computed."""
        before = self.fit.observed
        self.fit.observe(work, seconds)
        if self.fit.observed == before or not work.decode_rows:
            return
        alone = self.fit.seconds(decode_tokens, work.kv_tokens_read, decode_rows=work.decode_rows)
        gain = 1.0 if not self.step_seconds else 1 / PACE_STEPS
        self.decode_rows += (work.decode_rows - self.decode_rows) * gain
        self.step_seconds += (seconds - self.step_seconds) * gain
        self.without_prefill_seconds += (alone - self.without_prefill_seconds) * gain

    def observe_rows(
        self, rows: Sequence[RequestStep], seconds: float, learn: bool = True
    ) -> StepCharges:
        """A step ended: learn from it and say whom it is charged to; ``split`` for errors."""
        if not learn:
            return split(self.fit, seconds, rows)
        works = [row.work for row in rows]
        works += [row.recomputed for row in rows if row.recomputed is not NO_WORK]
        decode_tokens = sum([work.tokens for work in works if work.decode_rows])
        self.observe(StepWork(*map(sum, zip(*works, strict=True))), seconds, decode_tokens)
        return split(self.fit, seconds, rows)

    def prefill_seconds(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Engine time of a prefill by itself, whatever else runs now, in seconds."""
        computed, seconds = self._prefill(prompt_tokens, cached_tokens)
        return ceil(computed / self.step_tokens) * self.fit.coefficients[0] + seconds

    def first_token_seconds(
        self, prompt_tokens: int, cached_tokens: int = 0, ahead_tokens: int = 0
    ) -> float:
        """From dispatch to the first token, after ``ahead_tokens`` of other prefills, in seconds.

        The step that runs ends first; then each step has the decodes of the present mix beside a
        budget of prefills.
        """
        computed, seconds = self._prefill(prompt_tokens, cached_tokens)
        steps = ceil((computed + ahead_tokens) / self.budget_tokens)
        each = max(self.without_prefill_seconds, self.fit.coefficients[0])
        seconds += self.fit.coefficients[1] * ahead_tokens
        return self.step_seconds / 2 + steps * each + seconds

    def decode_seconds(self, output_tokens: float, tokens_per_step: float = 1.0) -> float:
        """From the first token to the last, in the present mix, in seconds."""
        each = self.step_seconds or self.fit.coefficients[0]
        return max(output_tokens - 1, 0) / tokens_per_step * each

    def engine_seconds(
        self,
        prompt_tokens: int,
        output_tokens: float,
        cached_tokens: int = 0,
        tokens_per_step: float = 1.0,
    ) -> float:
        """What a request will have been charged at its end, in seconds of EngineTime."""
        c0, token, _, row, kv_token, _ = self.fit.coefficients
        steps = max(output_tokens - 1, 0) / tokens_per_step
        context = prompt_tokens + output_tokens / 2
        decode = token + row + kv_token * context
        shared = c0 / max(self.decode_rows, 1.0)
        return self._prefill(prompt_tokens, cached_tokens)[1] + steps * (decode + shared)

    def _prefill(self, prompt_tokens: int, cached_tokens: int) -> tuple[int, float]:
        """Tokens to compute (the last of a prompt always), and what they add to steps, in seconds.

        Inline what ``prefill_work`` and ``marginal_seconds`` say: several times for each request.
        """
        cached = max(min(cached_tokens, prompt_tokens - 1), 0)
        computed = max(prompt_tokens - cached, 1)
        _, token, pair, _, _, _ = self.fit.coefficients
        return computed, token * computed + pair * computed * (cached + computed / 2)
