"""The scheduler: which request goes to the engine next.

Theory of operation: three selectors, in a fixed order, each time the host's gate has room. The
*tier* (``tiers``: reservations, then priority or weight under the limits), within it the *tenant*
(``deficit_round_robin``), within it the *request* (``tenant_queue``: priority, deadline, arrival).
In the modes FirstComeFirstServed and Shadow only the arrival counts, over everything, while the
accounts keep running; Shadow notes in addition what would have been decided otherwise. Limits of
queue, wait, requests in flight and stop hold in all modes.

The host drives it with ``submit``, ``next``, ``progress``, ``finish``, ``cancel``, ``requeue``,
``expire`` and ``apply_policy``, each with the time on its monotonic clock, from one thread. One
that sees the engine's steps (``timed``) reports each with ``step``, before the progress and the
ends that it brought: then tiers are charged EngineTime, and requests get an ``est_finish``.

Accounts (``ledger``): at dispatch a request is charged what it is expected to cost; while it runs
it is charged on where it outgrows that, and at its end the difference to what the engine did is
settled. One that ends without any work of the engine is charged nothing.

Before its queue stand prompt limit, throttle and rate limits (``admission``), where the policy has
any.

Invariants: work-conserving (``next`` gives None only where no tenant below its limit in flight has
anything queued, or its tier is closed); each request is in exactly one place, queued or in flight,
and leaves it exactly once; counts never fall below zero. Cost: O(log n) amortised in tenants and
requests for each call but ``apply_policy`` and the snapshots, which are O(n).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import ceil

from tidegate.scheduling.admission import Admission, asks_for_admission
from tidegate.scheduling.contracts import Policy, SchedulingMode
from tidegate.scheduling.engine_prefills import DEFAULT_BUDGET_TOKENS
from tidegate.scheduling.engine_time import EnginePace, RequestStep
from tidegate.scheduling.expiries import Ended, Expiries
from tidegate.scheduling.job import Job
from tidegate.scheduling.ledger import Ledger
from tidegate.scheduling.limit_desk import LimitDesk
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.outlook import Outlook
from tidegate.scheduling.peer_service import PeerService
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.roster import Roster
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.snapshots import Backlog, ShadowFigures, TenantSnapshot, TierSnapshot
from tidegate.scheduling.standings import Standings
from tidegate.scheduling.state import TenantState

HELD_RETRY_SECONDS = 30
"""Retry-After of a held tenant: a person lifts the hold, so no figure is truer than another."""

MOST_LANDED = 4_096
"""Ends that one step may bring; the time of a step so late that more have ended is nobody's."""

SETTLING_STEPS = (1, 4, 16, 64, 256)
"""After so many, costs are of another scale than before: what was summed in them begins anew."""


