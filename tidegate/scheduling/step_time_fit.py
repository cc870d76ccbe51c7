"""How long a step takes, fitted online to the steps that were measured.

Use: ``fit.observe(work, seconds)`` after each step; ``fit.seconds(...)`` is the prediction, and
``fit.marginal_seconds(work)`` what some work adds to it. O(1): six coefficients.

Theory
------
    seconds = c0 + tokens + tokens x context (prefill) + decode rows + KV tokens read + encoder

each times a coefficient: weights are read once a step (c0), every token passes the linear layers,
attention is paid per pair of a prefilled token and one before it, and decodes read their context.
It is linear, and an engine's floor (a step cannot be shorter than the reading of the weights) is
not; within the steps that one engine runs the line is close.

The coefficients follow a random walk and are estimated by recursive least squares with a prior (a
Kalman filter with the identity as transition), in relative terms: each step counts the same,
however long. The random walk in the place of exponential forgetting means that what is not excited
for hours (no long prompt, say) keeps its value; its variance grows, up to the prior's, and no
further. The prior's ratios are those of a 70B model on eight H100; the first step sets the scale.

Clamps. Coefficients stay positive (a tiny fraction of the prior): more work never takes less time,
which the split of a step's time and the step plan rely on. What a clamped coefficient cannot give
is explained anew by the others, so no update goes beyond what it was shown. A measurement more than
``CLIP`` standard deviations off moves the fit only by that much (a page fault, a pause of the host)
and doubles its uncertainty, so that after a few of them it follows an engine that is another one
now (restarted, throttled, or asked for what it was never asked for).

Bound: no coefficient falls below ``LEAST`` of its prior; but for what is clamped, a step moves what
is predicted of it by at most ``CLIP`` standard deviations, and never past what was measured.
Source: Kalman 1960; the terms are those of the roofline of a transformer's step; the prior's ratios
from Vidur's published profile (MLSys 2024; Llama-2-70b-hf, H100) and the hardware's data sheet.
"""

from __future__ import annotations

from math import sqrt
from operator import mul
from typing import NamedTuple

PRIOR_SECONDS = (1.25e-2, 4.12e-5, 7.0e-10, 2.0e-5, 1.53e-8, 4.12e-5)
"""Of c0, a token, a pair, a decode row, a KV token read, an encoder token."""
NOISE = 0.1
"""Standard deviation of a measured step, relative."""
DRIFT = 1e-6
"""Variance that a coefficient's random walk gains with each step, relative to its prior."""
CLIP = 4.0
MEASURABLE = (1e-6, 1e6)
"""Seconds that a step may take; a clock that did not move is no measurement."""
LEAST = 1e-4
"""Smallest coefficient, relative to its prior."""

_N = len(PRIOR_SECONDS)


class StepWork(NamedTuple):
    """What was computed: by a step, or by one request in it."""

    tokens: int = 0
    """All tokens, of prompts and of decodes (drafted ones included)."""
    attention_pairs: float = 0.0
    """Over prefill chunks: chunk x (context before it + chunk / 2)."""
    decode_rows: int = 0
    """Sequences that decode."""
    kv_tokens_read: int = 0
    """Context that those read."""
    encoder_tokens: int = 0
    """Of images and audio."""


def prefill_work(tokens: int, context_tokens: int, encoder_tokens: int = 0) -> StepWork:
    """A chunk of ``tokens`` after ``context_tokens`` that are computed already."""
    return StepWork(tokens, tokens * (context_tokens + tokens / 2), 0, 0, encoder_tokens)


def decode_work(context_tokens: int, tokens: int = 1) -> StepWork:
    """One sequence's decode; ``tokens``: with those drafted for it."""
    return StepWork(tokens, 0.0, 1, context_tokens)


