"""The production sidecar's scheduling in virtual time: the same scheduler, gates and places.

``SidecarFront`` does what ``tidegate_sidecar.dispatcher`` does, without its event loop: submit,
pump while the ``entrance`` lets one through, tell it of steps, starts and ends, tell the scheduler
of progress in portions, settle with the engine's usage, and where there is no plug-in take off the
engine whoever is to make way and bring it back after its recompute back-off.

Of what the sidecar must estimate, this one is told the truth: a prompt's size, what each request
did in a step, and how much of a prompt is computed. A gate beside a plug-in is told by the
plug-in's statistics what its tier holds of what its KV pool may hold.

Invariant: a request is queued, in the engine, backing off or ended, and ends once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.entrance import Entrance
from tidegate.scheduling.finish_time import Skew
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.places import Places
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
from tidegate.simulator.simulation.plugin import PluginHook
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.simulation.step_rows import StepRows


class _Ticket:
    """A request in the sidecar's hands; ``tidegate.scheduling.occupant.Occupant``."""

    __slots__ = ("caused_by", "preemptions", "request", "sent")

    def __init__(self, request: Request, sent: SimRequest) -> None:
        self.request = request
        self.sent = sent
        self.preemptions = 0
        """By the sidecar."""
        self.caused_by: str | None = None
        """The tier for which it was last."""

    @property
    def output_tokens(self) -> int:
        return 0 if self.sent.engine is None else self.sent.engine.output_tokens

    @property
    def unfilled_tokens(self) -> int:
        engine = self.sent.engine
        return 0 if engine is None else max(engine.prompt_tokens - engine.computed_tokens, 0)

    @property
    def first_token_at(self) -> float | None:
        return self.sent.first_token

    @property
    def evictable(self) -> bool:
        return self.sent.first_token is None


class SidecarFront:
    """Before one engine; ``plugin`` where it has one."""

    def __init__(
        self, policy: Policy, priorities: Mapping[str, int], plugin: PluginHook | None = None
    ) -> None:
        self._priorities = priorities
        self._plugin = plugin
        self._scheduler = Scheduler(policy, 0.0, timed=True)
        self._places: Places[_Ticket] = Places()
        self._entrance = Entrance(self._scheduler, self._places, policy, plugin=plugin is not None)
        self._tickets: dict[str, _Ticket] = {}
        self._skews: list[Skew] = []

    def attach(self, group: Group) -> None:
        self._group = group
        plugin = self._plugin
        group.step_rows = StepRows(_nobody if plugin is None else plugin.cause_of)
        config = group.engine.config
        self._places.engine_blocks(config.num_gpu_blocks, config.block_size)

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        job = Request(
            request.id, request.tenant, request.planned.prompt_tokens, request.max_output_tokens
        )
        refusal = self._scheduler.submit(job, now)
        if refusal is not None:
            return refusal
        if job.prompt_tokens < request.planned.prompt_tokens:
            request.truncate(job.prompt_tokens)
        if not self._group.fits(request):
            self._scheduler.cancel(request.id, now)
            return Outcome.ENGINE_REFUSED
        self._entrance.gates.arrived(job, now)
        self._tickets[request.id] = _Ticket(job, request)
        self._pump(now)
        return None

    def _pump(self, now: float) -> None:
        scheduler = self._scheduler
        while scheduler.has_work():
            job = self._entrance.next(now, self._preempt)
            if job is None:
                return
            self._dispatch(self._tickets[job.id], now)

    def _dispatch(self, ticket: _Ticket, now: float) -> None:
        request, job = ticket.sent, ticket.request
        if job.forecast is not None:
            request.est_finish = job.forecast.est_finish
        sequence = self._group.send(request, self._priorities.get(request.tier, 0), now)
        self._entrance.dispatched(ticket)
        if self._plugin is not None:
            assert job.sequence is not None
            self._plugin.arrived(request, sequence, job.sequence, job.expected_output_tokens)

    def _preempt(self, ticket: _Ticket, caused_by: str, now: float) -> bool:
        """Take it off the engine, to come back after a while; False: it has just ended."""
        if not self._group.recall(ticket.sent, now):
            return False
        ticket.preemptions += 1
        ticket.caused_by = caused_by
        self._entrance.left(ticket, now)
        seconds = self._places.backoff_seconds(ticket.request, self._scheduler.queued())
        self._group.call_at(now + seconds, lambda then: self._come_back(ticket, then))
        return True

    def _come_back(self, ticket: _Ticket, now: float) -> None:
        lost = self._scheduler.requeue(ticket.request.id, now, ticket.caused_by)
        assert lost is None, "the policy stays the same"
        self._pump(now)

    def stepped(self, events: StepEvents, now: float) -> None:
        entrance, scheduler = self._entrance, self._scheduler
        entrance.stepped(events.step.duration_seconds, events.rows)
        for request in events.started:
            entrance.gates.started(self._tickets[request.id].request)
            self._tell(request, now)
        for request in events.progressed:
            self._tell(request, now)
        for request in events.finished:
            ticket, engine = self._tickets.pop(request.id), request.engine
            assert engine is not None
            entrance.left(ticket, now)
            usage = Usage(engine.prompt_tokens, engine.output_tokens, engine.cached_tokens)
            scheduler.finish(request.id, usage, now)
            forecast = ticket.request.forecast
            if forecast is not None and forecast.skew is not None:
                self._skews.append(forecast.skew)
        self._pump(now)

    def _tell(self, request: SimRequest, now: float) -> None:
        assert request.engine is not None
        tokens = request.engine.output_tokens
        self._scheduler.progress(request.id, tokens - request.told_tokens, now)
        request.told_tokens = tokens

    def tick(self, now: float) -> Ended:
        engine = self._group.engine
        gates = self._entrance.gates
        if self._plugin is None:
            used = engine.kv.held_blocks / engine.kv.total_blocks
            gates.engine_metrics(len(engine.running), len(engine.waiting), used)
        else:
            gates.kv_held(self._plugin.kv_ratios())
        expired = [
            (self._tickets.pop(job.id).sent, outcome)
            for job, outcome in self._scheduler.expire(now)
        ]
        self._pump(now)
        return expired

    def queued(self) -> dict[str, int]:
        sent = (ticket.sent for ticket in self._tickets.values())
        return dict(Counter(request.tier for request in sent if request.dispatched is None))

    def notes(self) -> dict[str, float]:
        said = {"gate window": float(self._entrance.gates.window)}
        if self._plugin is not None:
            said |= {f"vetoed {why}": float(n) for why, n in self._plugin.vetoes.items()}
        said |= skew_notes(self._skews)
        return said


def skew_notes(skews: Sequence[Skew]) -> dict[str, float]:
    """How many finish estimates there were, how many were flagged, and why."""
    if not skews:
        return {}
    causes = Counter(f"skew flagged, {one.cause}" for one in skews if one.cause is not None)
    ordered = sorted(one.ratio for one in skews)
    return {
        "skew estimates": float(len(skews)),
        **{f"skew p{p}": ordered[int((len(ordered) - 1) * p / 100)] for p in (5, 50, 90, 95)},
        **{cause: float(count) for cause, count in causes.items()},
    }


def _nobody(request_id: str) -> str | None:
    """Without a plug-in the engine does not say for whom a request was preempted."""
    return None
