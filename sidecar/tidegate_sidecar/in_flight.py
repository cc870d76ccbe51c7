"""The requests that are in the engine, and all that is kept of them there.

Its entrance and the sources of its steps are told of the same few events, in an order that matters:
this module has them once. A step that ended is booked by the scheduler before the end that it
brought is told, and what waits gets its chance after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.scheduling.contracts import Policy, Task
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.entrance import Entrance, Preempt
from tidegate.scheduling.gates import Gates
from tidegate.scheduling.places import Places
from tidegate.scheduling.request import Request
from tidegate.scheduling.scheduler import Scheduler
from tidegate_sidecar.metrics_text import EngineFigures
from tidegate_sidecar.plugin_steps import PluginSteps
from tidegate_sidecar.ticket import Ticket
from tidegate_sidecar.token_gaps import TokenGaps


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
        self._entrance: Entrance[Ticket] | None = None
        self._opaque: set[Ticket] = set()
        self.gaps: TokenGaps | None = None
        """The engine's steps as its streams show them; unset where nothing streams."""
        self.places: Places[Ticket] = Places()
        self.plugin_steps = PluginSteps(self, clock) if plugin else None

    @property
    def gate(self) -> Gates | None:
        """Unset until a policy is in force."""
        return None if self._entrance is None else self._entrance.gates

    def begin(self, scheduler: Scheduler, policy: Policy) -> None:
        """The first policy is in force."""
        plugin = self.plugin_steps is not None
        self._entrance = Entrance(scheduler, self.places, policy, plugin=plugin)
        if policy.model.task is not Task.EMBED:
            self.gaps = TokenGaps(self)
            self.gaps.budget_tokens = scheduler.pace.step_tokens

    def apply_policy(self, scheduler: Scheduler, policy: Policy) -> None:
        """Another one is in force, the scheduler's too."""
        assert self._entrance is not None
        self._entrance.apply_policy(policy)
        if self.gaps is not None:
            self.gaps.budget_tokens = scheduler.pace.step_tokens

    # --- of one request

    def next(self, now: float, preempt: Preempt[Ticket]) -> Request | None:
        """The next of those that wait to go to the engine; None: nobody may."""
        assert self._entrance is not None
        return self._entrance.next(now, preempt)

    def arrived(self, request: Request, now: float) -> None:
        """It waits for its turn."""
        assert self._entrance is not None
        self._entrance.gates.arrived(request, now)

    def dispatched(self, ticket: Ticket, now: float) -> None:
        """It goes to the engine."""
        assert self._entrance is not None
        self._entrance.dispatched(ticket)
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

    def started(self, ticket: Ticket) -> None:
        """Its prompt is computed, as its first token shows or the plug-in tells."""
        assert self._entrance is not None
        self._opaque.discard(ticket)
        self._entrance.gates.started(ticket.request)

    def tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        """Tokens came; before they are counted on the ticket."""
        if self.gaps is not None:
            self.gaps.tokens(ticket, tokens, now)

    def left(self, ticket: Ticket, now: float) -> None:
        """It is in flight no more; its last step is reported before its end is."""
        assert self._entrance is not None
        if self.gaps is not None:
            self.gaps.ended(ticket, now)
        if self.plugin_steps is not None:
            self.plugin_steps.ended(ticket)
        self._opaque.discard(ticket)
        self._entrance.left(ticket, now)

    # --- of the engine: StepReports and StepsHost

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> None:
        """The engine ended a step."""
        assert self._entrance is not None
        now = self._clock()
        if self._entrance.stepped(seconds, rows, learn=learn):
            self._pump(now)

    def steps_are_told(self) -> None:
        """The token gaps need not report them."""
        if self.gaps is not None:
            self.gaps.mute()

    def engine_started(self, ticket: Ticket) -> None:
        """The plug-in tells that it decodes."""
        self.started(ticket)

    def kv_held(self, ratios: Mapping[str, float]) -> None:
        """What each tier holds of what it could hold, 0..1."""
        if self._entrance is not None:
            self._entrance.gates.kv_held(ratios)

    def preempted(self, tenant: str, lost_tokens: int) -> None:
        """The plug-in took one off."""
        self._preempted(tenant, lost_tokens)

    def engine_figures(self, figures: EngineFigures, asked_at: float, now: float) -> None:
        """A reading of the engine's metrics that was asked for at ``asked_at``."""
        if self._entrance is None:
            return
        self.places.engine_blocks(figures.kv_blocks, figures.kv_block_tokens)
        self._entrance.gates.engine_metrics(figures.running, figures.waiting, figures.kv_used_ratio)
        for ticket in [t for t in self._opaque if (t.request.dispatched or 0.0) <= asked_at]:
            if figures.waiting != 0:
                ticket.empty_engine_readings = 0
                continue
            ticket.empty_engine_readings += 1
            if ticket.empty_engine_readings >= 2:
                self.started(ticket)
        self._pump(now)
