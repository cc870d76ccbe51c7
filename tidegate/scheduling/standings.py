"""Where a waiting request stands, and why: read-only questions to one scheduler.

Nothing here changes a queue, an account or a clock (a window of a rate limit lets time pass, as it
would at the next request). Each answer costs O(n) in what waits: they are for people who ask.

A request waits behind those of its own tenant that come first (``tenant_queue``), behind the
tenants of its tier whose turn is before its tenant's (``deficit_round_robin``), and behind the
tiers that go first (``tiers``); in arrival order only behind what came before it. Where it goes is
predicted by ``waiting_time``'s fluid model from what waits before it in its own queue; where the
policy asks for no forecasts, from the gaps between its tenant's dispatches. When it will have ended
is ``finish_time``'s estimate from there.

Bound: a place is exact at the moment of the question and holds until somebody arrives or is served;
a forecast is off by what ``waiting_time`` and ``finish_time`` state.
Source: design section 1 (the question why a tenant is slow).
Invariant: no tier or tenant is ahead of the request that ``Scheduler.peek`` would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from math import inf, isfinite

from tidegate.scheduling.admission import Admission
from tidegate.scheduling.contracts import (
    Hold,
    LimitUse,
    NoForecast,
    SchedulingMode,
    Standing,
    TenantAhead,
    TierAhead,
)
from tidegate.scheduling.job import Job
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outlook import Outlook
from tidegate.scheduling.request import Request
from tidegate.scheduling.roster import Roster
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.state import TenantState, TierState

_SHOWN_TENANTS = 5
_AT_ONCE_SECONDS = 0.001
"""Less is no forecast of one that waits: a fluid's first comes at once, no whole request does."""


