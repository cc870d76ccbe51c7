"""What a policy promises and forbids: the small values that tiers, tenants and pools are made of.

Every one is optional in the document it stands in, and its absence means that nothing is limited or
promised there. Windows, percents and times mean what the module of ``tidegate/scheduling`` says
that puts them into force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate.scheduling.contracts.codec import ContractError, described
from tidegate.scheduling.contracts.scenario import Endpoint

DEFAULT_QUEUE_REQUESTS = 5_000
DEFAULT_QUEUE_BYTES = 256 * 1024 * 1024
DEFAULT_QUEUE_WAIT_SECONDS = 120.0
DEFAULT_OUTPUT_TOKENS = 1_024
DEFAULT_BACKOFF_PER_QUEUED_REQUEST_SECONDS = 0.010
DEFAULT_BACKOFF_MAX_SECONDS = 0.5
DEFAULT_PREEMPTIONS_PER_REQUEST = 3
DEFAULT_SLO_WINDOW_SECONDS = 720 * 3600.0


class FairnessUnit(StrEnum):
    """In what the tenants of a tier are compared.

    Requests: each counts one. Tokens: prompt and output tokens. EngineTime: the share of the
    engine's busy milliseconds.
    """

    REQUESTS = "Requests"
    TOKENS = "Tokens"
    ENGINE_TIME = "EngineTime"


DEFAULT_QUANTUM = {
    FairnessUnit.REQUESTS: 1,
    FairnessUnit.TOKENS: 2_048,
    FairnessUnit.ENGINE_TIME: 100,
}


class LimitWindow(StrEnum):
    """Over what a rate limit counts.

    Minute, Hour: any 60 or 3,600 seconds, rolling. Day, Month: of the calendar, in UTC.
    """

    MINUTE = "Minute"
    HOUR = "Hour"
    DAY = "Day"
    MONTH = "Month"


class OnExceed(StrEnum):
    """What becomes of a prompt above the limit.

    Reject: refused with 413. Truncate: its beginning is cut off. BestEffort: served, in the lowest
    place of its tenant's queue.
    """

    REJECT = "Reject"
    TRUNCATE = "Truncate"
    BEST_EFFORT = "BestEffort"


class SloMetric(StrEnum):
    """What a latency objective is about.

    TimeToFirstToken, EndToEnd: from the arrival. InterTokenLatency: between two tokens of a stream.
    """

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"
    END_TO_END = "EndToEnd"
    INTER_TOKEN_LATENCY = "InterTokenLatency"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one tenant's queue; beyond them a request is refused at once."""

    max_requests: int = described(
        "Most requests of one tenant that wait.", default=DEFAULT_QUEUE_REQUESTS, low=0
    )
    max_bytes: int = described(
        "Most bytes of request bodies of one tenant that wait.",
        default=DEFAULT_QUEUE_BYTES,
        low=0,
    )
    max_wait_seconds: float = described(
        "Longest wait in the queue; a request that waited longer ends with 504.",
        default=DEFAULT_QUEUE_WAIT_SECONDS,
        low=0.001,
        high=86_400.0,
    )


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Output tokens of one request."""

    default_tokens: int = described(
        "Output length assumed and sent where the client names none.",
        default=DEFAULT_OUTPUT_TOKENS,
        low=1,
    )
    max_tokens: int | None = described(
        "Most output tokens a client may ask for; null: as many as the model allows.",
        default=None,
        low=1,
    )


@dataclass(frozen=True, slots=True)
class Fairness:
    """Deficit round robin between the tenants of a tier."""

    unit: FairnessUnit = described("Unit of cost.", default=FairnessUnit.TOKENS)
    quantum: int | None = described(
        "Most credit in hand at weight 1, in `unit`, given in eight turns; null: 1 request, "
        "2048 tokens (of an engine that embeds, its max_num_batched_tokens where that is given) or "
        "100 milliseconds.",
        default=None,
        low=1,
    )


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The most that one tenant may take in a window, else 429."""

    name: str = described("Its name; unique in its list.", low=1, high=63)
    per: LimitWindow = described("The window.")
    requests: int | None = described("Most requests; null: not limited.", default=None, low=1)
    tokens: int | None = described(
        "Most prompt and output tokens; null: not limited. One of the two must be set.",
        default=None,
        low=1,
    )
    endpoints: tuple[Endpoint, ...] = described("Which it counts; empty: all.", default=())
    models: tuple[str, ...] = described(
        "Names of the models that it counts; empty: all.", default=(), high=64
    )

    def __post_init__(self) -> None:
        if self.requests is None and self.tokens is None:
            raise ContractError("requests: set it, or tokens, or both")

    def counts(self, endpoint: Endpoint | None, model: str | None) -> bool:
        """Whether it counts such a request; None is not known, and no way around a limit."""
        return (not self.endpoints or endpoint is None or endpoint in self.endpoints) and (
            not self.models or model is None or model in self.models
        )


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The largest prompt."""

    max_tokens: int | None = described("Most tokens; null: not limited.", default=None, low=1)
    max_prefill_seconds: float | None = described(
        "Longest prefill, at the rate measured of the engine; null: not limited. One of the two "
        "must be set.",
        default=None,
        low=0.001,
        high=86_400.0,
    )
    on_exceed: OnExceed = described("What becomes of a larger one.", default=OnExceed.REJECT)

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_prefill_seconds is None:
            raise ContractError("max_tokens: set it, or max_prefill_seconds, or both")


@dataclass(frozen=True, slots=True)
class Preemption:
    """When the requests of a tier are taken off the engine.

    Without a plug-in by the sidecar, and only those whose client has seen nothing yet.
    """

    evictable: bool = described(
        "Its running requests may be preempted, paused or their KV cache reclaimed for a tier of "
        "higher priority.",
        default=False,
    )
    backoff_per_queued_request_seconds: float = described(
        "A preempted request waits so long per request that waits, before it is computed again.",
        default=DEFAULT_BACKOFF_PER_QUEUED_REQUEST_SECONDS,
        low=0,
        high=60.0,
    )
    backoff_max_seconds: float = described(
        "But never longer.", default=DEFAULT_BACKOFF_MAX_SECONDS, low=0, high=3_600.0
    )
    max_per_request: int = described(
        "How often one request may be preempted.",
        default=DEFAULT_PREEMPTIONS_PER_REQUEST,
        low=0,
        high=1_000,
    )


@dataclass(frozen=True, slots=True)
class SloObjective:
    """A promise about latency. What could not keep that of TimeToFirstToken is refused with 429."""

    metric: SloMetric = described("What is promised; at most one objective for each.")
    target_seconds: float = described("The latency promised.", low=0.001, high=86_400.0)
    ratio_percent: float = described(
        "Of how many requests, in percent.", default=99.0, low=0.001, high=100.0
    )
    window_seconds: float = described(
        "Over what time the ratio is judged.", default=DEFAULT_SLO_WINDOW_SECONDS, low=60.0
    )


@dataclass(frozen=True, slots=True)
class KvPool:
    """A part of an engine's KV cache that some tiers share.

    Without a plug-in requests are kept out by what they are expected to hold.
    """

    name: str = described("Its name; unique in the pool.", low=1, high=63)
    tiers: tuple[str, ...] = described("Who shares it; a tier is in at most one.", low=1, high=64)
    percent: int = described("Of the KV cache, guaranteed to them.", low=0, high=100)
    lendable_percent: int | None = described(
        "Percent of the KV cache, at most `percent`, that others may use while these do not; "
        "null: all of `percent`.",
        default=None,
        low=0,
        high=100,
    )
    borrow_limit_percent: int | None = described(
        "Percent of the KV cache that these may use beyond their own while others do not; null: "
        "all that is lent.",
        default=None,
        low=0,
        high=100,
    )

    def __post_init__(self) -> None:
        if self.lendable_percent is not None and self.lendable_percent > self.percent:
            raise ContractError("lendable_percent: must not be above percent")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the gate may know of the engine before it has measured it."""

    max_num_seqs: int | None = described(
        "Sequences that the engine runs at once; null: learned from its metrics.",
        default=None,
        low=1,
    )
    max_num_batched_tokens: int | None = described(
        "Tokens of one engine step; null: 2048 assumed.", default=None, low=1
    )


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """How much of a step prefills may take while others decode; kept by the engine's plug-in.

    Without one, where a tier has an InterTokenLatency objective, at most two budgets are sent to
    the engine and not computed yet.
    """

    budget_percent: int = described(
        "Of the engine's tokens per step; outside 20 to 40 either long prompts or decodes suffer.",
        default=30,
        low=1,
        high=100,
    )
    tokens_per_step: int | None = described(
        "The same in tokens, in the place of `budget_percent`; null: the percent holds.",
        default=None,
        low=1,
    )
    chunk_tokens: int | None = described(
        "Most tokens of one prompt in one step; null: the budget.", default=None, low=1
    )
    long_prompt_tokens: int | None = described(
        "Longer prompts get at most half of the budget while shorter ones wait; null: the budget.",
        default=None,
        low=1,
    )

    def budget_tokens(self, max_num_batched_tokens: int) -> int:
        """Most prefill tokens of a step in which anything decodes, at least 1."""
        budget = self.tokens_per_step or max_num_batched_tokens * self.budget_percent // 100
        return min(max(budget, 1), max_num_batched_tokens)


def unique(names: Sequence[str], what: str) -> None:
    """:class:`ContractError` where one of the names is listed twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ContractError(f"{what}: {name!r} is listed twice")
        seen.add(name)