class Scheduler:
    """Owns the queues and accounts of one engine's requests.

    ``timed``: the host reports every step of the engine.
    """

    def __init__(self, policy: Policy, now: float, timed: bool = False) -> None:
        self.pace = EnginePace(DEFAULT_BUDGET_TOKENS)
        """How fast the engine goes; measured where the host reports steps."""
        self.shadow = ShadowFigures()
        self._timed = timed
        pace = self.pace if timed else None
        self._selection = Selection()
        self._ledger = Ledger(self._selection, pace)
        self._roster = Roster(self._selection, timed)
        self.peers = PeerService(self._ledger, self._roster)
        """Fair shares over several pods."""
        self._outlook = Outlook(pace)
        self._admission = Admission(self._outlook, self.pace)
        self.limits = LimitDesk(self._roster, self._admission)
        """Questions about rate limits."""
        self._looks_out = False
        """Whether anything of the policy needs outlook and admission."""
        self._in_shadow = False
        self._jobs: dict[str, Job] = {}
        self._landed: dict[str, Job] = {}
        """Out of flight since the last step, where steps are reported: that one is theirs too."""
        self.standings = Standings(
            self._roster, self._selection, self._outlook, self._admission, self._jobs
        )
        """Why a request waits."""
        self._queued = 0
        self._expiries = Expiries()
        self._arrivals = 0
        self._dispatches = 0
        self.apply_policy(policy, now)

    def submit(self, request: Request, now: float, utc: float | None = None) -> Outcome | None:
        """Queue a request (None), or say why not; one in parts as these, all or none of them.

        Refusals: FORBIDDEN (no such tenant), HELD, DEADLINE_EXCEEDED (already), QUEUE_FULL,
        BODY_TOO_LARGE (for the empty queue too); and with ``Request.refusal`` set, PROMPT_TOO_LONG,
        THROTTLED, RATE_LIMITED, REQUEST_EXCEEDS_LIMIT. ``utc``: the wall clock, in seconds since
        the epoch, for limits of a day or month; unset: ``now`` is one. ValueError: its id is in
        use, or a size is negative.
        """
        if request.id in self._jobs:
            raise ValueError(f"request id {request.id!r} is in use")
        request.check()
        tenant = self._roster.tenants.get(request.tenant)
        if tenant is None:
            return Outcome.FORBIDDEN
        if tenant.closed is not None:
            return tenant.closed
        if request.deadline is not None and request.deadline <= now:
            return Outcome.DEADLINE_EXCEEDED
        if (full := tenant.queue.refusal(request)) is not None:
            return full
        if self._looks_out and not self._admit(request, tenant, now, utc):
            assert request.refusal is not None
            return request.refusal.outcome
        for part in request.parts or (request,):
            part.arrival = now
            self._arrivals += 1
            job = Job(part, tenant, self._arrivals, now)
            self._enqueue(job, now)
            if self._looks_out:
                self._outlook.queued(job, now)
        return None

    def next(self, now: float, closed: Container[str] = ()) -> Request | None:
        """The request to dispatch now, counted in flight from here on; None: nothing may go.

        ``closed``: names of tiers whose requests may not go now, where the host has a gate for
        each; in arrival order the first waits for its gate, and all others behind it.
        """
        tenant = self._choose(now, closed)
        if tenant is None:
            return None
        if self._in_shadow:
            self.shadow.dispatches += 1
            self.shadow.other_tenant += self._selection.fair_first(closed) is not tenant
        job = tenant.queue.take()
        self._expiries.unwatch(job)
        self._queued -= 1
        self._ledger.charge(job)
        request, tier = job.request, job.tier
        tier.queued -= 1
        tier.running += 1
        tenant.in_flight += 1
        tenant.dispatches += 1
        self._dispatches += 1
        request.sequence = self._dispatches
        request.dispatched = now
        tenant.drain_rate.dispatched(now)
        if self._selection.in_arrival_order or not tenant.may_dispatch():
            self._selection.refresh(tenant)
        if self._looks_out:
            self._outlook.dispatched(job, self._queued > 0, now)
        return request

    def peek(self, now: float, closed: Container[str] = ()) -> Request | None:
        """What :meth:`next` would dispatch now, for a host that must first make room for it."""
        tenant = self._choose(now, closed)
        return None if tenant is None else tenant.queue.next().request

    def heads(self) -> list[Request]:
        """Who is first of each tier that waits, for a host that gives places in the engine."""
        return self._selection.heads()

    def step(self, seconds: float, rows: Sequence[RequestStep], learn: bool = True) -> None:
        """The engine ended a step, of a host that is ``timed``.

        ``rows``: what it did for each request (by id, those that ended since the step before too);
        their ``caused_by`` is the name of the tier for which they were preempted. Nothing to do
        where nobody was in it. ``learn`` False: its time tells nothing of others.
        """
        if not self._timed:
            raise ValueError("a scheduler that is not timed takes no steps")
        if rows and seconds > 0:
            before = self.pace.fit.observed
            self._ledger.step(seconds, rows, self._jobs, self._landed, self._roster.tiers, learn)
            if before < self.pace.fit.observed in SETTLING_STEPS:
                tenants = self._roster.tenants.values()
                self._outlook.begin_anew(self.policy, tenants, self._jobs.values())
        self._landed.clear()

    def progress(self, request_id: str, output_tokens: int, now: float) -> None:
        """The engine produced so many more output tokens; 0: it finished the prefill."""
        job = self._in_flight(request_id)
        starts = not job.started
        self._ledger.progress(job, output_tokens)
        if self._looks_out:
            if starts:
                self._outlook.started(job, now)
            self._admission.progressed(job.request)

    def finish(self, request_id: str, usage: Usage | None, now: float) -> None:
        """A dispatched request has ended, however; exactly once (KeyError: it is not in flight).

        ``usage`` None: what was seen is billed, the estimated prompt once it has started and the
        output of its progress; nothing where the engine did nothing.
        """
        job = self._in_flight(request_id)
        tokens = self._ledger.settle(job, usage)
        self._land(job, usage, now)
        if self._looks_out:
            self._admission.ended(job.request, tokens)

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a queued request; False: it does not wait (any more)."""
        job = self._jobs.get(request_id)
        if job is None or not job.waiting:
            return False
        self._drop(job)
        return True

    def requeue(self, request_id: str, now: float, caused_by: str | None = None) -> Outcome | None:
        """Put a dispatched request back into its old place, and undo its charge.

        ``caused_by``: the tier for which it was preempted, which pays for the work that was lost;
        unset: the engine did none on it. Not None: it has no place any more (FORBIDDEN, HELD) and
        has ended. KeyError: it is not in flight.
        """
        job = self._in_flight(request_id)
        request, tenant = job.request, job.tenant
        self._ledger.undo(job, self._roster.tiers.get(caused_by or ""))
        self._land(job, None, now)
        if (lost := tenant.lost_place()) is not None:
            self._admission.ended(request, 0)
            return lost
        assert request.dispatched is not None
        waits_since = job.waits_since + now - request.dispatched
        request.sequence = request.dispatched = None
        request.output_tokens = 0
        job = Job(request, tenant, job.order, waits_since)
        self._enqueue(job, now)
        if self._looks_out:
            self._outlook.queued(job, now, anew=False)
        return None

    def expire(self, now: float) -> Ended:
        """Remove and return the requests that have waited too long, and which limit it was."""
        self._collect_expired(now)
        return self._expiries.take_ended()

    def next_expiry(self) -> float | None:
        """When to call :meth:`expire` next; in the past where it has something already."""
        return self._expiries.next()

    def apply_policy(self, policy: Policy, now: float) -> Ended:
        """Put another policy in force; queues, debts and requests in flight survive. O(n).

        Returned are the queued requests that lost their place, and why: their tenant left the
        policy (FORBIDDEN) or is drained (HELD).
        """
        self.policy = policy
        ended: Ended = []
        for tenant in self._roster.apply_policy(policy):
            outcome = tenant.lost_place()
            assert outcome is not None
            for job in sorted(tenant.queue, key=_arrived):
                self._take_out(job)
                ended.append((job.request, outcome))
            self._selection.refresh(tenant)
            self._roster.forget_if_gone(tenant)
        self._expiries.watch_anew(self._jobs.values())
        self._look_out(policy, now)
        return ended

    def retry_after_seconds(self, name: str, now: float) -> int:
        """When a refused request of this tenant may be sent again with success; at least 1.

        From the measured gaps between its dispatches; until there are some, its longest wait,
        after which whatever fills its queue now is gone. Where ``Request.refusal`` says when, that
        is the answer.
        """
        tenant = self._roster.tenants.get(name)
        if tenant is None or tenant.closed is not None:
            return HELD_RETRY_SECONDS
        longest = tenant.queue.limits.max_wait_seconds
        measured = tenant.drain_rate.next_place_seconds(now)
        return max(1, ceil(longest if measured is None else min(measured, longest)))

    def has_work(self) -> bool:
        """Whether :meth:`next` would give a request (unless all that wait have just expired)."""
        return self._selection.ready > 0

    def queued(self) -> int:
        """Requests that wait."""
        return self._queued

    def in_flight(self) -> int:
        """Requests dispatched and not ended."""
        return len(self._jobs) - self._queued

    def tenant_snapshots(self, now: float) -> list[TenantSnapshot]:
        """Every tenant of the policy, and those that left it with requests in flight; O(n)."""
        return self._roster.tenant_snapshots(now)

    def backlogged(self) -> list[Backlog]:
        """What each tenant of which something waits was given so far; O(n)."""
        return self._roster.backlogged()

    def tier_snapshots(self) -> list[TierSnapshot]:
        """Every tier of the policy."""
        return self._roster.tier_snapshots()

    def _admit(self, request: Request, tenant: TenantState, now: float, utc: float | None) -> bool:
        clock = now if utc is None else utc
        refusal = request.refusal = self._admission.refusal(request, tenant, now, clock)
        if refusal is None:
            return True
        if self._in_shadow:
            self.shadow.refused[refusal.outcome] += 1
        return self._in_shadow

    def _choose(self, now: float, closed: Container[str]) -> TenantState | None:
        if self._expiries.may_be_due(now):
            self._collect_expired(now)
        selection = self._selection
        if selection.in_arrival_order:
            return selection.first_come(closed)
        return selection.fair_first(closed)

    def _in_flight(self, request_id: str) -> Job:
        job = self._jobs[request_id]
        if job.waiting:
            raise KeyError(request_id)
        return job

    def _enqueue(self, job: Job, now: float) -> None:
        tenant = job.tenant
        if not tenant.queue.size:
            tenant.backlogs += 1
            tenant.drain_rate.waiting(now)
        tenant.queue.enter(job)
        tenant.tier.queued += 1
        self._jobs[job.request.id] = job
        self._queued += 1
        self._expiries.watch(job)
        if tenant.account.entry is None or self._selection.in_arrival_order:
            self._selection.refresh(tenant)

    def _drop(self, job: Job) -> None:
        """Out of its queue, and ended."""
        self._take_out(job)
        self._selection.refresh(job.tenant)
        if self._looks_out:
            self._outlook.dropped(job, self._queued > 0)

    def _take_out(self, job: Job) -> None:
        job.tenant.queue.remove(job)
        job.tenant.tier.queued -= 1
        self._expiries.unwatch(job)
        del self._jobs[job.request.id]
        self._queued -= 1
        self._admission.ended(job.request, 0)

    def _land(self, job: Job, usage: Usage | None, now: float) -> None:
        """Out of flight, its account being settled."""
        tenant = job.tenant
        del self._jobs[job.request.id]
        if self._timed:
            self._landed[job.request.id] = job
            if len(self._landed) > MOST_LANDED:
                del self._landed[next(iter(self._landed))]
        tenant.in_flight -= 1
        job.tier.running -= 1
        if tenant.queue.size and tenant.account.entry is None:
            self._selection.refresh(tenant)
        if self._looks_out:
            self._outlook.landed(job, usage, now)
        if tenant.policy is None:
            self._roster.forget_if_gone(tenant)

    def _collect_expired(self, now: float) -> None:
        while (job := self._expiries.due(now)) is not None:
            self._drop(job)

    def _look_out(self, policy: Policy, now: float) -> None:
        """Follow what waits and runs only for a policy that asks for it."""
        self._in_shadow = policy.scheduling_mode is SchedulingMode.SHADOW
        self._admission.enforced = not self._in_shadow
        tokens = policy.engine.max_num_batched_tokens or DEFAULT_BUDGET_TOKENS
        self.pace.step_tokens = self.pace.budget_tokens = tokens
        self._looks_out = self._timed or asks_for_admission(policy) or self._admission.holds_any
        self.standings.follow(policy.scheduling_mode, self._looks_out)
        self._admission.forget_unused(self._roster.tenants.values(), now)
        if self._looks_out:
            self._outlook.apply_policy(policy, self._roster.tenants.values(), self._jobs.values())


def _arrived(job: Job) -> int:
    return job.order
