"""The scheduler: which request goes to the engine next.

Theory of operation: three selectors, in a fixed order, each time the host's gate has room. The
*tier* (``tiers``: reservations, then priority under the limits), within it the *tenant*
(``deficit_round_robin``), within it the *request* (``tenant_queue``: priority, deadline, arrival).
In the modes FirstComeFirstServed and Shadow only the arrival counts, while the accounts keep
running; limits (queue, wait, in flight, stop) hold in all modes.

The host drives it with ``submit``, ``next``, ``progress``, ``finish``, ``cancel``, ``requeue``,
``expire`` and ``apply_policy``, each with the time on its monotonic clock, from one thread.

Accounts: at dispatch a request is charged its prompt plus the output its tenant's requests had on
average; while it streams it is charged on where it outgrows that, and at its end the difference to
what the engine did is settled. One that ends without any work of the engine is charged nothing.

Invariants: work-conserving (``next`` gives None only where no tenant below its limit in flight has
anything queued); each request is in exactly one place, queued or in flight, and leaves it exactly
once; counts never fall below zero. Cost: O(log n) amortised in tenants and requests for each call
but ``apply_policy`` and the snapshots, which are O(n).
"""

from __future__ import annotations

from collections.abc import Container
from math import ceil, inf

from tidegate.scheduling.contracts import Policy, SchedulingMode, TenantPolicy
from tidegate.scheduling.job import Job
from tidegate.scheduling.job_heap import JobHeap
from tidegate.scheduling.ledger import Ledger
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.state import TenantSnapshot, TenantState, TierSnapshot, TierState

HELD_RETRY_SECONDS = 30
"""Retry-After of a held tenant: a person lifts the hold, so no figure is truer than another."""

Ended = list[tuple[Request, Outcome]]


