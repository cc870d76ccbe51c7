"""A request as the scheduler sees it: who asks, how much, how urgent. No content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.scheduling.contracts import Endpoint, Lateness
from tidegate.scheduling.finish_time import FinishEstimate, Skew, skew
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.rate_limit import LimitRefusal, Reservation


class Refusal(NamedTuple):
    """Why a request was not queued."""

    outcome: Outcome
    retry_after_seconds: int | None = None
    """The same request would be accepted then if nobody sent anything meanwhile; None: see
    ``Scheduler.retry_after_seconds``, or never."""
    limit: str | None = None
    """Name of the rate limit."""
    lateness: Lateness | None = None
    """Of one that was throttled."""


@dataclass(slots=True, eq=False)
class Forecast:
    """When a request was to be finished, as of its dispatch, and how far that was off."""

    est_finish: float | None = None
    """On the scheduler's clock; unset until its dispatch."""
    at_dispatch: FinishEstimate | None = None
    """What that was made of."""
    first_token: float | None = None
    """When its first token came."""
    skew: Skew | None = None
    """vft_skew of the estimate at its dispatch; unset where it did not run to its end."""

    def made(self, estimate: FinishEstimate, now: float) -> None:
        """Of one that is dispatched now, perhaps once more."""
        self.at_dispatch, self.first_token = estimate, None
        self.est_finish = now + estimate.finish_seconds

    def judge(self, dispatched: float, now: float, usage: Usage) -> None:
        """It has run to its end now."""
        if self.at_dispatch is not None:
            first_token = now if self.first_token is None else self.first_token
            self.skew = skew(
                self.at_dispatch,
                first_token - dispatched,
                now - dispatched,
                usage.output_tokens,
                usage.preempted_seconds,
            )


@dataclass(slots=True, eq=False)
class Request:
    """One request of one tenant, from submit to its one outcome.

    The first group of fields is set by the host before ``Scheduler.submit`` and never changes; the
    second belongs to the scheduler.
    """

    id: str
    tenant: str
    """namespace/name of the Tenant, a row of the policy in force."""
    prompt_tokens: int
    """Estimated, over all of its prompts; less where the prompt limit truncates."""
    max_output_tokens: int
    """Most output tokens it may produce, over all of its sequences."""
    body_bytes: int = 0
    """Bytes held while it waits, counted against the tenant's queue."""
    sequences: int = 1
    """Engine sequences it becomes (prompts times n)."""
    priority: int = 0
    """Among the requests of its own tenant, higher first."""
    deadline: float | None = None
    """Latest time of its first token, on the scheduler's clock; unset: none."""
    endpoint: Endpoint | None = None
    """Which rate limits count it; unset: those for any endpoint count it too."""
    model: str | None = None
    """Likewise."""
    limits_verdict: Reservation | LimitRefusal | None = None
    """What counters shared with other pods said of its rate limits; unset: the scheduler's own
    count. A reservation is the scheduler's to settle once the request is queued."""
    parts: tuple[Request, ...] = ()
    """What it is served in, each scheduled by itself, in this order; together they have its sizes.
    Empty: it is served whole."""
    whole: Request | None = None
    """What it is a part of: that is limited, and bounds its tenant's queue, as one request."""

    arrival: float = field(default=0.0, init=False)
    sequence: int | None = field(default=None, init=False)
    """Rising number in order of dispatch; unset while it waits."""
    dispatched: float | None = field(default=None, init=False)
    expected_cached_tokens: int = field(default=0, init=False)
    """Of its prompt, what the prefix cache is expected to have; set, as the next one, when it is
    queued, where the host reports the engine's steps."""
    expected_output_tokens: int = field(default=0, init=False)
    """The 90th percentile of such requests' outputs; 0: not known."""
    output_tokens: int = field(default=0, init=False)
    """Charged so far while streaming."""
    best_effort: bool = field(default=False, init=False)
    """Its prompt is above its tier's limit: the lowest place of its tenant's queue."""
    truncate_to_tokens: int | None = field(default=None, init=False)
    """The host must cut its prompt to its last so many tokens before it is dispatched."""
    refusal: Refusal | None = field(default=None, init=False)
    """Why it was not queued; in Shadow, why it would not have been."""
    forecast: Forecast | None = field(default=None, init=False)
    """Set where the host reports the engine's steps, once some were measured."""
    billed_tokens: int = field(default=0, init=False)
    """Prompt and output tokens that it was billed; set at its end."""
    engine_ms: float | None = field(default=None, init=False)
    """EngineTime that it took; set at its end, where the host reports the engine's steps."""
    parts_ended: int = field(default=0, init=False)
    """Of its parts."""

    def check(self) -> None:
        """ValueError for sizes that no request has."""
        negative = self.prompt_tokens < 0 or self.max_output_tokens < 0 or self.body_bytes < 0
        if negative or self.sequences < 1:
            raise ValueError(f"request {self.id!r} has a negative size or no sequence")

    def leads(self) -> bool:
        """Whether it is served whole, or is the part that is served first."""
        return self.whole is None or self.whole.parts[0] is self

    def trails(self) -> bool:
        """Whether it is served whole, or is the part that is served last."""
        return self.whole is None or self.whole.parts[-1] is self


class Usage(NamedTuple):
    """What the engine reports of an ended request, in tokens, over all of its sequences."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache had; None: not known."""
    decode_steps: int | None = None
    """Steps in which it decoded; None: not known."""
    preempted_seconds: float = 0.0
    """Between its preemptions and its return to where it was."""
