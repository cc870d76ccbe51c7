"""When a request will be finished (``est_finish``), while it waits and at its dispatch; the skew.

Use: ``FinishEstimate`` is built with the forecasts of ``waiting_time`` and ``engine_time`` (see
``estimate``), for each request at its dispatch (``wait_seconds`` 0), and for one that waits, from
its arrival on, when somebody asks; at the end ``skew(...)`` says how far that of the dispatch was
off, whether that is flagged, and why. O(1).

Theory
------
The two-phase estimate of source 000: prefill, then the remaining output at the tokens that a step
accepts, both at the pace of the present mix; before them, while it waits, the wait under the policy
in force (its own tenant's queue at its share, and what its tier yields).

The output length is the one unknown that belongs to the request. A finish time is a promise of
"by then", so it takes the 90th percentile of the tenant's outputs (``tenant_averages``), not their
mean: lengths are so uneven that with the mean two of five conversations of Azure's 2023 trace end
30% late by their length alone, and a flag that is always up tells nothing.

    vft_skew = (actual - estimated) / estimated

as durations from the dispatch. Source 000 flags it over 0.30: the request finished late. Ending
early is what 9 of 10 do. The cause is the part that was late by most:

* ``PREFILL``: the first token came late (a long prompt before it, a cold cache);
* ``OUTPUT``: more was produced than nine of ten of the tenant's requests produce;
* ``PREEMPTION``: it was taken off the engine;
* ``PACE``: the steps took longer than those before its dispatch (another mix).

Bound: while a tenant's outputs stay as they were, one request in ten is late by its output; how
late another mix or a preemption makes it has no bound, so each is a cause of its own.
Invariant: the parts sum to what it was late by.
Source: source 000, its two phases and checklist item 7. Not used: its ``max(last_vft, now) +
tokens/weight``, which adds seconds to tokens; scaled, it is VirtualClock (Zhang 1990), which
punishes a tenant later for idle capacity that it used.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tidegate.scheduling.engine_time import EnginePace

FLAGGED_ABOVE = 0.30


class SkewCause(StrEnum):
    """Which part of a request was late by most."""

    PREFILL = "prefill"
    OUTPUT = "output"
    PREEMPTION = "preemption"
    PACE = "pace"


class FinishEstimate(NamedTuple):
    """Durations in seconds, one after the other, and the output that was assumed."""

    wait_seconds: float
    """From now to the dispatch; 0 in an estimate made at the dispatch."""
    prefill_seconds: float
    """From the dispatch to the first token."""
    decode_seconds: float
    """From the first token to the last."""
    output_tokens: float

    @property
    def first_token_seconds(self) -> float:
        """To the first token."""
        return self.wait_seconds + self.prefill_seconds

    @property
    def finish_seconds(self) -> float:
        """To the last token; ``est_finish`` is that much after the moment it was made at."""
        return self.wait_seconds + self.prefill_seconds + self.decode_seconds


class Skew(NamedTuple):
    """How far an estimate was off."""

    ratio: float
    """vft_skew: above 0 late, below 0 early."""
    cause: SkewCause | None
    """Set where it is flagged: later than source 000 allows."""


def estimate(
    pace: EnginePace,
    prompt_tokens: int,
    output_tokens: float,
    *,
    cached_tokens: int = 0,
    tokens_per_step: float = 1.0,
    prefill_ahead_tokens: int = 0,
    wait_seconds: float = 0.0,
) -> FinishEstimate:
    """The two phases at the engine's present pace, after a wait.

    ``output_tokens``: see ``tenant_averages.output_quantile_tokens``; ``prefill_ahead_tokens``:
    what was dispatched and has not been prefilled yet.
    """
    return FinishEstimate(
        wait_seconds,
        pace.first_token_seconds(prompt_tokens, cached_tokens, prefill_ahead_tokens),
        pace.decode_seconds(output_tokens, tokens_per_step),
        output_tokens,
    )


def skew(
    estimated: FinishEstimate,
    first_token_seconds: float,
    finish_seconds: float,
    output_tokens: int,
    preempted_seconds: float = 0.0,
) -> Skew:
    """Of the estimate made at the dispatch; all durations are from then.

    ``preempted_seconds``: between its preemptions and its return to where it was.
    """
    expected = estimated.prefill_seconds + estimated.decode_seconds
    ratio = (finish_seconds - expected) / expected if expected > 0 else 0.0
    if ratio <= FLAGGED_ABOVE:
        return Skew(ratio, None)
    steps = max(estimated.output_tokens - 1, 1)
    more = estimated.decode_seconds * (max(output_tokens - 1, 0) / steps - 1)
    prefill = first_token_seconds - estimated.prefill_seconds
    late = {
        SkewCause.PREFILL: prefill,
        SkewCause.OUTPUT: more,
        SkewCause.PREEMPTION: preempted_seconds,
        SkewCause.PACE: finish_seconds - expected - prefill - more - preempted_seconds,
    }
    return Skew(ratio, max(late, key=lambda cause: late[cause]))
