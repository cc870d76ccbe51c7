"""What one engine step did, as the plug-in inside vLLM tells the sidecar.

One Unix datagram a step, of which the sender never waits for the receiver: what can't be taken at
once is dropped and counted (``dropped_total``, and a gap in ``step``). Requests are named by their
``tidegate_sequence``. A decode of one token is counted but not listed: the sidecar has seen the
token itself. All counts named ``*_total`` rise monotonically from the engine's start, which a
smaller ``step`` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import described

STEP_STATISTICS_VERSION = 1


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request that computed more than one token in the step, or entered in it."""

    sequence: int = described("Its `tidegate_sequence`.", low=0)
    tokens: int = described("Tokens computed: of its prompt, or a decode with its drafts.", low=1)
    reused_tokens: int = described(
        "Found in the prefix cache when it entered, in this step.", default=0, low=0
    )
    recomputed_tokens: int = described(
        "Of `tokens`, those computed before and lost by preemption.", default=0, low=0
    )


@dataclass(frozen=True, slots=True)
class StepPreemption:
    """A request that gave up its seat and its blocks."""

    sequence: int = described("Its `tidegate_sequence`.", low=0)
    for_sequence: int | None = described(
        "Of the request that it made room for, its own for its own growth; null: vLLM's choice.",
        default=None,
        low=0,
    )
    lost_tokens: int = described("Computed, and to be computed again.", default=0, low=0)


@dataclass(frozen=True, slots=True)
class StepPool:
    """One KV pool at the beginning of the step, in blocks."""

    name: str = described("Of the policy's; empty: the tiers in none.", high=63)
    nominal_blocks: int = described("Its own.", low=0)
    held_blocks: int = described("By its running requests, a shared one once.", low=0)
    cached_blocks: int = described("Free, with content of its tiers.", low=0)


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """One step of one engine."""

    version: int = described(
        "Version of this contract.", low=STEP_STATISTICS_VERSION, high=STEP_STATISTICS_VERSION
    )
    step: int = described("Rising by one from the engine's start.", low=1)
    planned: bool = described("Whether a plan was in force; false: vLLM's own step.")
    policy_generation: int | None = described("Of the policy in force.", default=None, low=0)
    plan_seconds: float = described("Spent before vLLM's `schedule()`.", default=0.0, low=0)
    decodes: int = described("Requests that computed one token.", default=0, low=0)
    requests: tuple[StepRequest, ...] = described("The others of the step.", default=())
    preemptions: tuple[StepPreemption, ...] = described("Before or in the step.", default=())
    pools: tuple[StepPool, ...] = described("KV pools; none without a plan.", default=())
    waiting: int = described("Requests in the engine's queue.", default=0, low=0)
    vetoed: Mapping[str, int] = described(
        "Waiting requests that may not enter, by reason; who stands behind one is not counted.",
        default_factory=dict,
    )
    failures_total: int = described("Hooks that failed.", default=0, low=0)
    dropped_total: int = described("Datagrams that could not be sent.", default=0, low=0)
