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

from math import ceil, inf

from tidegate.scheduling.contracts import Policy, SchedulingMode, Stop, TenantPolicy
from tidegate.scheduling.lazy_heap import LazyHeap
from tidegate.scheduling.ledger import Ledger
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.selection import Selection
from tidegate.scheduling.state import Flight, TenantSnapshot, TenantState, TierSnapshot, TierState
from tidegate.scheduling.tenant_queue import Waiting

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
        self._waiting: dict[str, Waiting[TenantState]] = {}
        self._flights: dict[str, Flight] = {}
        self._expiries: LazyHeap[Waiting[TenantState]] = LazyHeap()
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
        if request.id in self._waiting or request.id in self._flights:
            raise ValueError(f"request id {request.id!r} is in use")
        if (
            request.prompt_tokens < 0
            or request.max_output_tokens < 0
            or request.body_bytes < 0
            or request.sequences < 1
        ):
            raise ValueError(f"request {request.id!r} has a negative size or no sequence")
        tenant = self._tenants.get(request.tenant)
        if tenant is None or tenant.policy is None:
            return Outcome.FORBIDDEN
        if tenant.policy.stop is not Stop.NONE:
            return Outcome.HELD
        if request.deadline is not None and request.deadline <= now:
            return Outcome.DEADLINE_EXCEEDED
        if refusal := tenant.queue.refusal(request):
            return refusal
        request.arrival = now
        self._arrivals += 1
        self._enqueue(Waiting(request, tenant, self._arrivals), now)
        return None

    def next(self, now: float) -> Request | None:
        """The request to dispatch now, counted in flight from here on; None: nothing may go."""
        if (expiry := self._expiries.first()) is not None and expiry[0] <= now:
            self._collect_expired(now)
        tenant = self._selection.first()
        if tenant is None:
            return None
        waiting = tenant.queue.first()
        request = waiting.request
        self._flights[request.id] = self._ledger.charge(request, tenant, waiting.order)
        self._take_out(waiting)
        tenant.in_flight += 1
        tenant.tier.running += 1
        self._dispatches += 1
        request.sequence = self._dispatches
        request.dispatched = now
        tenant.drain_rate.dispatched(now)
        self._selection.refresh(tenant)
        return request

    def peek(self, now: float) -> Request | None:
        """What :meth:`next` would dispatch now, for a host that must first make room for it."""
        self._collect_expired(now)
        tenant = self._selection.first()
        return None if tenant is None else tenant.queue.first().request

    def progress(self, request_id: str, output_tokens: int, now: float) -> None:
        """The engine produced so many more output tokens; 0: it finished the prefill."""
        self._ledger.progress(self._flights[request_id], output_tokens)

    def finish(self, request_id: str, usage: Usage | None, now: float) -> None:
        """A dispatched request has ended, however; exactly once (KeyError: it is not in flight).

        ``usage`` None: what was seen is billed, the estimated prompt once it has started and the
        output of its progress; nothing where the engine did nothing.
        """
        flight = self._flights.pop(request_id)
        self._ledger.settle(flight, usage)
        self._land(flight)

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a queued request; False: it does not wait (any more)."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        self._take_out(waiting)
        self._selection.refresh(waiting.owner)
        return True

    def requeue(self, request_id: str, now: float) -> Outcome | None:
        """Put a dispatched request, on which the engine did no work, back into its old place.

        Its charge is undone. Not None: it has no place any more (FORBIDDEN, HELD) and has ended.
        KeyError: it is not in flight.
        """
        flight = self._flights.pop(request_id)
        request, tenant = flight.request, flight.tenant
        self._ledger.undo(flight)
        lost = _lost_place(tenant)
        self._land(flight)
        if lost is not None:
            return lost
        request.sequence = request.dispatched = None
        request.output_tokens = 0
        self._enqueue(Waiting(request, tenant, flight.order), now)
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
                tenant.policy = None
            if (lost := _lost_place(tenant)) is not None:
                for waiting in sorted(tenant.queue, key=lambda each: each.order):
                    self._take_out(waiting)
                    ended.append((waiting.request, lost))
                self._selection.refresh(tenant)
            self._forget_if_gone(tenant)
        kept = [row.name for row in policy.tiers]
        self._tiers = {name: self._tiers[name] for name in kept}
        self._selection.tiers.set_tiers([tier.account for tier in self._tiers.values()])
        first_come = policy.scheduling_mode is not SchedulingMode.TIDEGATE
        self._selection.set_order(first_come, self._tenants.values())
        return ended

    def retry_after_seconds(self, name: str, now: float) -> int:
        """When a refused request of this tenant may be sent again with success; at least 1.

        From the measured gaps between its dispatches; until there are some, its longest wait,
        after which whatever fills its queue now is gone.
        """
        tenant = self._tenants.get(name)
        if tenant is None or tenant.policy is None or tenant.policy.stop is not Stop.NONE:
            return HELD_RETRY_SECONDS
        longest = tenant.queue.limits.max_wait_seconds
        measured = tenant.drain_rate.next_place_seconds(now)
        return max(1, ceil(longest if measured is None else min(measured, longest)))

    def has_work(self) -> bool:
        """Whether :meth:`next` would give a request (unless all that wait have just expired)."""
        return self._selection.ready > 0

    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def in_flight(self) -> int:
        """Requests dispatched and not ended."""
        return len(self._flights)

    def tenant_snapshots(self, now: float) -> list[TenantSnapshot]:
        """Every tenant of the policy, and those that left it with requests in flight; O(n)."""
        return [
            TenantSnapshot(
                name=tenant.name,
                tier=tenant.tier.policy.name,
                queued=tenant.queue.size,
                queued_bytes=tenant.queue.bytes,
                running=tenant.in_flight,
                service_tokens_total=tenant.service.published,
                longest_wait_seconds=max(
                    (now - waiting.request.arrival for waiting in tenant.queue), default=0.0
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

    def _enqueue(self, waiting: Waiting[TenantState], now: float) -> None:
        tenant = waiting.owner
        if not tenant.queue.size:
            tenant.drain_rate.waiting(now)
        tenant.queue.push(waiting)
        tenant.tier.queued += 1
        self._waiting[waiting.request.id] = waiting
        self._set_expiry(waiting)
        if tenant.account.entry is None or self._selection.in_arrival_order:
            self._selection.refresh(tenant)

    def _take_out(self, waiting: Waiting[TenantState]) -> None:
        """Out of its queue; the caller refreshes the selection."""
        waiting.owner.queue.remove(waiting)
        waiting.owner.tier.queued -= 1
        del self._waiting[waiting.request.id]
        if waiting.expiry is not None:
            self._expiries.withdraw(waiting.expiry)
            waiting.expiry = None

    def _land(self, flight: Flight) -> None:
        """Out of flight, its account being settled."""
        tenant = flight.tenant
        tenant.in_flight -= 1
        flight.tier.running -= 1
        self._selection.refresh(tenant)
        self._forget_if_gone(tenant)

    def _forget_if_gone(self, tenant: TenantState) -> None:
        if tenant.policy is None and not tenant.in_flight:
            del self._tenants[tenant.name]

    def _set_expiry(self, waiting: Waiting[TenantState]) -> None:
        if waiting.expiry is not None:
            self._expiries.withdraw(waiting.expiry)
        waiting.expiry = self._expiries.push(_expires(waiting), waiting.order, waiting)

    def _collect_expired(self, now: float) -> None:
        while (entry := self._expiries.first()) is not None and entry[0] <= now:
            waiting: Waiting[TenantState] = entry[2]
            request = waiting.request
            by_deadline = request.deadline is not None and request.deadline <= entry[0]
            self._take_out(waiting)
            self._selection.refresh(waiting.owner)
            self._expired.append(
                (
                    request,
                    Outcome.DEADLINE_EXCEEDED if by_deadline else Outcome.QUEUE_WAIT_EXCEEDED,
                )
            )

    def _apply_tiers(self, policy: Policy) -> None:
        for row in policy.tiers:
            tier = self._tiers.get(row.name)
            if tier is None:
                served_tokens = self._selection.tiers.served_tokens
                self._tiers[row.name] = TierState(row, served_tokens)
                continue
            old, tier.policy = tier.policy, row
            self._selection.tiers.change(tier.account, row)
            if old.fairness.quantum_in_force != row.fairness.quantum_in_force:
                tier.robin.set_quantum(row.fairness.quantum_in_force)
            if old.fairness.unit is not row.fairness.unit:
                # Tokens and requests do not convert: all start even.
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
        tenant.policy = row
        if tenant.tier is not tier:
            self._move(tenant, tier)
        if tenant.account.weight != row.weight:
            tier.robin.set_weight(tenant.account, row.weight)
        old_limits, tenant.queue.limits = tenant.queue.limits, tier.policy.queue
        if old_limits.max_wait_seconds != tier.policy.queue.max_wait_seconds:
            for waiting in list(tenant.queue):
                self._set_expiry(waiting)
        self._selection.refresh(tenant)

    def _move(self, tenant: TenantState, tier: TierState) -> None:
        """Into another tier: its queue, and its debt where the unit is the same."""
        old = tenant.tier
        self._selection.leave(tenant)
        old.queued -= tenant.queue.size
        tier.queued += tenant.queue.size
        same_unit = old.policy.fairness.unit is tier.policy.fairness.unit
        debt = old.robin.debt(tenant.account) if same_unit else 0.0
        tenant.tier = tier
        tier.robin.set_debt(tenant.account, debt)


def _lost_place(tenant: TenantState) -> Outcome | None:
    """Why none of its requests may wait."""
    if tenant.policy is None:
        return Outcome.FORBIDDEN
    return Outcome.HELD if tenant.policy.stop is Stop.HOLD_AND_DRAIN else None


def _expires(waiting: Waiting[TenantState]) -> float:
    request = waiting.request
    latest = request.arrival + waiting.owner.queue.limits.max_wait_seconds
    return latest if request.deadline is None else min(latest, request.deadline)