class Scheduler:
    """Owns the queues and accounts of one engine's requests."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._selection = Selection()
        self._ledger = Ledger(self._selection)
        self._tiers: dict[str, TierState] = {}
        self._tenants: dict[str, TenantState] = {}
        self._jobs: dict[str, Job] = {}
        self._queued = 0
        self._expiries = JobHeap()
        self._pushes = 0
        self._expired: Ended = []
        self._arrivals = 0
        self._dispatches = 0
        self.apply_policy(policy, now)

    def submit(self, request: Request, now: float) -> Outcome | None:
        """Queue a request (None), or say why not.

        Refusals: FORBIDDEN (no such tenant), HELD, DEADLINE_EXCEEDED (already), QUEUE_FULL,
        BODY_TOO_LARGE (for the empty queue too). ValueError: its id is in use, or a size is
        negative.
        """
        if request.id in self._jobs:
            raise ValueError(f"request id {request.id!r} is in use")
        if (
            request.prompt_tokens < 0
            or request.max_output_tokens < 0
            or request.body_bytes < 0
            or request.sequences < 1
        ):
            raise ValueError(f"request {request.id!r} has a negative size or no sequence")
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            return Outcome.FORBIDDEN
        if tenant.closed is not None:
            return tenant.closed
        if request.deadline is not None and request.deadline <= now:
            return Outcome.DEADLINE_EXCEEDED
        if refusal := tenant.queue.refusal(request):
            return refusal
        request.arrival = now
        self._arrivals += 1
        self._enqueue(Job(request, tenant, self._arrivals), now)
        return None

    def next(self, now: float, closed: Container[str] = ()) -> Request | None:
        """The request to dispatch now, counted in flight from here on; None: nothing may go.

        ``closed``: names of tiers whose requests may not go now, where the host has a gate for
        each; in arrival order the first waits for its gate, and all others behind it.
        """
        tenant = self._choose(now, closed)
        if tenant is None:
            return None
        job = tenant.queue.take()
        self._expiries.leave()
        self._queued -= 1
        self._ledger.charge(job)
        request, tier = job.request, job.tier
        tier.queued -= 1
        tier.running += 1
        tenant.in_flight += 1
        self._dispatches += 1
        request.sequence = self._dispatches
        request.dispatched = now
        tenant.drain_rate.dispatched(now)
        self._selection.refresh(tenant)
        return request

    def peek(self, now: float, closed: Container[str] = ()) -> Request | None:
        """What :meth:`next` would dispatch now, for a host that must first make room for it."""
        tenant = self._choose(now, closed)
        return None if tenant is None else tenant.queue.next().request

    def progress(self, request_id: str, output_tokens: int, now: float) -> None:
        """The engine produced so many more output tokens; 0: it finished the prefill."""
        self._ledger.progress(self._in_flight(request_id), output_tokens)

    def finish(self, request_id: str, usage: Usage | None, now: float) -> None:
        """A dispatched request has ended, however; exactly once (KeyError: it is not in flight).

        ``usage`` None: what was seen is billed, the estimated prompt once it has started and the
        output of its progress; nothing where the engine did nothing.
        """
        job = self._in_flight(request_id)
        self._ledger.settle(job, usage)
        self._land(job)

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a queued request; False: it does not wait (any more)."""
        job = self._jobs.get(request_id)
        if job is None or not job.waiting:
            return False
        self._drop(job)
        self._selection.refresh(job.tenant)
        return True

    def requeue(self, request_id: str, now: float) -> Outcome | None:
        """Put a dispatched request, on which the engine did no work, back into its old place.

        Its charge is undone. Not None: it has no place any more (FORBIDDEN, HELD) and has ended.
        KeyError: it is not in flight.
        """
        job = self._in_flight(request_id)
        request, tenant = job.request, job.tenant
        self._ledger.undo(job)
        self._land(job)
        if (lost := tenant.lost_place()) is not None:
            return lost
        request.sequence = request.dispatched = None
        request.output_tokens = 0
        self._enqueue(Job(request, tenant, job.order), now)
        return None

    def expire(self, now: float) -> Ended:
        """Remove and return the requests that have waited too long, and which limit it was."""
        self._collect_expired(now)
        expired, self._expired = self._expired, []
        return expired

    def next_expiry(self) -> float | None:
        """When to call :meth:`expire` next; in the past where it has something already."""
        if self._expired:
            return -inf
        first = self._expiries.first()
        return None if first is None else float(first[0])

    def apply_policy(self, policy: Policy, now: float) -> Ended:
        """Put another policy in force; queues, debts and requests in flight survive. O(n).

        Returned are the queued requests that lost their place, and why: their tenant left the
        policy (FORBIDDEN) or is drained (HELD).
        """
        self.policy = policy
        self._apply_tiers(policy)
        names = set()
        for row in policy.tenants:
            names.add(row.name)
            self._apply_tenant(row)
        ended: Ended = []
        for name, tenant in list(self._tenants.items()):
            if name not in names:
                tenant.set_policy(None)
            if (lost := tenant.lost_place()) is not None:
                for job in sorted(tenant.queue, key=_arrived):
                    self._drop(job)
                    ended.append((job.request, lost))
                self._selection.refresh(tenant)
            self._forget_if_gone(tenant)
        kept = [row.name for row in policy.tiers]
        self._tiers = {name: self._tiers[name] for name in kept}
        self._selection.tiers.apply_policy(
            policy.between_tiers, [(tier.account, tier.policy) for tier in self._tiers.values()]
        )
        self._restart_expiries()
        first_come = policy.scheduling_mode is not SchedulingMode.TIDEGATE
        self._selection.set_order(first_come, self._tenants.values())
        return ended

    def retry_after_seconds(self, name: str, now: float) -> int:
        """When a refused request of this tenant may be sent again with success; at least 1.

        From the measured gaps between its dispatches; until there are some, its longest wait,
        after which whatever fills its queue now is gone.
        """
        tenant = self._tenants.get(name)
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
        return [
            TenantSnapshot(
                name=tenant.name,
                tier=tenant.tier.name,
                queued=tenant.queue.size,
                queued_bytes=tenant.queue.bytes,
                running=tenant.in_flight,
                service_tokens_total=tenant.service.published,
                longest_wait_seconds=max(
                    (now - job.request.arrival for job in tenant.queue), default=0.0
                ),
            )
            for tenant in self._tenants.values()
        ]

    def tier_snapshots(self) -> list[TierSnapshot]:
        """Every tier of the policy."""
        return [
            TierSnapshot(name, tier.queued, tier.running, tier.service.published)
            for name, tier in self._tiers.items()
        ]

    def _choose(self, now: float, closed: Container[str]) -> TenantState | None:
        if (expiry := self._expiries.first()) is not None and expiry[0] <= now:
            self._collect_expired(now)
        return self._selection.first(closed)

    def _in_flight(self, request_id: str) -> Job:
        job = self._jobs[request_id]
        if job.waiting:
            raise KeyError(request_id)
        return job

    def _enqueue(self, job: Job, now: float) -> None:
        tenant = job.tenant
        if not tenant.queue.size:
            tenant.drain_rate.waiting(now)
        tenant.queue.enter(job)
        tenant.tier.queued += 1
        self._jobs[job.request.id] = job
        self._queued += 1
        self._watch(job)
        if tenant.account.entry is None or self._selection.in_arrival_order:
            self._selection.refresh(tenant)

    def _drop(self, job: Job) -> None:
        """Out of its queue, and gone; the caller refreshes the selection."""
        job.tenant.queue.remove(job)
        job.tenant.tier.queued -= 1
        self._expiries.leave()
        del self._jobs[job.request.id]
        self._queued -= 1

    def _land(self, job: Job) -> None:
        """Out of flight, its account being settled."""
        tenant = job.tenant
        del self._jobs[job.request.id]
        tenant.in_flight -= 1
        job.tier.running -= 1
        if tenant.queue.size and tenant.account.entry is None:
            self._selection.refresh(tenant)
        elif tenant.policy is None:
            self._forget_if_gone(tenant)

    def _forget_if_gone(self, tenant: TenantState) -> None:
        if tenant.policy is None and not tenant.in_flight:
            del self._tenants[tenant.name]

    def _watch(self, job: Job) -> None:
        """End it when it has waited too long."""
        request = job.request
        expires = request.arrival + job.tenant.tier.policy.queue.max_wait_seconds
        if request.deadline is not None and request.deadline < expires:
            expires = request.deadline
        self._pushes += 1
        self._expiries.push((expires, self._pushes, job))

    def _restart_expiries(self) -> None:
        """The longest waits may have changed."""
        self._expiries.clear()
        for job in self._jobs.values():
            if job.waiting:
                self._watch(job)

    def _collect_expired(self, now: float) -> None:
        while (entry := self._expiries.first()) is not None and entry[0] <= now:
            job: Job = entry[-1]
            by_deadline = job.request.deadline is not None and job.request.deadline <= entry[0]
            self._drop(job)
            self._selection.refresh(job.tenant)
            outcome = Outcome.DEADLINE_EXCEEDED if by_deadline else Outcome.QUEUE_WAIT_EXCEEDED
            self._expired.append((job.request, outcome))

    def _apply_tiers(self, policy: Policy) -> None:
        for row in policy.tiers:
            tier = self._tiers.get(row.name)
            if tier is None:
                self._tiers[row.name] = TierState(row, self._selection.tiers.served)
                continue
            old = tier.policy.fairness
            tier.set_policy(row)
            if old.quantum_in_force != row.fairness.quantum_in_force:
                tier.robin.set_quantum(row.fairness.quantum_in_force)
            if old.unit is not row.fairness.unit:
                # Costs of two units do not convert: all start even.
                for tenant in self._tenants.values():
                    if tenant.tier is tier:
                        tier.robin.set_debt(tenant.account, 0.0)

    def _apply_tenant(self, row: TenantPolicy) -> None:
        tier = self._tiers[row.tier]
        tenant = self._tenants.get(row.name)
        if tenant is None:
            in_arrival_order = self._selection.in_arrival_order
            self._tenants[row.name] = TenantState(row, tier, in_arrival_order)
            return
        tenant.set_policy(row)
        if tenant.tier is not tier:
            self._move(tenant, tier)
        if tenant.account.weight != row.weight:
            tier.robin.set_weight(tenant.account, row.weight)
        tenant.queue.limits = tier.policy.queue
        self._selection.refresh(tenant)

    def _move(self, tenant: TenantState, tier: TierState) -> None:
        """Into another tier: its queue, and its debt where the unit is the same."""
        old = tenant.tier
        self._selection.leave(tenant)
        old.queued -= tenant.queue.size
        tier.queued += tenant.queue.size
        debt = old.robin.debt(tenant.account) if old.unit is tier.unit else 0.0
        tenant.tier = tier
        tier.robin.set_debt(tenant.account, debt)


def _arrived(job: Job) -> int:
    return job.order
