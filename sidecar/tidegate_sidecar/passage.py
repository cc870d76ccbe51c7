"""One request's way through the tenants' port, from its first byte to its one end.

The proxy opens a :class:`Passage` for each request and closes it exactly once, in every case; what
is reported of a request (its usage record, its spans, why it waited) is made of what stands in it
then. No content: sizes, names of the policy, times, and how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import (
    USAGE_RECORD_VERSION,
    Endpoint,
    RecordKind,
    UsageRecord,
)
from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome
from tidegate.scheduling.request import Request
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.trace_context import TraceContext


@dataclass(slots=True, eq=False)
class Passage:
    """How far a request came."""

    id: str
    arrival: float
    """Loop time."""
    tenant: str = ""
    endpoint: Endpoint | None = None
    stream: bool = False
    """The client asked for a stream."""
    request: Request | None = None
    """As it was, or was not, queued."""
    tickets: list[Ticket] = field(default_factory=list)
    """What it became in the pod stage; they count its end."""
    outcome: Outcome | None = None
    """Of a request that has no ticket; unset: nothing to count."""
    error: ApiError | None = None
    """What its client was told in the place of an answer."""
    trace: TraceContext | None = None

    @property
    def ticketed(self) -> bool:
        """Whether the pod stage counts its end."""
        return bool(self.tickets)

    @property
    def ended_as(self) -> Outcome | None:
        """Its one outcome: the first of its parts that failed, else of all."""
        for ticket in self.tickets:
            if ticket.outcome is not Outcome.COMPLETED:
                return ticket.outcome
        return Outcome.COMPLETED if self.tickets else self.outcome

    @property
    def status(self) -> int:
        """The HTTP status that it ended with, 499 where its client went away."""
        if self.error is not None:
            return self.error.status
        outcome = self.ended_as
        if outcome is Outcome.CLIENT_CLOSED:
            return HTTP_ERRORS[outcome].status
        return 200  # also of a stream that broke off after its head

    def waited_until(self, now: float) -> float:
        """Its first dispatch; ``now`` while it waits; its arrival where it never did."""
        if not self.tickets:
            return self.arrival
        times = [ticket.request.dispatched for ticket in self.tickets]
        return min([time for time in times if time is not None], default=now)

    def record(self, outcome: str, pool: str, tier: str, now: float, wall: float) -> UsageRecord:
        """What it was billed and how it went, by now; ``now`` and ``wall``: the loop's clock and
        the wall clock."""
        requests = [ticket.request for ticket in self.tickets]
        asked = self.request
        refusal = None if asked is None or self.tickets else asked.refusal
        forecast = requests[0].forecast if len(requests) == 1 else None
        est_finish = None if forecast is None else forecast.est_finish
        skew = None if forecast is None else forecast.skew
        billed, output, cached, reported = _tokens(self.tickets)
        return UsageRecord(
            version=USAGE_RECORD_VERSION,
            kind=RecordKind.USAGE,
            id=self.id,
            outcome=outcome,
            arrived_at=wall - (now - self.arrival),
            duration_seconds=now - self.arrival,
            pool=pool,
            tenant=self.tenant,
            tier=tier,
            endpoint="" if self.endpoint is None else self.endpoint.value,
            model="" if asked is None or asked.model is None else asked.model,
            stream=self.stream,
            sequences=1 if asked is None else asked.sequences,
            prompt_tokens=max(billed - output, 0),
            cached_tokens=cached,
            output_tokens=output,
            tokens_reported=reported,
            engine_ms=_sum([request.engine_ms for request in requests]),
            estimated_prompt_tokens=0 if asked is None else asked.prompt_tokens,
            max_output_tokens=0 if asked is None else asked.max_output_tokens,
            queued_seconds=_since(self.arrival, [request.dispatched for request in requests]),
            ttft_seconds=_since(self.arrival, [ticket.first_token_at for ticket in self.tickets]),
            limit=None if refusal is None else refusal.limit,
            retry_after_seconds=_seconds(self.error),
            est_finish_at=None if est_finish is None else wall + est_finish - now,
            vft_skew=None if skew is None else skew.ratio,
            vft_skew_cause=None if skew is None or skew.cause is None else skew.cause.value,
        )


def _tokens(tickets: Sequence[Ticket]) -> tuple[int, int, int | None, bool]:
    """Billed in all, of that output, cached of the prompts, and whether the engine counted."""
    billed = sum([ticket.request.billed_tokens for ticket in tickets])
    served = [ticket for ticket in tickets if ticket.request.billed_tokens]
    output, reported = 0, bool(served)
    cached: list[float | None] = []
    for ticket in served:
        usage = ticket.usage
        if usage is None:
            reported = False
            output += min(ticket.output_tokens, ticket.request.billed_tokens)
        else:
            output += usage.output_tokens
            cached.append(usage.cached_tokens)
    known = _sum(cached)
    return billed, output, None if known is None else int(known), reported


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _since(arrival: float, times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return max(min(known) - arrival, 0.0) if known else None


def _seconds(error: ApiError | None) -> int | None:
    """The Retry-After told, where it was our own or a number."""
    if error is None or error.retry_after is None or not HTTP_ERRORS[error.outcome].retryable:
        return None
    try:
        return max(int(error.retry_after), 0)
    except ValueError:
        return None
