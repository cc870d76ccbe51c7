"""An explanation in words, a line for each thing that matters.

Each count is told with the time that it is about, each request that has ended with its age.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.cli.ages import age
from tidegate.scheduling.contracts import (
    FairnessUnit,
    Hold,
    Lateness,
    LimitUse,
    LimitWindow,
    NoForecast,
    PromiseKept,
    RequestExplanation,
    RequestState,
    SchedulingMode,
    Standing,
    TenantExplanation,
    TenantRequests,
    TierBefore,
    UsageRecord,
)

_WHY_TIER = {
    TierBefore.RESERVATION: "it is behind what it has reserved",
    TierBefore.PRIORITY: "its priority is higher",
    TierBefore.TURN: "it is its turn",
    TierBefore.LIMIT: "this tier is above its limit",
}
_NO_FORECAST = {
    NoForecast.STARVED: "predicted start: never, while tiers that go first are sent all that the "
    "engine can take",
    NoForecast.NOT_MEASURED: "when it starts cannot be told: no request has left a full queue yet "
    "since the sidecar started",
}
_WINDOWS = {
    LimitWindow.MINUTE: "a minute",
    LimitWindow.HOUR: "an hour",
    LimitWindow.DAY: "a day",
    LimitWindow.MONTH: "a month",
}
_UNITS = {
    FairnessUnit.REQUESTS: "requests",
    FairnessUnit.TOKENS: "tokens",
    FairnessUnit.ENGINE_TIME: "ms of the engine",
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
        limits = () if explanation.limit is None else (explanation.limit,)
        yield from _ended(head, record, limits)
    elif explanation.state is RequestState.WAITING:
        yield f"{head} waits, {waited} so far"
    else:
        running = _seconds(explanation.running_seconds or 0.0)
        yield f"{head} runs since {running}, after a wait of {waited}"
        yield f"  {explanation.output_tokens} output tokens so far"
    if explanation.lateness is not None:
        yield from _lateness(explanation.lateness)
    if explanation.standing is not None:
        yield from _standing(explanation.standing)
        yield from _seats(explanation)
    yield from _at_arrival(explanation)
    yield from _served_instead(explanation)


def tenant_lines(explanation: TenantExplanation) -> Iterator[str]:
    """One tenant on one sidecar."""
    oldest = ""
    if explanation.oldest_request is not None:
        waits = _seconds(explanation.oldest_wait_seconds)
        oldest = f" (the oldest for {waits}: {explanation.oldest_request})"
    yield (
        f"tenant {explanation.name} (tier {explanation.tier}): "
        f"{explanation.queued} waiting{oldest}, {explanation.running} running"
    )
    if explanation.closed is not None:
        yield f"  its new requests are refused: {explanation.closed}"
    if explanation.standing is not None:
        yield f"  next is request {explanation.next_request}"
        yield from _standing(explanation.standing)
        yield from _seats(explanation)
    for use in explanation.limits:
        yield f"  limit {use.name}: {_use(use)}"
    yield from _ended_by_outcome(explanation)
    for record in explanation.last[:_SHOWN]:
        yield _row(record, explanation)


def _ended_by_outcome(explanation: TenantExplanation) -> Iterator[str]:
    if explanation.lately:
        over = _seconds(explanation.lately_seconds)
        yield f"  ended in the last {over}: {_outcomes(explanation.lately)}"
    if explanation.promise is not None:
        yield _promise(explanation.promise, explanation.lately_seconds)
    if (slowest := explanation.slowest) is not None:
        yield f"  slowest of these: {_row(slowest, explanation).strip()}"
    if explanation.requests_total:
        since = ""
        if explanation.started_at:
            ago = int(explanation.told_at - explanation.started_at)
            since = f" since the sidecar started, {age(ago)} ago"
        yield f"  ended{since}: {_outcomes(explanation.requests_total)}"


def _outcomes(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {outcome}" for outcome, count in ranked)


def _promise(promise: PromiseKept, lately_seconds: float) -> str:
    told = f"  promised: a first token within {_seconds(promise.target_seconds)}"
    if not promise.requests:
        return told
    fared = f"{promise.late} of {promise.requests} were late"
    if promise.refused:
        fared += f" and {promise.refused} refused"
    return f"{told}; in the last {_seconds(lately_seconds)} {fared}"


def _row(record: UsageRecord, explanation: TenantExplanation) -> str:
    ago, told_at = "", explanation.told_at
    if told_at:
        ended_at = record.arrived_at + record.duration_seconds
        ago = f", {age(max(0, int(told_at - ended_at)))} ago"
    return f"  {record.id}{ago}: " + ", ".join(
        [_ending(record, explanation.limits), *_times(record)]
    )


def _standing(standing: Standing) -> Iterator[str]:
    running = f"{standing.tenant_running} of its tenant's run"
    if standing.tenant_max_in_flight is not None:
        running += f", at most {standing.tenant_max_in_flight} may"
    place = f"place {standing.position} of {standing.tenant_queued}"
    yield f"  {place} in its tenant's queue; {running}"
    if standing.hold is Hold.IN_FLIGHT_LIMIT:
        yield "  it waits for one of those to end"
    elif standing.hold is Hold.ENGINE:
        yield (
            "  nothing goes before it now; it starts as soon as the engine takes one more, unless "
            "one that goes first comes until then"
        )
    if standing.mode is not SchedulingMode.TIDEGATE:
        before = standing.ahead_in_arrival_order or 0
        yield f"  the pool serves by arrival ({standing.mode}): {before} requests came before it"
    for tier in standing.tiers_ahead:
        yield f"  tier {tier.name} goes first ({tier.queued} waiting): {_WHY_TIER[tier.why]}"
    if standing.tenants_ahead:
        names = ", ".join(f"{t.name} ({t.queued} waiting)" for t in standing.next_tenants)
        more = "" if standing.tenants_ahead <= len(standing.next_tenants) else ", ..."
        some = (
            "1 tenant of its tier is"
            if standing.tenants_ahead == 1
            else (f"{standing.tenants_ahead} tenants of its tier are")
        )
        yield f"  {some} before its own: {names}{more}"
    yield from _due(standing)
    yield from _forecast(standing)


def _forecast(standing: Standing) -> Iterator[str]:
    """When it starts, where its hold has not said all there is to say of that."""
    if standing.no_forecast is NoForecast.ENGINE:
        if standing.hold is None:
            yield "  it starts with the next ones that the engine takes"
    elif standing.starts_in_seconds is None:
        yield f"  {_NO_FORECAST[standing.no_forecast or NoForecast.NOT_MEASURED]}"
    else:
        finish = standing.finishes_in_seconds
        end = "" if finish is None else f", end: in {_seconds(finish)}"
        start = _seconds(standing.starts_in_seconds)
        later = "; later, if tiers that go first are sent more" if standing.tiers_ahead else ""
        yield f"  predicted start: in {start}{end}{later}"


def _seats(explanation: RequestExplanation | TenantExplanation) -> Iterator[str]:
    """Who has the engine now."""
    if rows := explanation.in_engine_now:
        count, seats = sum(row.requests for row in rows), explanation.engine_seats
        room = "" if seats is None else f" of {seats} seats"
        yield f"  in the engine now: {count}{room}: {_requests(rows)}"


def _due(standing: Standing) -> Iterator[str]:
    """What round robin owes its tenant; nothing where nobody else of its tier sends."""
    if standing.tenant_share_percent >= 100:
        yield "  no other tenant of its tier sends now"
        return
    owes, unit = round(standing.tenant_debt), _UNITS[standing.unit]
    stands = "it owes the others nothing"
    if owes > 0:
        stands = f"it owes {owes} {unit}, and misses turns until that is paid"
    elif owes < 0:
        stands = f"it has {-owes} {unit} of credit, and goes first until that is used"
    yield (
        f"  by weight its tenant is due {standing.tenant_share_percent:.0f} % of what its tier "
        f"gets, and more, free of debt, while others ask for less; {stands}"
    )


def _lateness(lateness: Lateness) -> Iterator[str]:
    target = _seconds(lateness.target_seconds)
    if lateness.wait_seconds is None:
        expected = "never, while tiers that go first are sent all that the engine can take"
    else:
        wait, first = lateness.wait_seconds, lateness.first_token_seconds
        expected = f"after {_seconds(wait + first)} ({_seconds(wait)} of it in the queue)"
    yield f"  its first token was expected {expected}; promised: within {target}"


def _at_arrival(explanation: RequestExplanation) -> Iterator[str]:
    """Who was before it; of one that the engine was free for, nothing."""
    waited = explanation.waited_seconds >= 0.001 or explanation.lateness is not None
    if not waited:
        return
    known = "" if explanation.arrival_complete else ", as far as is remembered"
    if rows := explanation.in_engine:
        count, seats = sum(row.requests for row in rows), explanation.engine_seats
        room = "" if seats is None else f" of {seats} seats"
        yield f"  when it came, {count} were in the engine{room}{known}: {_requests(rows)}"
    if rows := explanation.waiting_then:
        count = sum(row.requests for row in rows)
        yield f"  when it came, {count} waited{known}: {_requests(rows)}"


def _served_instead(explanation: RequestExplanation) -> Iterator[str]:
    if rows := explanation.served_instead:
        since = "" if explanation.served_instead_complete else ", as far back as is remembered"
        yield f"  sent to the engine while it waited{since}: {_requests(rows)}"


def _requests(rows: Sequence[TenantRequests]) -> str:
    shown = ", ".join(f"{row.tenant} ({row.tier}) {row.requests}" for row in rows[:_SHOWN])
    return shown if len(rows) <= _SHOWN else f"{shown}, {len(rows) - _SHOWN} more tenants"


def _ended(head: str, record: UsageRecord, limits: Sequence[LimitUse]) -> Iterator[str]:
    yield f"{head}: {_ending(record, limits)}"
    if times := _times(record):
        yield "  " + ", ".join(times)
    if record.prompt_tokens or record.output_tokens:
        cached = "" if record.cached_tokens is None else f" ({record.cached_tokens} cached)"
        cost = "" if record.engine_ms is None else f", {record.engine_ms:.0f} ms of the engine"
        yield f"  {record.prompt_tokens}{cached} + {record.output_tokens} tokens{cost}"
    if record.vft_skew_cause is not None and record.vft_skew is not None:
        late = f"{100 * record.vft_skew:.0f} %"
        yield f"  it ended {late} later than was expected, by {record.vft_skew_cause}"


def _ending(record: UsageRecord, limits: Sequence[LimitUse]) -> str:
    """``limits``: among which the one that refused it may be, for what it allows."""
    text = record.outcome
    if record.limit is not None:
        allows = next((_allows(use) for use in limits if use.name == record.limit), "")
        text += f" by limit {record.limit}" + (f" ({allows})" if allows else "")
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
    kinds = (
        (use.requests, use.requests_used, "requests"),
        (use.tokens, use.tokens_used, "tokens"),
    )
    parts = [f"{used} of {most} {what}" for most, used, what in kinds if most is not None]
    return f"{', '.join(parts)} {_WINDOWS[use.per]}"


def _allows(use: LimitUse) -> str:
    kinds = ((use.requests, "requests"), (use.tokens, "tokens"))
    parts = [f"{most} {what}" for most, what in kinds if most is not None]
    return f"{', '.join(parts)} {_WINDOWS[use.per]}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
