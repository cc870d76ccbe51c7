"""What a soak's clients saw, held against what the sidecar recorded.

Three rules, each with every breach named:

- *One outcome for each request.* Ids of records differ; each id that a client was told has exactly
  one record, whose outcome is what the client saw; there are no more records than requests were
  sent, and as many as the metrics counted.
- *Nothing is lost without a cause.* A request fails for the engine's sake only while the engine was
  down (also one sent on the connection of a stream that just broke, which is closed), and for its
  key's sake only where the key was revoked.
- *Limits are exact.* When the last request of a window was admitted, all that counted was within
  the limit; what is settled exceeds it by at most what those in flight at that moment could still
  produce (``tidegate.scheduling.rate_limit``). Requests never exceed it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.scheduling.contracts import RateLimit, UsageRecord
from tidegate.scheduling.outcomes import HTTP_ERRORS, Outcome

RECOVERY_SECONDS = 2.0
"""From the engine's return until the sidecar has seen it."""
WINDOW_SECONDS = 58.0
"""A request arrives at most two seconds before it is reserved, on a busy machine too."""
ENGINE_ENDS = frozenset({Outcome.ENGINE_FAILED, Outcome.NO_ENGINE})
STREAM_ENDS = frozenset(
    {Outcome.COMPLETED, Outcome.CLIENT_CLOSED, Outcome.UNAUTHENTICATED} | ENGINE_ENDS
)
"""How a request may have ended whose client saw the head of a stream and no end of it."""


@dataclass(slots=True)
class View:
    """One request as its client saw it; times are Unix seconds."""

    tenant: str
    key: str
    sent_at: float
    ended_at: float = 0.0
    request_id: str | None = None
    status: int | None = None
    whole: bool = False
    """The answer came to its end."""
    left: bool = False
    """The client went away before it."""
    tokens: tuple[int, int] | None = None
    """Prompt and output, where the answer told them."""
    fault: str | None = None
    """Neither: it had no end, or one that cannot be."""
    broke: str | None = None
    """Its connection was closed, as it is after a stream of the engine's that broke."""


@dataclass(frozen=True, slots=True)
class Span:
    """When the engine was down, Unix seconds."""

    begin: float
    end: float

    def explains(self, view: View) -> bool:
        return self.begin <= view.ended_at and view.sent_at <= self.end + RECOVERY_SECONDS


def outcome_breaches(
    views: Sequence[View],
    records: Sequence[UsageRecord],
    counted: Mapping[tuple[str, str], int],
) -> list[str]:
    """``counted``: ended requests of tenants that never left, by tenant and outcome, as metrics."""
    breaches = []
    by_id: dict[str, list[UsageRecord]] = defaultdict(list)
    for record in records:
        by_id[record.id].append(record)
    breaches += [f"{id}: {len(those)} records" for id, those in by_id.items() if len(those) > 1]
    known = [view for view in views if view.request_id is not None]
    for view in known:
        assert view.request_id is not None
        if view.request_id not in by_id:
            breaches.append(f"{view.request_id}: no record ({view.status})")
            continue
        breaches += _contradictions(view, by_id[view.request_id][0])
    if not len(known) <= len(records) <= len(views):
        breaches.append(f"{len(records)} records of {len(views)} requests, {len(known)} with an id")
    recorded = Counter((record.tenant, record.outcome) for record in records)
    breaches += [
        f"{tenant or 'nobody'}: {recorded[tenant, outcome]} {outcome} recorded, {count} counted"
        for (tenant, outcome), count in counted.items()
        if recorded[tenant, outcome] != count
    ]
    return breaches


def _contradictions(view: View, record: UsageRecord) -> list[str]:
    outcome = Outcome(record.outcome)
    if view.status == 200:
        right = outcome is Outcome.COMPLETED if view.whole else outcome in STREAM_ENDS
    else:
        right = outcome is not Outcome.COMPLETED and HTTP_ERRORS[outcome].status == view.status
    if not right:
        return [f"{record.id}: recorded {outcome}, its client saw {view.status}, {view.whole}"]
    if view.tokens and view.tokens != (record.prompt_tokens, record.output_tokens):
        billed = (record.prompt_tokens, record.output_tokens)
        return [f"{record.id}: billed {billed}, its client was told {view.tokens}"]
    return []


def unexplained(
    views: Sequence[View],
    records: Sequence[UsageRecord],
    engine_down: Sequence[Span],
    revoked: Mapping[str, float],
) -> list[str]:
    """``revoked``: by key, from when on it may be refused."""
    outcome_of = {record.id: Outcome(record.outcome) for record in records}
    breaches = []
    for view in views:
        outcome = outcome_of.get(view.request_id or "")
        if view.fault is not None and not view.left:
            breaches.append(f"{view.tenant}: {view.fault}")
        elif outcome in ENGINE_ENDS or (view.broke is not None and not view.left):
            if not any(span.explains(view) for span in engine_down):
                how = outcome or view.broke
                breaches.append(f"{view.request_id}: {how} while the engine was up")
        elif outcome is Outcome.UNAUTHENTICATED and not (
            revoked.get(view.key, float("inf")) <= view.ended_at
        ):
            breaches.append(f"{view.request_id}: its key was refused, though good")
    return breaches


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The window of one limit that came nearest to a breach."""

    tokens_settled: int = 0
    excess_of_in_flight: float = 0.0
    """Tokens settled beyond the limit, over what those in flight could produce; at most 1."""
    requests: int = 0


def limit_use(records: Sequence[UsageRecord], limit: RateLimit) -> LimitUse:
    """Of one tenant's records under one limit of a minute."""
    taken = sorted(
        (record for record in records if record.prompt_tokens or record.output_tokens),
        key=lambda record: record.arrived_at,
    )
    worst, first, tokens = LimitUse(), 0, 0
    most_tokens = excess = most_requests = 0.0
    for last, record in enumerate(taken):
        now = record.arrived_at
        tokens += record.prompt_tokens + record.output_tokens
        while taken[first].arrived_at <= now - WINDOW_SECONDS:
            tokens -= taken[first].prompt_tokens + taken[first].output_tokens
            first += 1
        window = taken[first : last + 1]
        most_tokens = max(most_tokens, tokens)
        most_requests = max(most_requests, len(window))
        if limit.tokens is not None and tokens > limit.tokens:
            could = sum(_most(one) for one in window if one.arrived_at + one.duration_seconds > now)
            excess = max(excess, (tokens - limit.tokens) / max(could, 1))
        worst = LimitUse(int(most_tokens), excess, int(most_requests))
    return worst


def _most(record: UsageRecord) -> int:
    """A whole reservation."""
    return record.prompt_tokens + record.max_output_tokens
