"""No front: nothing stands before the engine."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.simulation.group import Ended, Group, StepEvents
from tidegate.simulator.simulation.request import SimRequest


class DirectFront:
    """What arrives is sent, with its tier's priority."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        self._priorities = priorities

    def attach(self, group: Group) -> None:
        self._group = group

    def submit(self, request: SimRequest, now: float) -> Outcome | None:
        if not self._group.fits(request):
            return Outcome.ENGINE_REFUSED
        self._group.send(request, self._priorities.get(request.tier, 0), now)
        return None

    def stepped(self, events: StepEvents, now: float) -> None:
        pass

    def tick(self, now: float) -> Ended:
        return ()

    def queued(self) -> dict[str, int]:
        return {}

    def notes(self) -> dict[str, float]:
        return {}
