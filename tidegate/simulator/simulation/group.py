"""One engine and the front before it: what happens to requests between front and engine, by steps.

The engine starts its next step the moment a step ends; what the front does because of that end (a
dispatch into a seat that came free) takes part one step later, as in production. Network, tokenizer
and HTTP take no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import Engine, EngineRequest, StepResult
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.simulation.step_rows import StepRows

PROGRESS_TOKENS = 8
"""A front is told of output in portions, as the sidecar tells its scheduler."""

Ended = Sequence[tuple[SimRequest, Outcome]]
CallAt = Callable[[float, Callable[[float], None]], None]
"""Calls at a time, with that time."""


@dataclass(slots=True)
class StepEvents:
    """A step as a front sees it: which streams began, went on by a portion, and ended."""

    step: StepResult
    rows: list[RequestStep] = field(default_factory=list)
    """What each request did, for a front that asked for it."""
    started: list[SimRequest] = field(default_factory=list)
    progressed: list[SimRequest] = field(default_factory=list)
    finished: list[SimRequest] = field(default_factory=list)


class Front(Protocol):
    """What stands before an engine and decides when a request is sent there."""

    def attach(self, group: Group) -> None:
        """The group that it sends to; once, before anything else."""

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        """A request has arrived; not None: it is refused."""

    def stepped(self, events: StepEvents, now: float) -> None:
        """The engine has ended a step."""

    def tick(self, now: float) -> Ended:
        """Asked every ``TICK_SECONDS``; returned are queued requests that waited too long."""

    def queued(self) -> dict[str, int]:
        """Requests that wait here, by tier."""

    def notes(self) -> dict[str, float]:
        """Figures of its own for the result."""


class Group:
    """An engine, its front, and the requests that the engine has."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        front: Front,
        gpus: int,
        drafted_tiers: frozenset[str] | None = None,
    ) -> None:
        self.name = name
        self._drafted_tiers = drafted_tiers
        self.step_rows: StepRows | None = None
        """Set by a front that wants to know what each request did."""
        self.engine = engine
        self.front = front
        self.gpus = gpus
        self.busy_seconds = 0.0
        self.recalls = 0
        """Requests that the front took off the engine."""
        self.requests: dict[str, SimRequest] = {}
        """Sent to the engine and not ended, by id."""
        self.on_end: Callable[[EngineRequest, str, str], None] | None = None
        """Told (sequence, tier, tenant) of each request that ends."""
        self.call_at: CallAt = _no_clock
        """Set by the simulation that the group is in."""
        front.attach(self)

    def send(self, request: SimRequest, priority: int, now: float) -> EngineRequest:
        """Hand a request to the engine."""
        drafted = self._drafted_tiers is None or request.tier in self._drafted_tiers
        engine_request = request.to_engine(
            self.engine.config.block_size, priority, now, None if drafted else 0
        )
        request.group = self.name
        request.dispatched = now
        self.requests[request.id] = request
        self.engine.add(engine_request)
        return engine_request

    def recall(self, request: SimRequest, now: float) -> bool:
        """Take a request off the engine, whatever it has done for it; False: it has just ended."""
        assert request.engine is not None
        if not self.engine.abort(request.engine, now):
            return False
        del self.requests[request.id]
        request.dispatched = None
        self.recalls += 1
        return True

    def fits(self, request: SimRequest) -> bool:
        """Whether the engine could ever hold it."""
        planned = request.planned
        needed = planned.prompt_tokens + max(planned.output_tokens - 1, 0)
        return needed <= self.engine.config.kv_capacity_tokens

    def rows_of(self, step: StepResult) -> list[RequestStep]:
        """What each did in the step just made, where the front wants to know; else nothing."""
        return [] if self.step_rows is None else self.step_rows.of(step)

    def step_ended(self, step: StepResult, rows: list[RequestStep], now: float) -> list[SimRequest]:
        """Show a step's tokens to the front; returned are those that completed."""
        self.busy_seconds += step.duration_seconds
        events = StepEvents(step, rows)
        requests = self.requests
        for sequence in step.sampled:
            request = requests.get(sequence.request_id)
            if request is None or request.engine is not sequence:
                continue  # recalled during the step
            last = request.last_token
            if last is None:
                request.first_token = now
                events.started.append(request)
            elif now - last > request.itl_max_seconds:
                request.itl_max_seconds = now - last
            request.last_token = now
            if sequence.output_tokens - request.told_tokens >= PROGRESS_TOKENS:
                events.progressed.append(request)
        for sequence in step.finished:
            request = requests.pop(sequence.request_id)
            request.finished = now
            request.outcome = Outcome.COMPLETED
            if self.on_end is not None:
                self.on_end(sequence, request.tier, request.tenant)
            events.finished.append(request)
        self.front.stepped(events, now)
        return events.finished


def _no_clock(at: float, call: Callable[[float], None]) -> None:
    raise RuntimeError("the group is in no simulation")