class StepTimeFit:
    """Of one engine group. Satisfies ``plan_request.StepTimeModel``."""

    __slots__ = ("_covariance", "_least", "_tenth", "coefficients", "observed")

    def __init__(self) -> None:
        self.coefficients = list(PRIOR_SECONDS)
        """Seconds of c0, a token, a pair, a decode row, a KV token read, an encoder token."""
        self.observed = 0
        """Steps seen; before the first the scale is a guess."""
        self._set_scale(1.0)

    def seconds(
        self,
        tokens: int,
        kv_tokens_read: int = 0,
        attention_pairs: float = 0.0,
        decode_rows: int = 0,
        encoder_tokens: int = 0,
    ) -> float:
        """Predicted duration of a step, in seconds; never shorter for more work."""
        c0, token, pair, row, kv_token, encoder = self.coefficients
        return (
            c0
            + token * tokens
            + pair * attention_pairs
            + row * decode_rows
            + kv_token * kv_tokens_read
            + encoder * encoder_tokens
        )

    def marginal_seconds(self, work: StepWork) -> float:
        """What this work adds to a step that runs anyway, in seconds."""
        tokens, pairs, rows, kv_tokens, encoder_tokens = work
        return self.seconds(tokens, kv_tokens, pairs, rows, encoder_tokens) - self.coefficients[0]

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work took so long; outside of ``MEASURABLE``: not a measurement."""
        if not MEASURABLE[0] <= seconds <= MEASURABLE[1]:
            return
        amounts = [1.0, *work]
        clamped: set[int] = set()
        self.observed += 1
        if self.observed == 1:
            self._set_scale(seconds / sum(map(mul, self.coefficients, amounts)))
            return
        while True:
            predicted = sum(map(mul, self.coefficients, amounts))
            row = [0.0 if i in clamped else each / predicted for i, each in enumerate(amounts)]
            gain = [sum(map(mul, line, row)) for line in self._covariance]
            variance = NOISE * NOISE + max(sum(map(mul, gain, row)), 0.0)
            error, most = seconds / predicted - 1.0, CLIP * sqrt(variance)
            step = min(max(error, -most), most) / variance
            moved = [each + step * by for each, by in zip(self.coefficients, gain, strict=True)]
            below = [i for i in range(_N) if i not in clamped and moved[i] < self._least[i]]
            if not below:
                break
            # What these cannot give is not to be given to the others: again, without them.
            clamped.update(below)
            for i in below:
                self._clamp(i)
        self.coefficients = moved
        if abs(error) <= most:
            self._learn(gain, variance)
        else:
            self._doubt()

    def _clamp(self, i: int) -> None:
        """To its least, and unrelated to the others."""
        self.coefficients[i] = self._least[i]
        for j, line in enumerate(self._covariance):
            if j != i:
                line[i] = self._covariance[i][j] = 0.0

    def _learn(self, gain: list[float], variance: float) -> None:
        covariance = self._covariance
        for i, each in enumerate(gain):
            line, share = covariance[i], each / variance
            # One half, copied to the other: rounding that makes them differ would never be learned
            # away, and every doubt would double it.
            line[i] -= share * each
            for j in range(i):
                line[j] -= share * gain[j]
                covariance[j][i] = line[j]
            # Only what is below the prior's variance drifts, so that it never exceeds it; the
            # least keeps rounding from making a variance negative.
            most = self._most_variance(i)
            if line[i] < most:
                line[i] = max(line[i] + DRIFT * most, DRIFT * most)

    def _doubt(self) -> None:
        """Every coefficient is twice as uncertain as it was, up to the prior's uncertainty."""
        variances = [self._covariance[i][i] for i in range(_N)]
        factors = [
            min(2.0, max(1.0, sqrt(self._most_variance(i) / variance)))
            for i, variance in enumerate(variances)
        ]
        for line, mine in zip(self._covariance, factors, strict=True):
            for j, other in enumerate(factors):
                line[j] *= mine * other

    def _most_variance(self, i: int) -> float:
        """The prior's: as uncertain as it is large (or, once clamped, as it was at first)."""
        return max(self.coefficients[i], self._tenth[i]) ** 2

    def _set_scale(self, ratio: float) -> None:
        self.coefficients = [coefficient * ratio for coefficient in self.coefficients]
        self._least = [coefficient * LEAST for coefficient in self.coefficients]
        self._tenth = [least / LEAST / 10 for least in self._least]
        self._covariance = [
            [self._most_variance(i) if i == j else 0.0 for j in range(_N)] for i in range(_N)
        ]
