"""How much output to expect of a request when it is charged.

A request is charged at dispatch, when its output length is not known. What is charged then is the
*mean* of the tenant's last 32 output lengths (the tier's mean until there are some, then a prior):
fair sums need means, while quantiles belong to deadlines and KV projections. Charging nothing until
the output shows would let one tenant fill the engine before its first token is counted; charging
the most it may produce would punish a client that leaves ``max_tokens`` alone.
"""

from __future__ import annotations

from collections import deque

MEAN_OVER = 32
PRIOR_OUTPUT_TOKENS = 256
"""Assumed where neither the tenant nor its tier has finished a request yet."""


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


def predicted_output_tokens(
    max_output_tokens: int, of_tenant: OutputMean, of_tier: OutputMean
) -> float:
    """Expected output of a request that may produce at most ``max_output_tokens``."""
    mean = of_tenant.tokens
    if mean is None:
        mean = of_tier.tokens
    if mean is None:
        mean = PRIOR_OUTPUT_TOKENS
    return min(mean, max_output_tokens)
