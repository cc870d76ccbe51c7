"""An explanation in words, a line for each thing that matters."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.scheduling.contracts import (
    Hold,
    LimitUse,
    RequestExplanation,
    RequestState,
    SchedulingMode,
    Standing,
    TenantExplanation,
    TierBefore,
    UsageRecord,
)

_WHY_TIER = {
    TierBefore.RESERVATION: "it is behind what it has reserved",
    TierBefore.PRIORITY: "its priority is higher",
    TierBefore.TURN: "it is its turn",
    TierBefore.LIMIT: "this tier is above its limit",
}
_SHOWN = 5


def request_lines(explanation: RequestExplanation) -> Iterator[str]:
    """One request."""
    tenant = explanation.tenant or "an unknown tenant"
    tier = f" (tier {explanation.tier})" if explanation.tier else ""
    head = f"request {explanation.id} of {tenant}{tier}"
    waited = _seconds(explanation.waited_seconds)
    record = explanation.record
    if record is not None:
        yield from _ended(head, record)
    elif explanation.state is RequestState.WAITING:
        yield f"{head} waits, {waited} so far"
    else:
        running = _seconds(explanation.running_seconds or 0.0)
        yield f"{head} runs since {running}, after a wait of {waited}"
        yield f"  {explanation.output_tokens} output tokens so far"
    if explanation.standing is not None:
        yield from _standing(explanation.standing)
    yield from _served_instead(explanation)


def tenant_lines(explanation: TenantExplanation) -> Iterator[str]:
    """One tenant on one sidecar."""
    yield (
        f"tenant {explanation.name} (tier {explanation.tier}): "
        f"{explanation.queued} waiting, {explanation.running} running"
    )
    if explanation.closed is not None:
        yield f"  its new requests are refused: {explanation.closed}"
    if explanation.standing is not None:
        yield f"  next is request {explanation.next_request}"
        yield from _standing(explanation.standing)
    for use in explanation.limits:
        yield f"  limit {use.name} (per {use.per}): {_use(use)}"
    if explanation.requests_total:
        counts = sorted(explanation.requests_total.items(), key=lambda item: -item[1])
        yield "  ended: " + ", ".join(f"{count} {outcome}" for outcome, count in counts)
    for record in explanation.last[:_SHOWN]:
        yield f"  {record.id}: " + ", ".join([_ending(record), *_times(record)])


def _standing(standing: Standing) -> Iterator[str]:
    running = f"{standing.tenant_running} of its tenant's run"
    if standing.tenant_max_in_flight is not None:
        running += f", at most {standing.tenant_max_in_flight} may"
    place = f"place {standing.position} of {standing.tenant_queued}"
    yield f"  {place} in its tenant's queue; {running}"
    if standing.hold is Hold.IN_FLIGHT_LIMIT:
        yield "  it waits for one of those to end"
    elif standing.hold is Hold.ENGINE:
        yield "  nothing goes before it; it waits for the engine to take one more"
    if standing.mode is not SchedulingMode.TIDEGATE:
        before = standing.ahead_in_arrival_order or 0
        yield f"  the pool serves by arrival ({standing.mode}): {before} requests came before it"
    for tier in standing.tiers_ahead:
        yield f"  tier {tier.name} goes first ({tier.queued} waiting): {_WHY_TIER[tier.why]}"
    if standing.tenants_ahead:
        names = ", ".join(f"{t.name} ({t.queued} waiting)" for t in standing.next_tenants)
        more = "" if standing.tenants_ahead <= len(standing.next_tenants) else ", ..."
        yield f"  {standing.tenants_ahead} tenants of its tier are before its own: {names}{more}"
    debt = standing.tenant_debt
    side = "beyond" if debt > 0 else "short of"
    yield (
        f"  its tenant's share of the tier is {standing.tenant_share_percent:.0f} %; it was served "
        f"{abs(debt):.0f} {standing.unit} {side} it"
    )
    if standing.starts_in_seconds is None:
        yield "  when it starts cannot be told: nothing was measured yet"
    else:
        finish = standing.finishes_in_seconds
        end = "" if finish is None else f", end: in {_seconds(finish)}"
        yield f"  predicted start: in {_seconds(standing.starts_in_seconds)}{end}"


def _served_instead(explanation: RequestExplanation) -> Iterator[str]:
    rows = explanation.served_instead
    if not rows:
        return
    shown = ", ".join(f"{row.tenant} ({row.tier}) {row.requests}" for row in rows[:_SHOWN])
    more = "" if len(rows) <= _SHOWN else f", {len(rows) - _SHOWN} more tenants"
    since = "" if explanation.served_instead_complete else ", as far back as is remembered"
    yield f"  sent to the engine while it waited{since}: {shown}{more}"


def _ended(head: str, record: UsageRecord) -> Iterator[str]:
    yield f"{head}: {_ending(record)}"
    if times := _times(record):
        yield "  " + ", ".join(times)
    if record.prompt_tokens or record.output_tokens:
        cached = "" if record.cached_tokens is None else f" ({record.cached_tokens} cached)"
        cost = "" if record.engine_ms is None else f", {record.engine_ms:.0f} ms of the engine"
        yield f"  {record.prompt_tokens}{cached} + {record.output_tokens} tokens{cost}"
    if record.vft_skew_cause is not None and record.vft_skew is not None:
        late = f"{100 * record.vft_skew:.0f} %"
        yield f"  it ended {late} later than was expected, by {record.vft_skew_cause}"


def _ending(record: UsageRecord) -> str:
    text = record.outcome
    if record.limit is not None:
        text += f" by limit {record.limit}"
    if record.retry_after_seconds is not None:
        text += f", told to retry after {record.retry_after_seconds} s"
    return text


def _times(record: UsageRecord) -> list[str]:
    """None of one that was never sent to the engine."""
    if record.queued_seconds is None:
        return []
    times = [f"waited {_seconds(record.queued_seconds)}"]
    if record.ttft_seconds is not None:
        times.append(f"first token after {_seconds(record.ttft_seconds)}")
    return [*times, f"took {_seconds(record.duration_seconds)} in all"]


def _use(use: LimitUse) -> str:
    parts = [
        f"{used} of {most} {what}"
        for most, used, what in (
            (use.requests, use.requests_used, "requests"),
            (use.tokens, use.tokens_used, "tokens"),
        )
        if most is not None
    ]
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
