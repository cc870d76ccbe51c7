"""``GET /explain/...``: why a request waits, waited or was refused, and how a tenant stands."""

from __future__ import annotations

import time

from tidegate.scheduling.contracts import (
    EXPLANATION_VERSION,
    RequestExplanation,
    RequestState,
    ServedInstead,
    TenantExplanation,
)
from tidegate.scheduling.limit_window import Clocks
from tidegate_sidecar.passage import Passage
from tidegate_sidecar.runtime import Runtime


def explain_request(runtime: Runtime, request_id: str) -> RequestExplanation | None:
    """A request that waits, runs or ended lately; None: it is not known here (any more)."""
    if (passage := runtime.reports.find_open(request_id)) is not None:
        return _open(runtime, passage)
    entry = runtime.reports.recent.find(request_id)
    if entry is None:
        return None
    record, until = entry.record, entry.waited_until
    served, complete = _served_instead(runtime, entry.arrival, until, request_id)
    return RequestExplanation(
        version=EXPLANATION_VERSION,
        id=request_id,
        state=RequestState.ENDED,
        tenant=record.tenant,
        tier=record.tier,
        waited_seconds=until - entry.arrival,
        served_instead=served,
        served_instead_complete=complete,
        record=record,
    )


def explain_tenant(runtime: Runtime, name: str) -> TenantExplanation | None:
    """A tenant of the policy in force; None: it is not one."""
    in_force, scheduler = runtime.in_force, runtime.dispatcher.scheduler
    tenant = in_force.tenant(name) if in_force is not None else None
    if tenant is None or scheduler is None:
        return None
    now = runtime.dispatcher.loop.time()
    standings = scheduler.standings
    following = standings.next_of(name)
    queued, running = standings.counts_of(name)
    tally = runtime.tally.tenants.get(name)
    return TenantExplanation(
        version=EXPLANATION_VERSION,
        name=name,
        tier=tenant.tier,
        queued=queued,
        running=running,
        closed=standings.closed(name),
        next_request=None if following is None else following.id,
        standing=None if following is None else standings.of_request(following.id, now),
        limits=standings.limits_of(name, Clocks(now, time.time())),
        requests_total={}
        if tally is None
        else {outcome.value: count for outcome, count in tally.outcomes.items()},
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
    served, complete = _served_instead(runtime, passage.arrival, until, passage.id)
    tenant = runtime.in_force.tenant(passage.tenant) if runtime.in_force is not None else None
    return RequestExplanation(
        version=EXPLANATION_VERSION,
        id=passage.id,
        state=RequestState.RUNNING if running else RequestState.WAITING,
        tenant=passage.tenant,
        tier="" if tenant is None else tenant.tier,
        waited_seconds=until - passage.arrival,
        served_instead=served,
        served_instead_complete=complete,
        standing=standing,
        running_seconds=now - until if running else None,
        output_tokens=sum(ticket.output_tokens for ticket in passage.tickets),
    )


def _served_instead(
    runtime: Runtime, since: float, until: float, but: str
) -> tuple[tuple[ServedInstead, ...], bool]:
    counts, complete = runtime.reports.recent.served_between(since, until, but)
    in_force = runtime.in_force
    rows = []
    for name, count in counts.most_common():
        tenant = in_force.tenant(name) if in_force is not None else None
        rows.append(ServedInstead(name, "" if tenant is None else tenant.tier, count))
    return tuple(rows), complete
