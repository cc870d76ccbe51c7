"""``GET /explain/...``: why a request waits, waited or was refused, and how a tenant stands.

Who held the engine when a request came is worked out when it is asked, from the times of those that
are open or remembered: no request pays for it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tidegate.scheduling.contracts import (
    EXPLANATION_VERSION,
    LimitUse,
    PromiseKept,
    RequestExplanation,
    RequestState,
    SloMetric,
    TenantExplanation,
    TenantRequests,
    TierPolicy,
    UsageRecord,
)
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.passage import Passage
from tidegate_sidecar.recent_requests import Lately
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.slo_tally import Ending, Verdict, judged

LATELY_SECONDS = 60.0
"""As far as the status of a pool looks back."""


def explain_request(runtime: Runtime, request_id: str) -> RequestExplanation | None:
    """A request that waits, runs or ended lately; None: it is not known here (any more)."""
    if (passage := runtime.reports.find_open(request_id)) is not None:
        return _open(runtime, passage)
    entry = runtime.reports.recent.find(request_id)
    if entry is None:
        return None
    record = entry.record
    ended, until = RequestState.ENDED, entry.waited_until
    told = _told(runtime, request_id, ended, record.tenant, entry.arrival, until)
    return replace(
        told,
        tier=record.tier,
        lateness=None if entry.refusal is None else entry.refusal.lateness,
        record=record,
        limit=_limit_of(runtime, record),
    )


def explain_tenant(runtime: Runtime, name: str) -> TenantExplanation | None:
    """A tenant of the policy in force; None: it is not one."""
    in_force, scheduler = runtime.in_force, runtime.dispatcher.scheduler
    if in_force is None or scheduler is None or (tenant := in_force.tenant(name)) is None:
        return None
    now, utc = runtime.dispatcher.loop.time(), time.time()
    standings = scheduler.standings
    following = standings.next_of(name)
    queued, running = standings.counts_of(name)
    oldest = standings.oldest_of(name)
    tally = runtime.tally.tenants.get(name)
    lately = runtime.reports.recent.lately(name, now, LATELY_SECONDS)
    return TenantExplanation(
        version=EXPLANATION_VERSION,
        name=name,
        tier=tenant.tier,
        queued=queued,
        running=running,
        oldest_wait_seconds=0.0 if oldest is None else now - oldest.arrival,
        oldest_request=None if oldest is None else oldest.id,
        closed=standings.closed(name),
        next_request=None if following is None else following.id,
        standing=None if following is None else standings.of_request(following.id, now),
        in_engine_now=() if following is None else _in_engine_now(runtime),
        engine_seats=in_force.policy.engine.max_num_seqs,
        limits=standings.limits_of(name, Clocks(now, utc)),
        told_at=utc,
        started_at=runtime.started_at,
        requests_total={}
        if tally is None
        else {outcome.value: count for outcome, count in tally.outcomes.items()},
        lately_seconds=min(lately.seconds, max(utc - runtime.started_at, 0.0)),
        lately=lately.outcomes,
        promise=_promise(in_force.tier_of(tenant), lately),
        slowest=lately.slowest,
        last=tuple(runtime.reports.recent.last_of(name)),
    )


def _open(runtime: Runtime, passage: Passage) -> RequestExplanation:
    now, scheduler = runtime.dispatcher.loop.time(), runtime.dispatcher.scheduler
    waiting = [ticket.request.id for ticket in passage.tickets if ticket.request.dispatched is None]
    running = len(waiting) < len(passage.tickets)
    standing = None
    if waiting and scheduler is not None:
        standing = scheduler.standings.of_request(waiting[0], now)
    until = passage.waited_until(now)
    state = RequestState.RUNNING if running else RequestState.WAITING
    told = _told(runtime, passage.id, state, passage.tenant, passage.arrival, until)
    return replace(
        told,
        standing=standing,
        in_engine_now=() if standing is None else _in_engine_now(runtime),
        running_seconds=now - until if running else None,
        output_tokens=sum(ticket.output_tokens for ticket in passage.tickets),
    )


def _told(
    runtime: Runtime,
    request_id: str,
    state: RequestState,
    tenant: str,
    arrival: float,
    until: float,
) -> RequestExplanation:
    """What there is to tell of every request: it waited from its arrival until then."""
    there = _at_arrival(runtime, arrival, request_id)
    served, complete = runtime.reports.recent.served_between(arrival, until, request_id)
    return RequestExplanation(
        version=EXPLANATION_VERSION,
        id=request_id,
        state=state,
        tenant=tenant,
        tier=_tier_of(runtime, tenant),
        waited_seconds=until - arrival,
        in_engine=there.in_engine,
        waiting_then=there.waiting,
        arrival_complete=there.complete,
        engine_seats=None
        if runtime.in_force is None
        else runtime.in_force.policy.engine.max_num_seqs,
        served_instead=_rows(runtime, served),
        served_instead_complete=complete,
    )


def _in_engine_now(runtime: Runtime) -> tuple[TenantRequests, ...]:
    return _rows(
        runtime,
        Counter(
            passage.tenant
            for passage in runtime.reports.open
            if any(ticket.request.dispatched is not None for ticket in passage.tickets)
        ),
    )


class _Arrival(NamedTuple):
    """What there was when a request came."""

    in_engine: tuple[TenantRequests, ...]
    waiting: tuple[TenantRequests, ...]
    complete: bool
    """All of it is remembered."""


def _at_arrival(runtime: Runtime, moment: float, but: str) -> _Arrival:
    """Of all requests but one."""
    now = runtime.dispatcher.loop.time()
    in_engine: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    ended, complete = runtime.reports.recent.present_at(moment)
    for entry in ended:
        if entry.record.id == but:
            continue
        if moment < entry.waited_until:
            waiting[entry.record.tenant] += 1
        elif entry.dispatched:
            in_engine[entry.record.tenant] += 1
    for passage in runtime.reports.open:
        if passage.id != but and passage.tickets and passage.arrival <= moment:
            waits = moment < passage.waited_until(now)
            (waiting if waits else in_engine)[passage.tenant] += 1
    return _Arrival(_rows(runtime, in_engine), _rows(runtime, waiting), complete)


def _promise(tier: TierPolicy, lately: Lately) -> PromiseKept | None:
    """Judged as the tier's own count is, by the target in force now."""
    metric = SloMetric.TIME_TO_FIRST_TOKEN
    targets = [each.target_seconds for each in tier.slo_objectives if each.metric is metric]
    if not targets:
        return None
    verdicts = Counter(
        judged(
            metric,
            targets[0],
            Ending(Outcome(record.outcome), record.duration_seconds, record.ttft_seconds),
        )
        for record in lately.records
    )
    late, refused = verdicts[Verdict.LATE], verdicts[Verdict.REFUSED]
    return PromiseKept(targets[0], verdicts[Verdict.KEPT] + late + refused, late, refused)


def _limit_of(runtime: Runtime, record: UsageRecord) -> LimitUse | None:
    """None: it was not refused by a rate limit, or by one that is in force no more."""
    scheduler = runtime.dispatcher.scheduler
    if scheduler is None or record.limit is None:
        return None
    clocks = Clocks(runtime.dispatcher.loop.time(), time.time())
    uses = scheduler.standings.limits_of(record.tenant, clocks)
    return next((use for use in uses if use.name == record.limit), None)


def _rows(runtime: Runtime, counts: Counter[str]) -> tuple[TenantRequests, ...]:
    """With their tiers, most first."""
    return tuple(
        TenantRequests(name, _tier_of(runtime, name), count) for name, count in counts.most_common()
    )


def _tier_of(runtime: Runtime, tenant: str) -> str:
    """Empty: it is none of the policy in force."""
    row = None if runtime.in_force is None else runtime.in_force.tenant(tenant)
    return "" if row is None else row.tier
