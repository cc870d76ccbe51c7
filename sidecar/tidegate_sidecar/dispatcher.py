"""The pod stage: one owner of the scheduler and the gates.

Theory of operation: everything here runs on one event loop and no method that touches the scheduler
or the gates awaits in between, so each is atomic and check-then-act on a queue's capacity cannot
race. A request is a :class:`Ticket` from ``submit`` to ``close``:

    QUEUED --pump--> DISPATCHED --close--> ENDED
      |  ^--requeue--'  |                    ^
      |  ^-BACKING_OFF<-'preempted           |
      '---- refused, expired, revoked, close-'

Whoever submitted closes, exactly once, in every case (``with ticket:``); the ticket knows where
it stands and takes itself out of the queue, or out of gate and scheduler. ``pump`` runs after every
event that could let a request go: a submit, a start, an end, a step, a reading of the engine's
metrics, a new policy. Slots are freed by ends only, never by a timer.

An answer that is not streamed tells nothing before its end. It counts as started when the engine,
asked twice after its dispatch, had nothing in its own queue, or its plug-in tells that it decodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterable

from tidegate.scheduling.contracts import Endpoint, Policy, Task
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.snapshots import Backlog
from tidegate_sidecar.alarm import Alarm
from tidegate_sidecar.departure import Departure
from tidegate_sidecar.errors import ApiError, not_admitted
from tidegate_sidecar.in_flight import InFlight
from tidegate_sidecar.limit_headers import limit_headers
from tidegate_sidecar.limit_store import LimitStore
from tidegate_sidecar.recent_requests import RecentRequests
from tidegate_sidecar.tally import Tally
from tidegate_sidecar.ticket import WAITING, Ticket, TicketState

NO_ENGINE_RETRY_SECONDS = 5
"""An engine that starts takes at least this long."""
PROGRESS_TOKENS = 8
"""The scheduler is told of output in portions: it corrects a charge of hundreds of tokens."""


class Dispatcher:
    """Queues, dispatches and settles the requests of one engine; ``plugin``: it has one."""

    def __init__(
        self,
        tally: Tally,
        loop: asyncio.AbstractEventLoop,
        departure: Departure | None = None,
        *,
        plugin: bool = False,
    ) -> None:
        self.loop = loop
        self.scheduler: Scheduler | None = None
        self.in_flight = InFlight(loop.time, self._pump, tally.preempted, plugin=plugin)
        self.departure = departure or Departure(loop, 0.0)
        self.recent = RecentRequests()
        self._tally = tally
        self._tickets: dict[str, Ticket] = {}
        self._engine_ready = False
        self.limit_store: LimitStore | None = None
        """Keeps the counters of rate limits over a restart."""
        self.changes = 0
        """Rises with every request that begins or ends."""
        self._pump_later: bool | None = None
        """Unset: what waits may go at once; else whether it is to be looked at afterwards."""
        self._expiry = Alarm(loop, self._expire)
        self._idle = asyncio.Event()

    # --- the way of a request

    def submit(self, request: Request, key_sha256: str) -> list[Ticket]:
        """Queue it, with a ticket for each of its parts; :class:`ApiError`: refused at once."""
        scheduler = self.scheduler
        if self.departure.over:  # the engine may be gone already; another pod's is not
            raise ApiError(Outcome.DRAINING)
        if scheduler is None or not self._engine_ready:
            raise ApiError(Outcome.NO_ENGINE, retry_after=NO_ENGINE_RETRY_SECONDS)
        parts = request.parts or (request,)
        if parts[0].id in self._tickets:
            # Ids are random, but for those that a router signs: somebody sends its words again.
            raise ApiError(Outcome.UNAUTHENTICATED, "A request of this id is served already.")
        now = self.loop.time()
        refusal = scheduler.submit(request, now, time.time())
        if refusal is not None:
            if request.refusal is not None:
                self._tally.not_admitted(request.refusal)
                raise not_admitted(request.refusal)
            raise self.refusal(refusal, request.tenant)
        self._tally.admitted(request)
        self.in_flight.arrived(request, now)
        self.changes += 1
        tickets = []
        for part in parts:
            ticket = self._tickets[part.id] = Ticket(self, part, key_sha256)
            tickets.append(ticket)
        try:
            self._pump(now)
            if tickets[-1].state is TicketState.QUEUED:
                self._arm_expiry()
        except Exception:  # a defect of ours: nobody would end what stayed
            for ticket in tickets:
                self._take_out(ticket, now)
            raise
        return tickets

    def refusal(self, outcome: Outcome, tenant: str) -> ApiError:
        """The error of an outcome, with a Retry-After that holds for this tenant."""
        retry_after: int | None = None
        if outcome is Outcome.NO_ENGINE:
            retry_after = NO_ENGINE_RETRY_SECONDS
        elif self.scheduler is not None and outcome in (Outcome.QUEUE_FULL, Outcome.HELD):
            retry_after = self.scheduler.retry_after_seconds(tenant, self.loop.time())
        return ApiError(outcome, retry_after=retry_after)

    def limit_headers(
        self, tenant: str, endpoint: Endpoint | None = None, model: str | None = None
    ) -> dict[str, str]:
        """What its rate limits leave a tenant, as the headers of an answer."""
        if self.scheduler is None or not self.scheduler.limits.has_any(tenant):
            return {}
        clocks = Clocks(self.loop.time(), time.time())
        return limit_headers(*self.scheduler.limits.room(tenant, endpoint, model, clocks))

    def _pump(self, now: float) -> None:
        if self._pump_later is not None:
            self._pump_later = True
            return
        scheduler = self.scheduler
        if scheduler is None or not self._engine_ready:
            return
        while scheduler.has_work():
            request = self.in_flight.next(now, self._preempt)
            if request is None:
                return
            ticket = self._tickets[request.id]
            self.in_flight.dispatched(ticket, now)
            ticket.state = TicketState.DISPATCHED
            if request.leads():
                self._tally.dispatched(request.tenant, now - request.arrival)
            self.recent.dispatched(request, now)
            ticket.let_go()

    def _preempt(self, ticket: Ticket, caused_by: str, now: float) -> bool:
        """Take it off the engine, to come back after a while; False: it has just ended."""
        scheduler = self.scheduler
        assert scheduler is not None
        if ticket.state is not TicketState.DISPATCHED or ticket.cut is None or not ticket.cut():
            return False
        request = ticket.request
        lost_tokens = request.prompt_tokens - ticket.unfilled_tokens + ticket.output_tokens
        self._tally.preempted(request.tenant, lost_tokens)
        ticket.state = TicketState.BACKING_OFF
        ticket.preemptions += 1
        ticket.caused_by = caused_by
        self.in_flight.left(ticket, now)
        ticket.forget_progress()
        seconds = self.in_flight.places.backoff_seconds(request, scheduler.queued())
        ticket.back_off = self.loop.call_at(now + seconds, self._come_back, ticket)
        return True

    def _come_back(self, ticket: Ticket) -> None:
        ticket.back_off = None
        self._queue_again(ticket, self.loop.time())

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        # What it lets in may take its very place: not before all of it is counted.
        self._pump_later = False
        try:
            self._count_progress(ticket, tokens)
        finally:
            pump, self._pump_later = self._pump_later, None
        if pump:
            self._pump(self.loop.time())

    def _count_progress(self, ticket: Ticket, tokens: int) -> None:
        now = self.loop.time()
        if ticket.first_token_at is None:
            ticket.first_token_at = now
            self.in_flight.started(ticket)
            if ticket.first_token_seconds is None:
                ticket.first_token_seconds = now - ticket.request.arrival
                self._tally.first_token(ticket.request.tenant, ticket.first_token_seconds)
            self._tell_progress(ticket, now)
            self._pump(now)
        self.in_flight.tokens(ticket, tokens, now)
        ticket.last_token_at = now
        ticket.output_tokens += tokens
        if ticket.output_tokens - ticket.told_tokens >= PROGRESS_TOKENS:
            self._tell_progress(ticket, now)

    def _tell_progress(self, ticket: Ticket, now: float) -> None:
        assert self.scheduler is not None
        self.scheduler.progress(ticket.request.id, ticket.output_tokens - ticket.told_tokens, now)
        ticket.told_tokens = ticket.output_tokens

    def requeue(self, ticket: Ticket) -> None:
        assert ticket.state is TicketState.DISPATCHED
        now = self.loop.time()
        self.in_flight.left(ticket, now)
        ticket.forget_progress()
        self._queue_again(ticket, now)

    def _queue_again(self, ticket: Ticket, now: float) -> None:
        scheduler = self.scheduler
        assert scheduler is not None
        lost = scheduler.requeue(ticket.request.id, now, ticket.caused_by)
        ticket.caused_by = None
        if lost is not None:
            self._drop(ticket.request, self.refusal(lost, ticket.request.tenant))
            return
        ticket.state = TicketState.QUEUED
        self._pump(now)
        if ticket.state is TicketState.QUEUED:
            self._arm_expiry()

    def close_ticket(self, ticket: Ticket) -> None:
        now = self.loop.time()
        request = ticket.request
        self._take_out(ticket, now)
        if request.whole is None:
            self._tally.ended(
                request.tenant,
                ticket.outcome,
                now - request.arrival,
                ticket.first_token_seconds,
                _inter_token(ticket),
            )
        self._pump(now)
        if not self._tickets:
            self._idle.set()

    def _take_out(self, ticket: Ticket, now: float) -> None:
        """Out of queue and engine, and billed."""
        request = ticket.request
        state, ticket.state = ticket.state, TicketState.ENDED
        assert state is not TicketState.ENDED, "a request ends once"
        scheduler = self.scheduler
        assert scheduler is not None
        del self._tickets[request.id]
        self.changes += 1
        if state in WAITING:
            self._leave_queue(ticket, state, now)
            if state is TicketState.QUEUED:
                self._count_wait(request, ticket.outcome, now)
        elif state is TicketState.DISPATCHED:
            self.in_flight.left(ticket, now)
            # What its client abandons before a token has come is billed its prompt: free, it would
            # let whoever hangs up in time have the engine to himself. So is an answer of which the
            # engine reported no usage.
            worked = ticket.outcome in (Outcome.CLIENT_CLOSED, Outcome.COMPLETED)
            unreported = ticket.sent and worked and ticket.usage is None
            if unreported or ticket.output_tokens > ticket.told_tokens:
                self._tell_progress(ticket, now)
            scheduler.finish(request.id, ticket.usage, now)
            if request.forecast is not None and request.forecast.skew is not None:
                self._tally.skewed(request.tenant, request.forecast.skew)

    def _leave_queue(self, ticket: Ticket, state: TicketState, now: float) -> bool:
        """It waits no more, nor goes to the engine; False: it has expired, and is told so."""
        assert self.scheduler is not None
        if state is TicketState.QUEUED:
            return self.scheduler.cancel(ticket.request.id, now)
        if ticket.back_off is not None:
            ticket.back_off.cancel()
        self.scheduler.finish(ticket.request.id, None, now)
        return True

    # --- what befalls those that wait

    def _drop(self, request: Request, error: ApiError) -> None:
        """It is out of the scheduler's queue: its handler is told why."""
        ticket = self._tickets.get(request.id)
        if ticket is None:
            return  # its client went away between its expiry and now
        if ticket.state is TicketState.QUEUED:
            self._count_wait(request, error.outcome, self.loop.time())
        ticket.state = TicketState.REFUSED
        ticket.refusal = error
        ticket.let_go()

    def _count_wait(self, request: Request, outcome: Outcome, now: float) -> None:
        """It left the queue, and not for the engine."""
        if request.leads():
            self._tally.left_queue(request.tenant, outcome, now - request.arrival)

    def _arm_expiry(self) -> None:
        assert self.scheduler is not None
        if (when := self.scheduler.next_expiry()) is not None:
            self._expiry.set(when)

    def _expire(self) -> None:
        if self.scheduler is None:
            return
        for request, outcome in self.scheduler.expire(self.loop.time()):
            self._drop(request, self.refusal(outcome, request.tenant))
        self._arm_expiry()

    def refuse_queued(self, outcome: Outcome, only: Callable[[Ticket], bool] | None = None) -> int:
        """End the requests that wait, those that back off too (of them that ``only`` names), with
        ``outcome``; how many."""
        if self.scheduler is None:
            return 0
        now = self.loop.time()
        waiting = [
            ticket
            for ticket in self._tickets.values()
            if ticket.state in WAITING and (only is None or only(ticket))
        ]
        for ticket in waiting:
            if self._leave_queue(ticket, ticket.state, now):
                self._drop(ticket.request, self.refusal(outcome, ticket.request.tenant))
        return len(waiting)

    def hand_back(self, requests: int) -> int:
        """End up to so many queued requests, the newest first: another pod is free; how many."""
        queued = [
            ticket
            for ticket in self._tickets.values()
            if ticket.state is TicketState.QUEUED
            and ticket.request.whole is None
            and not ticket.stays
        ]
        newest = {ticket.request.id for ticket in queued[-requests:]}
        return self.refuse_queued(Outcome.HANDED_BACK, lambda t: t.request.id in newest)

    # --- policy, engine, drain

    def apply_policy(self, policy: Policy, key_digests: Container[str]) -> None:
        """Hot reload: queues and accounts survive; who lost key or place is told."""
        now = self.loop.time()
        if self.scheduler is None:
            # Nothing shows the steps of an engine that embeds: tokens stand for its time.
            self.scheduler = Scheduler(policy, now, timed=policy.model.task is not Task.EMBED)
            self.in_flight.begin(self.scheduler, policy)
            if self.limit_store is not None:
                limiter = self.scheduler.limits.limiter
                self.limit_store.attach(limiter, policy.pool, Clocks(now, time.time()))
        else:
            dropped: Iterable[tuple[Request, Outcome]] = self.scheduler.apply_policy(policy, now)
            for request, outcome in dropped:
                self._drop(request, self.refusal(outcome, request.tenant))
            self.refuse_queued(
                Outcome.UNAUTHENTICATED, lambda ticket: ticket.key_sha256 not in key_digests
            )
            self.in_flight.apply_policy(self.scheduler, policy)
        self._tally.apply_policy(policy)
        self._pump(now)
        self._arm_expiry()

    @property
    def engine_ready(self) -> bool:
        """Whether the engine answers."""
        return self._engine_ready

    def set_engine_ready(self, ready: bool) -> None:
        """What queues goes on waiting while the engine is away; new requests are refused."""
        self._engine_ready = ready
        if ready:
            self._pump(self.loop.time())

    def backlogged(self) -> list[Backlog]:
        """What each tenant of which something waits was given so far."""
        return [] if self.scheduler is None else self.scheduler.backlogged()

    @property
    def in_hand(self) -> int:
        """Requests queued or in flight."""
        return len(self._tickets)

    async def idle(self) -> None:
        """Returns when nothing is queued and nothing in flight."""
        while self._tickets:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """No timer is left behind."""
        self.departure.close()
        self._expiry.cancel()


def _inter_token(ticket: Ticket) -> float | None:
    if ticket.first_token_at is None or ticket.last_token_at is None or ticket.output_tokens < 2:
        return None
    return (ticket.last_token_at - ticket.first_token_at) / (ticket.output_tokens - 1)
