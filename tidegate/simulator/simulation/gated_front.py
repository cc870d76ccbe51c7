"""What rivals that order requests before the engine share: one queue behind the production gate.

A rival says in which order requests go and what they are charged; when one may go is the gate's
word, as for ours, so that the orders are compared and not how late they bind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
from tidegate.simulator.simulation.request import SimRequest


class GatedFront(ABC):
    """One queue of all tenants; a subclass orders it."""

    def __init__(self, policy: Policy) -> None:
        self._gate = Gate(policy.engine)
        self._queued: Counter[str] = Counter()

    @abstractmethod
    def _enqueue(self, request: SimRequest) -> None:
        """It waits from now on."""

    @abstractmethod
    def _waits(self) -> bool:
        """Whether any request waits."""

    @abstractmethod
    def _send_next(self, now: float) -> SimRequest:
        """Send the next one to the engine and charge for it; one waits."""

    @abstractmethod
    def _computed(self, events: StepEvents) -> None:
        """A step did that: charge for it, unless all was charged before."""

    def attach(self, group: Group) -> None:
        self._group = group

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        if not self._group.fits(request):
            return Outcome.ENGINE_REFUSED
        self._enqueue(request)
        self._queued[request.tier] += 1
        self._pump(now)
        return None

    def _pump(self, now: float) -> None:
        while self._waits() and self._gate.is_open():
            request = self._send_next(now)
            self._queued[request.tier] -= 1
            self._gate.dispatched(request.id, 1, request.planned.prompt_tokens)

    def stepped(self, events: StepEvents, now: float) -> None:
        self._gate.step(self._waits())
        for request in events.started:
            self._gate.started(request.id)
        self._computed(events)
        for request in events.finished:
            self._gate.ended(request.id)
        self._pump(now)

    def tick(self, now: float) -> Ended:
        engine = self._group.engine
        used = engine.kv.held_blocks / engine.kv.total_blocks
        self._gate.engine_metrics(len(engine.running), len(engine.waiting), used)
        self._pump(now)
        return ()

    def queued(self) -> dict[str, int]:
        return dict(self._queued)

    def notes(self) -> dict[str, float]:
        return {"gate window": float(self._gate.window)}
