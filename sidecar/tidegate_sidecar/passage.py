"""One request's way through the tenants' port, from its first byte to its one end.

The proxy opens a :class:`Passage` for each request and closes it exactly once, in every case; what
is reported of a request (its usage record, its spans, why it waited) is made of what stands in it
then. No content: sizes, names of the policy, times, and how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.scheduling.contracts import (
    USAGE_RECORD_VERSION,
    Endpoint,
    RecordKind,
    UsageRecord,
)
from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome
from tidegate.scheduling.request import Forecast, Refusal, Request
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.trace_context import TraceContext


@dataclass(slots=True, eq=False)
class Passage:
    """How far a request came."""

    id: str
    arrival: float
    """Loop time."""
    arrived_at: float
    """The same on the wall clock."""
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
    forwarded: bool = False
    """A pod was told of it, which records how it ends (the router's requests)."""
    closes_connection: bool = False
    """No other request of its connection is served."""
    trace: TraceContext | None = None
    engine_group: str = ""
    """Whose engine serves it (a sidecar's requests)."""

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

    @property
    def refusal(self) -> Refusal | None:
        """Why it was not queued; None: it was, or nothing of its policy refused it."""
        return None if self.request is None or self.tickets else self.request.refusal

    @property
    def refused_by_limit(self) -> str | None:
        """Name of the rate limit that refused it; None: none did."""
        return None if self.refusal is None else self.refusal.limit

    def waited_until(self, now: float) -> float:
        """Its first dispatch; ``now`` while it waits; its arrival where it never did."""
        if not self.tickets:
            return self.arrival
        first = now
        for ticket in self.tickets:
            dispatched = ticket.request.dispatched
            if dispatched is not None and dispatched < first:
                first = dispatched
        return first

    def record(self, outcome: str, pool: str, tier: str, now: float) -> UsageRecord:
        """What it was billed and how it went, by ``now``."""
        kind, seconds = RecordKind.USAGE, now - self.arrival
        record = UsageRecord(
            USAGE_RECORD_VERSION, kind, self.id, outcome, self.arrived_at, seconds, pool
        )
        record.tenant = self.tenant
        record.tier = tier
        record.stream = self.stream
        record.engine_group = self.engine_group
        if self.endpoint is not None:
            record.endpoint = self.endpoint
        if (asked := self.request) is not None:
            record.model = asked.model or ""
            record.sequences = asked.sequences
            record.estimated_prompt_tokens = asked.prompt_tokens
            record.max_output_tokens = asked.max_output_tokens
            record.limit = self.refused_by_limit
        if self.error is not None:
            record.retry_after_seconds = _retry_after(self.error)
        if self.tickets:
            self._record_service(record)
        return record

    def _record_service(self, record: UsageRecord) -> None:
        tickets = self.tickets
        served = _served(tickets[0]) if len(tickets) == 1 else _served_in_parts(tickets)
        record.prompt_tokens = max(served.billed_tokens - served.output_tokens, 0)
        record.output_tokens = served.output_tokens
        record.cached_tokens = served.cached_tokens
        record.tokens_reported = served.reported
        record.engine_ms = served.engine_ms
        record.queued_seconds = _since(self.arrival, served.dispatched)
        record.ttft_seconds = _since(self.arrival, served.first_token)
        if (forecast := served.forecast) is not None:
            if (est_finish := forecast.est_finish) is not None:
                record.est_finish_at = self.arrived_at + est_finish - self.arrival
            if (skew := forecast.skew) is not None:
                record.vft_skew, record.vft_skew_cause = skew


class _Served(NamedTuple):
    """What the pod stage knows of a request, or of a part of one."""

    billed_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    reported: bool = False
    engine_ms: float | None = None
    dispatched: float | None = None
    first_token: float | None = None
    forecast: Forecast | None = None


def _served(ticket: Ticket) -> _Served:
    request, usage = ticket.request, ticket.usage
    billed = request.billed_tokens
    if not billed or usage is None:
        output, cached = min(ticket.output_tokens, billed), None
    else:
        output, cached = usage.output_tokens, usage.cached_tokens
    return _Served(
        billed,
        output,
        cached,
        billed > 0 and usage is not None,
        request.engine_ms,
        request.dispatched,
        ticket.first_token_at,
        request.forecast,
    )


def _served_in_parts(tickets: Sequence[Ticket]) -> _Served:
    """All parts together; of none, nothing. What was expected of a part is not told."""
    parts = [_served(ticket) for ticket in tickets]
    begun = [part for part in parts if part.billed_tokens]
    cached = [part.cached_tokens for part in parts if part.cached_tokens is not None]
    engine_ms = [part.engine_ms for part in parts if part.engine_ms is not None]
    return _Served(
        sum(part.billed_tokens for part in parts),
        sum(part.output_tokens for part in parts),
        sum(cached) if cached else None,
        bool(begun) and all(part.reported for part in begun),
        sum(engine_ms) if engine_ms else None,
        min((part.dispatched for part in parts if part.dispatched is not None), default=None),
        min((part.first_token for part in parts if part.first_token is not None), default=None),
    )


def _since(arrival: float, time: float | None) -> float | None:
    return None if time is None else max(time - arrival, 0.0)


def _retry_after(error: ApiError) -> int | None:
    """The Retry-After told, where it was our own or a number."""
    if error.retry_after is None or not HTTP_ERRORS[error.outcome].retryable:
        return None
    try:
        return max(int(error.retry_after), 0)
    except ValueError:
        return None