class Standings:
    """Of one scheduler's requests and tenants."""

    __slots__ = ("_admission", "_forecasts", "_jobs", "_mode", "_outlook", "_roster", "_selection")

    def __init__(
        self,
        roster: Roster,
        selection: Selection,
        outlook: Outlook,
        admission: Admission,
        jobs: Mapping[str, Job],
    ) -> None:
        self._roster = roster
        self._selection = selection
        self._outlook = outlook
        self._admission = admission
        self._jobs = jobs
        self._forecasts = False
        self._mode = SchedulingMode.TIDEGATE

    def follow(self, mode: SchedulingMode, forecasts: bool) -> None:
        """How requests are ordered, and whether the scheduler keeps its outlook up to date."""
        self._mode, self._forecasts = mode, forecasts

    def of_request(self, request_id: str, now: float) -> Standing | None:
        """Where it stands; None: it does not wait."""
        job = self._jobs.get(request_id)
        if job is None or not job.waiting:
            return None
        tenant = job.tenant
        before = tenant.queue.before(job)
        tiers = [] if self._selection.in_arrival_order else self._tiers_before(tenant.tier)
        ahead = [] if self._selection.in_arrival_order else self._tenants_before(tenant)
        arrivals = self._arrived_before(job) if self._selection.in_arrival_order else None
        hold = None
        if not tenant.may_dispatch():
            hold = Hold.IN_FLIGHT_LIMIT
        elif not before and not tiers and not ahead and not arrivals:
            hold = Hold.ENGINE
        starts, no_forecast = self._starts_in_seconds(job, before, hold, now)
        return Standing(
            position=len(before) + 1,
            tenant_queued=tenant.queue.size,
            tenant_running=tenant.in_flight,
            tenant_max_in_flight=tenant.tier.policy.max_in_flight,
            tenant_share_percent=self._share_percent(tenant),
            tenant_debt=tenant.tier.robin.debt(tenant.account),
            unit=tenant.tier.unit,
            mode=self._mode,
            ahead_in_arrival_order=arrivals,
            tenants_ahead=len(ahead),
            next_tenants=tuple(
                TenantAhead(other.name, other.queue.size, other.in_flight)
                for other in nsmallest(_SHOWN_TENANTS, ahead, key=_turn)
            ),
            tiers_ahead=tuple(tiers),
            hold=hold,
            starts_in_seconds=starts,
            no_forecast=no_forecast,
            finishes_in_seconds=None
            if starts is None
            else self._outlook.finishes_in_seconds(job, starts),
        )

    def next_of(self, name: str) -> Request | None:
        """The request of this tenant that goes next; None: it has none that waits."""
        tenant = self._roster.tenants.get(name)
        return tenant.queue.next().request if tenant is not None and tenant.queue.size else None

    def oldest_of(self, name: str) -> Request | None:
        """The request of this tenant that has waited longest; None: it has none that waits."""
        tenant = self._roster.tenants.get(name)
        return None if tenant is None else tenant.queue.oldest()

    def counts_of(self, name: str) -> tuple[int, int]:
        """How many requests of this tenant wait, and how many are in the engine."""
        tenant = self._roster.tenants.get(name)
        return (0, 0) if tenant is None else (tenant.queue.size, tenant.in_flight)

    def closed(self, name: str) -> str | None:
        """Why this tenant's new requests are refused; None: they are not."""
        tenant = self._roster.tenants.get(name)
        return tenant.closed.value if tenant is not None and tenant.closed is not None else None

    def limits_of(self, name: str, clocks: Clocks) -> tuple[LimitUse, ...]:
        """What this tenant has used of its rate limits."""
        tenant = self._roster.tenants.get(name)
        if tenant is None:
            return ()
        uses = []
        for limit in tenant.rate_limits:
            window = self._admission.limiter.windows.get((name, limit.name, limit.per))
            requests, tokens = 0, 0
            if window is not None:
                window.advance(clocks)
                requests, tokens = window.taken
            uses.append(
                LimitUse(limit.name, limit.per, limit.requests, requests, limit.tokens, tokens)
            )
        return tuple(uses)

    def _tiers_before(self, mine: TierState) -> list[TierAhead]:
        """The tiers that would be dispatched before this one now."""
        found, tiers = [], self._selection.tiers
        for tier in self._roster.tiers.values():
            if tier is mine or not tier.account.waiting:
                continue
            if (why := tiers.why_before(tier.account, mine.account)) is not None:
                found.append(TierAhead(tier.name, why, tier.queued))
        return found

    def _tenants_before(self, tenant: TenantState) -> list[TenantState]:
        """The tenants of its tier whose turn is before; all, where it has none itself."""
        tenant.tier.robin.first()  # lets turns that have ended take their new places
        mine = _turn(tenant)
        others = (o for o in self._roster.tenants.values() if o.tier is tenant.tier)
        return [o for o in others if o is not tenant and o.account.entry and _turn(o) < mine]

    def _arrived_before(self, job: Job) -> int:
        return sum(other.waiting and other.order < job.order for other in self._jobs.values())

    def _share_percent(self, tenant: TenantState) -> float:
        active = sum(
            other.account.weight
            for other in self._roster.tenants.values()
            if other.tier is tenant.tier and other.queue.size + other.in_flight
        )
        return 100 * tenant.account.weight / active

    def _starts_in_seconds(
        self, job: Job, before: list[Job], hold: Hold | None, now: float
    ) -> tuple[float | None, NoForecast | None]:
        """When, or why nobody can tell."""
        if self._forecasts:
            seconds = self._outlook.starts_in_seconds(job, before, now)
            if seconds is not None and not isfinite(seconds):
                return None, NoForecast.STARVED
            if seconds is not None and (hold is Hold.ENGINE or seconds < _AT_ONCE_SECONDS):
                return None, NoForecast.ENGINE
        else:
            gap = job.tenant.drain_rate.next_place_seconds(now)
            seconds = None if gap is None else gap * (len(before) + 1)
        return seconds, NoForecast.NOT_MEASURED if seconds is None else None


def _turn(tenant: TenantState) -> tuple[float, float]:
    """Its place among the tenants of its tier; behind all where it may not dispatch."""
    entry = tenant.account.entry
    return (inf, 0.0) if entry is None else (entry[0], entry[1])
