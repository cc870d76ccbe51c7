"""The requests that are in the engine, and all that is kept of them there.

Gate, places and the sources of its steps are told of the same few events, in an order that matters:
this module has them once. A step that ended is booked by the scheduler before the end that it
brought is told, and what waits gets its chance after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.scheduling.contracts import Policy, Task
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.request import Request
from tidegate.scheduling.scheduler import Scheduler
from tidegate_sidecar.gates import Gates
from tidegate_sidecar.metrics_text import EngineFigures
from tidegate_sidecar.places import Places
from tidegate_sidecar.plugin_steps import PluginSteps
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.token_gaps import TokenGaps

Preempt = Callable[[Ticket, str, float], bool]
"""Takes a request off the engine for the named tier, now; False: it has just ended."""


class InFlight:
    """Of one engine; ``plugin``: it has one. ``pump``: something that waits may go now.
    ``preempted``: a tenant's request was taken off by the plug-in, and so many tokens lost."""

    def __init__(
        self,
        clock: Callable[[], float],
        pump: Callable[[float], None],
        preempted: Callable[[str, int], None],
        *,
        plugin: bool,
    ) -> None:
        self._clock = clock
        self._pump = pump
        self._preempted = preempted
        self._scheduler: Scheduler | None = None
        self._opaque: set[Ticket] = set()
        self.gate: Gates | None = None
        self.gaps: TokenGaps | None = None
        """The engine's steps as its streams show them; unset where nothing streams."""
        self.places = Places()
        self.plugin_steps = PluginSteps(self, clock) if plugin else None

    def begin(self, scheduler: Scheduler, policy: Policy, now: float) -> None:
        """The first policy is in force."""
        embeds = policy.model.task is Task.EMBED
        self._scheduler = scheduler
        self.places.muted = by_tier = self.plugin_steps is not None and not embeds
        self.gate = Gates(policy, now, by_tier=by_tier)
        self.gaps = None if embeds else TokenGaps(self)

    def apply_policy(self, scheduler: Scheduler, policy: Policy) -> None:
        """A policy is in force, the scheduler's too."""
        if self.gaps is not None:
            pace = scheduler.pace
            self.gaps.budget_tokens = pace.step_tokens
            if self.plugin_steps is None:  # nobody keeps the prefill budget but the engine its own
                pace.budget_tokens = pace.step_tokens
        self.places.apply_policy(policy)

    # --- of one request

    def next(self, now: float, preempt: Preempt) -> Request | None:
        """The next of those that wait to go to the engine; None: nobody may."""
        scheduler, gate = self._scheduler, self.gate
        assert scheduler is not None
        assert gate is not None
        if self.places.in_force:
            return self._next_with_place(scheduler, gate, now, preempt)
        closed = gate.closed(now)
        return None if closed is None else scheduler.next(now, closed)

    def _next_with_place(
        self, scheduler: Scheduler, gate: Gates, now: float, preempt: Preempt
    ) -> Request | None:
        """The next of the tiers that the engine has places for, or can get by preemption."""
        places = self.places
        closed = set(gate.held_back(now))
        while (is_open := gate.is_open()) or gate.lacks_place():
            request = scheduler.peek(now, closed)
            if request is None:
                return None
            heads = scheduler.heads() if is_open else ()
            veto, victims = places.ask(request, heads, seat_short=not is_open)
            tier = places.tier_of(request)
            if veto is not None:
                closed.add(tier)
            elif is_open and not victims:
                return scheduler.next(now, closed)
            elif not sum([preempt(victim, tier, now) for victim in victims]):
                return None
        return None

    def arrived(self, request: Request, now: float) -> None:
        """It waits for its turn."""
        assert self.gate is not None
        self.gate.arrived(request, now)

    def dispatched(self, ticket: Ticket, now: float) -> None:
        """It goes to the engine."""
        assert self.gate is not None
        self.gate.dispatched(ticket.request, now)
        self.places.entered(ticket)
        if self.plugin_steps is not None:
            self.plugin_steps.dispatched(ticket)
        if self.gaps is not None:
            self.gaps.dispatched(ticket, now)

    def mark_opaque(self, ticket: Ticket) -> None:
        """Its answer will not be streamed."""
        ticket.opaque = True
        ticket.empty_engine_readings = 0
        self._opaque.add(ticket)
        if self.gaps is not None:
            self.gaps.opaque(ticket)

    def started(self, ticket: Ticket, now: float) -> None:
        """Its prompt is computed, as its first token shows or the plug-in tells."""
        assert self.gate is not None
        self._opaque.discard(ticket)
        self.gate.started(ticket.request, now)

    def tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        """Tokens came; before they are counted on the ticket."""
        if self.gaps is not None:
            self.gaps.tokens(ticket, tokens, now)

    def left(self, ticket: Ticket, now: float) -> None:
        """It is in flight no more; its last step is reported before its end is."""
        assert self.gate is not None
        if self.gaps is not None:
            self.gaps.ended(ticket, now)
        if self.plugin_steps is not None:
            self.plugin_steps.ended(ticket)
        self._opaque.discard(ticket)
        self.places.left(ticket)
        self.gate.ended(ticket.request, now)

    # --- of the engine: StepReports and StepsHost

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> None:
        """The engine ended a step."""
        scheduler, gate = self._scheduler, self.gate
        assert scheduler is not None
        assert gate is not None
        now = self._clock()
        scheduler.step(seconds, rows, learn)
        has_work = scheduler.has_work()
        if self.plugin_steps is None:
            gate.step(now, {"": has_work})
        else:
            gate.step(now, {tier.name: tier.queued for tier in scheduler.tier_snapshots()})
        if has_work:
            self._pump(now)

    def steps_are_told(self) -> None:
        """The token gaps need not report them."""
        if self.gaps is not None:
            self.gaps.mute()

    def engine_started(self, ticket: Ticket) -> None:
        """The plug-in tells that it decodes."""
        self.started(ticket, self._clock())

    def kv_held(self, ratios: Mapping[str, float]) -> None:
        """What each tier holds of what it could hold, 0..1."""
        if self.gate is not None:
            self.gate.kv_held(ratios, self._clock())

    def preempted(self, tenant: str, lost_tokens: int) -> None:
        """The plug-in took one off."""
        self._preempted(tenant, lost_tokens)

    def engine_figures(self, figures: EngineFigures, asked_at: float, now: float) -> None:
        """A reading of the engine's metrics that was asked for at ``asked_at``."""
        gate = self.gate
        if gate is None:
            return
        self.places.engine_blocks(figures.kv_blocks, figures.kv_block_tokens)
        gate.engine_metrics(figures.running, figures.waiting, figures.kv_used_ratio, now)
        for ticket in [t for t in self._opaque if (t.request.dispatched or 0.0) <= asked_at]:
            if figures.waiting != 0:
                ticket.empty_engine_readings = 0
                continue
            ticket.empty_engine_readings += 1
            if ticket.empty_engine_readings >= 2:
                self.started(ticket, now)
        self._pump(now)
