"""What one engine step did, as the plug-in inside vLLM tells the sidecar.

One Unix datagram a step, sent when the step's output is back, of which the sender never waits for
the receiver: what can't be taken at once is dropped and counted (``dropped_total``, and a gap in
``step``). Requests are named by their ``tidegate_sequence``; several engine sequences of one number
(``n``, a list of prompts) are told one by one. All counts named ``*_total`` rise monotonically from
the engine's start, which a smaller ``step`` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import Report, described

STEP_STATISTICS_VERSION = 1


class PreemptionCause(StrEnum):
    """Why a request gave up its seat and its blocks.

    admission: for one that waited. growth: for blocks that a running one, maybe itself, had to
    have. engine: vLLM's own choice.
    """

    ADMISSION = "admission"
    GROWTH = "growth"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class StepPrefill:
    """A request that computed prompt tokens, or again what a preemption had lost."""

    sequence: int = described("Its `tidegate_sequence`.", low=0)
    tokens: int = described("Tokens computed.", low=1)
    context_tokens: int = described(
        "Those before them: computed in earlier steps, or reused.", default=0, low=0
    )
    reused_tokens: int = described(
        "Found in the prefix cache when it entered, in this step.", default=0, low=0
    )
    recomputed_tokens: int = described(
        "Of `tokens`, the first ones, computed before and lost by preemption.", default=0, low=0
    )
    caused_by: str = described(
        "The tier for which it was preempted; empty: for its own growth, or nobody knows.",
        default="",
        high=63,
    )


@dataclass(frozen=True, slots=True)
class StepPreemption:
    """A request that gave up its seat and its blocks."""

    sequence: int = described("Its `tidegate_sequence`.", low=0)
    cause: PreemptionCause = described("Why.")
    for_sequence: int | None = described(
        "Of the request that it made room for, its own for its own growth; null: vLLM's choice.",
        default=None,
        low=0,
    )
    lost_tokens: int = described("Computed, and to be computed again.", default=0, low=0)


@dataclass(frozen=True, slots=True)
class StepDrafts:
    """What became of the draft tokens of one tier's requests."""

    tier: str = described("Name of the tier; empty: of none.", high=63)
    drafted_tokens: int = described("Verified in the step.", low=0)
    accepted_tokens: int = described("Of them, those that became output.", low=0)


@dataclass(frozen=True, slots=True)
class StepPool:
    """One KV pool, in blocks."""

    name: str = described("Of the policy's; empty: the tiers in none.", high=63)
    nominal_blocks: int = described("Its own.", low=0)
    held_blocks: int = described("By its running requests, a shared one once.", low=0)
    cached_blocks: int = described("Free, with content of its tiers.", low=0)


@dataclass(frozen=True, slots=True)
class StepTier:
    """One tier's part of the KV cache, in blocks."""

    name: str = described("Of the policy's.", high=63)
    held_blocks: int = described("By its running requests.", low=0)
    room_blocks: int = described(
        "How many more it could hold now: what others owe its pool, or what is free and may be "
        "borrowed.",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class StepStatistics(Report):
    """One step of one engine."""

    version: int = described(
        "Version of this contract.", low=STEP_STATISTICS_VERSION, high=STEP_STATISTICS_VERSION
    )
    step: int = described("Rising by one from the engine's start.", low=1)
    planned: bool = described("Whether a plan was in force; false: vLLM's own step.")
    seconds: float = described(
        "Engine time of the step: until its output was back, from when it was scheduled or the "
        "output before it was back, whichever was later.",
        default=0.0,
        low=0,
    )
    plan_seconds: float = described("Spent before vLLM's `schedule()`.", default=0.0, low=0)
    policy_generation: int | None = described("Of the policy in force.", default=None, low=0)
    decodes: tuple[int, ...] = described(
        "`tidegate_sequence` of each that computed its next token.", default=()
    )
    decode_tokens: tuple[int, ...] = described(
        "Tokens of each of `decodes`, its drafts among them; empty: one each.", default=()
    )
    prefills: tuple[StepPrefill, ...] = described("All others of the step.", default=())
    untagged_tokens: int = described(
        "Tokens of requests without a `tidegate_sequence`.", default=0, low=0
    )
    drafts: tuple[StepDrafts, ...] = described("By tier, where any were verified.", default=())
    preemptions: tuple[StepPreemption, ...] = described("Before or in the step.", default=())
    pools: tuple[StepPool, ...] = described(
        "KV pools at the beginning of the step; told ten times a second.", default=()
    )
    tiers: tuple[StepTier, ...] = described("Told with `pools`.", default=())
    waiting: int = described("Requests in the engine's queue.", default=0, low=0)
    vetoed: Mapping[str, int] = described(
        "Waiting requests that may not enter, by reason; who stands behind one is not counted.",
        default_factory=dict,
    )
    failures_total: int = described("Hooks that failed.", default=0, low=0)
    dropped_total: int = described("Datagrams that could not be sent.", default=0, low=0)
