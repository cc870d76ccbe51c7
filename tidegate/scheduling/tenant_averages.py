"""What a tenant's requests turn out to be, on average and at worst: output, cache hits, acceptance.

Use: one ``Averages`` per tenant and one per tier; ``ended(...)`` when a request has run to its end;
``expected_*`` with the tenant's and the tier's. O(log n) in the ``QUANTILES_OVER`` last outputs.

Theory. Only what a tenant controls is averaged per tenant; what the engine does is the step-time
fit's. Sums must come out right, so fairness charges *means* (of the last 32, ``OutputMean``:
an average over a fixed number follows a change within that many requests and does not remember the
past any longer). A promise must hold for nearly every request, so deadlines and KV projections take
the 90th percentile and rate-limit reservations the 95th, nearest rank over the last 128 outputs.
Few samples say nothing about a tail: until a tenant has 20, its tier's hold, and until that has, a
prior on the safe side: the most that the request may produce, no cache hit, one token a step.

Bound: a mean is of the last 32 requests alone, a quantile of the last 128, and a ratio keeps
(31/32)^n of what was before the last n (5% after 95). Of outputs that are drawn alike, 10% exceed
the 90th percentile, with a standard deviation of 2.6% (order statistics: Wilks 1941).

Invariants: an expected output is at least 1 token where any may be produced and never more than
the request may produce; ratios of cache hits are within 0..1, tokens per step at least 1.
Memory: 0.4 to 1.5 kB a tenant.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from math import ceil

MEAN_OVER = 32
QUANTILES_OVER = 128
RATIOS_OVER = 32
SAMPLES_NEEDED = 20

DEADLINE_PERCENT = 90
"""Of outputs, for finish times and KV projections."""
RESERVATION_PERCENT = 95
"""Of outputs, for rate limits."""

_MOST = 2**32 - 1


class OutputMean:
    """Mean output length of the last 32 requests, in tokens."""

    __slots__ = ("_last", "_sum", "tokens")

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=MEAN_OVER)
        self._sum = 0
        self.tokens: float | None = None
        """The mean; unset until a request was counted."""

    def add(self, output_tokens: int) -> None:
        """Count one request that ran to its end."""
        last = self._last
        if len(last) == MEAN_OVER:
            self._sum -= last[0]
        last.append(output_tokens)
        self._sum += output_tokens
        self.tokens = self._sum / len(last)


class OutputQuantiles:
    """Quantiles of the last 128 output lengths, in tokens."""

    __slots__ = ("_next", "_ring", "_sorted")

    def __init__(self) -> None:
        self._ring = array("I")
        self._sorted = array("I")
        self._next = 0

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, output_tokens: int) -> None:
        """Count one request that ran to its end."""
        tokens = min(max(output_tokens, 0), _MOST)
        ring, ordered = self._ring, self._sorted
        if len(ring) < QUANTILES_OVER:
            ring.append(tokens)
        else:
            place = self._next
            del ordered[bisect_left(ordered, ring[place])]
            ring[place] = tokens
            self._next = (place + 1) % QUANTILES_OVER
        insort(ordered, tokens)

    def tokens(self, percent: int) -> int:
        """The least length that so many percent do not exceed; there must be one."""
        return self._sorted[ceil(len(self._sorted) * percent / 100) - 1]


class RecentRatio:
    """An exponential average of a ratio that each request shows once."""

    __slots__ = ("_average", "samples", "value")

    def __init__(self, prior: float) -> None:
        self._average = 0.0
        self.samples = 0
        self.value = prior
        """The average, or the prior until there are 20."""

    def add(self, value: float) -> None:
        """Count one; the first ones weigh as in a plain mean."""
        self.samples += 1
        self._average += (value - self._average) / min(self.samples, RATIOS_OVER)
        if self.samples >= SAMPLES_NEEDED:
            self.value = self._average


class Averages:
    """Of one tenant, or of all tenants of a tier."""

    __slots__ = ("cached_ratio", "outputs", "tokens_per_step")

    def __init__(self) -> None:
        self.outputs = OutputQuantiles()
        self.cached_ratio = RecentRatio(0.0)
        """Prompt tokens that the prefix cache had, 0..1."""
        self.tokens_per_step = RecentRatio(1.0)
        """Output tokens of one decode step: 1 and those accepted of a draft."""

    def ended(
        self,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int | None = None,
        decode_steps: int | None = None,
    ) -> None:
        """A request ran to its end; None: not known of it."""
        self.outputs.add(output_tokens)
        if cached_tokens is not None and prompt_tokens > 0:
            self.cached_ratio.add(min(max(cached_tokens / prompt_tokens, 0.0), 1.0))
        if decode_steps:
            self.tokens_per_step.add(max((output_tokens - 1) / decode_steps, 1.0))


def output_quantile_tokens(
    percent: int, max_output_tokens: int, tenant: Averages, tier: Averages
) -> int:
    """An output that so many percent of such requests do not exceed, in tokens."""
    for averages in (tenant, tier):
        if len(averages.outputs) >= SAMPLES_NEEDED:
            likely = max(averages.outputs.tokens(percent), 1)
            return min(likely, max_output_tokens)
    return max_output_tokens


def expected_cached_tokens(prompt_tokens: int, tenant: Averages, tier: Averages) -> int:
    """Prompt tokens that the prefix cache will have."""
    ratio = tenant.cached_ratio
    if ratio.samples < SAMPLES_NEEDED:
        ratio = tier.cached_ratio
    return int(prompt_tokens * ratio.value)


def expected_tokens_per_step(tenant: Averages, tier: Averages) -> float:
    """Output tokens of one decode step, at least 1."""
    ratio = tenant.tokens_per_step
    return ratio.value if ratio.samples >= SAMPLES_NEEDED else tier.tokens_per_step.value
