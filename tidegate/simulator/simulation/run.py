"""The event loop: clients, fronts and engines in virtual time.

Events are arrivals (a front's timers count as such), ends of steps, and ticks (``TICK_SECONDS``:
expiry, metrics, samples). At one moment a step's end comes first and its engine begins the next
step before anything else happens; then arrivals; then idle engines begin. Ties are broken by the
order in which events were made, so the same workload, system and seed give the same result.

What has not completed when ``duration_seconds`` are over stays in the records as it is: not
started, or not finished.
"""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count

from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import StepResult
from tidegate.simulator.simulation.group import Group
from tidegate.simulator.simulation.request import SimRequest
from tidegate.simulator.simulation.result import EngineSummary, TimeSample
from tidegate.simulator.simulation.sampling import Sampler
from tidegate.workload.clients.client import Client, Workload
from tidegate.workload.requests import PlannedRequest

TICK_SECONDS = 0.5
"""How often the sidecar looks at its engine."""
_TICKS_PER_SAMPLE = 2
_TICKS_PER_PROGRESS = 120

_Event = Callable[[float], None]
"""Called with the time at which it is due."""
Route = Callable[[str], Group]
"""By tier."""
Progress = Callable[[float], None]
"""Told the virtual time reached, about once a simulated minute."""

_STEP, _ARRIVAL, _TICK = 0, 1, 2


class Simulation:
    """One run."""

    def __init__(
        self,
        groups: Sequence[Group],
        route: Route,
        workload: Workload,
        max_output_tokens: int,
    ) -> None:
        self.groups = groups
        self.records: list[SimRequest] = []
        self._route = route
        self._workload = workload
        self._max_output_tokens = max_output_tokens
        self._events: list[tuple[float, int, int, _Event]] = []
        self._order = count()
        self._busy: set[Group] = set()
        self._sampler = Sampler(groups, workload)
        self._samples: list[TimeSample] = []
        for group in groups:
            group.call_at = self._call_at

    def run(self, duration_seconds: float, progress: Progress | None = None) -> None:
        """Run to the end; once."""
        for client in self._workload.clients:
            self._next_arrival(client, client.arrivals())
        self._push(0.0, _TICK, partial(self._tick, 0, progress))
        with _no_garbage_passes():
            while self._events and self._events[0][0] <= duration_seconds:
                now, _, _, event = heapq.heappop(self._events)
                event(now)
                if not self._events or self._events[0][0] > now:
                    self._begin_steps(now)

    @property
    def samples(self) -> list[TimeSample]:
        """Taken so far."""
        return self._samples

    def _push(self, at: float, kind: int, event: _Event) -> None:
        heapq.heappush(self._events, (at, kind, next(self._order), event))

    def _call_at(self, at: float, event: _Event) -> None:
        self._push(at, _ARRIVAL, event)

    def _next_arrival(self, client: Client, source: Iterator[PlannedRequest]) -> None:
        planned = next(source, None)
        if planned is not None:
            assert planned.at_seconds is not None
            self._push(planned.at_seconds, _ARRIVAL, partial(self._arrive, client, planned, source))

    def _arrive(
        self,
        client: Client,
        planned: PlannedRequest,
        source: Iterator[PlannedRequest] | None,
        now: float,
    ) -> None:
        request = SimRequest(
            id=f"{client.name}/{planned.index}",
            client=client,
            planned=planned,
            tier=client.tier,
            arrival=now,
            max_output_tokens=max(self._max_output_tokens, planned.output_tokens),
        )
        self.records.append(request)
        group = self._route(request.tier)
        request.group = group.name
        refusal = group.front.submit(request, now)
        if refusal is not None:
            self._refuse(request, refusal, now)
        if source is not None:
            self._next_arrival(client, source)

    def _refuse(self, request: SimRequest, outcome: Outcome, now: float) -> None:
        request.outcome = outcome
        request.finished = now
        self._follow_up(request, now)

    def _follow_up(self, request: SimRequest, now: float) -> None:
        completed = request.outcome is Outcome.COMPLETED
        planned = request.client.follow_up(request.planned, now, completed)
        if planned is not None:
            assert planned.at_seconds is not None
            arrive = partial(self._arrive, request.client, planned, None)
            self._push(planned.at_seconds, _ARRIVAL, arrive)

    def _end_step(
        self, group: Group, step: StepResult, rows: list[RequestStep], now: float
    ) -> None:
        self._busy.discard(group)
        self._begin(group, now)
        for request in group.step_ended(step, rows, now):
            self._follow_up(request, now)

    def _begin(self, group: Group, now: float) -> None:
        if group.engine.has_work:
            self._busy.add(group)
            step = group.engine.step(now)
            end = partial(self._end_step, group, step, group.rows_of(step))
            self._push(step.ends_at, _STEP, end)

    def _begin_steps(self, now: float) -> None:
        for group in self.groups:
            if group not in self._busy:
                self._begin(group, now)

    def _tick(self, number: int, progress: Progress | None, now: float) -> None:
        for group in self.groups:
            for request, outcome in group.front.tick(now):
                self._refuse(request, outcome, now)
        if number % _TICKS_PER_SAMPLE == 0:
            self._samples.append(self._sampler.take(now))
        if progress is not None and number % _TICKS_PER_PROGRESS == 0:
            progress(now)
        number += 1
        self._push(number * TICK_SECONDS, _TICK, partial(self._tick, number, progress))


def engine_summary(groups: Sequence[Group]) -> EngineSummary:
    """Totals over all engines."""
    summary = EngineSummary()
    for group in groups:
        totals = group.engine.totals
        summary.steps += totals.steps
        summary.generation_tokens += totals.generation_tokens
        summary.prompt_tokens += totals.prompt_tokens
        summary.preemptions += totals.preemptions + group.recalls
        summary.recomputed_tokens += totals.recomputed_tokens
        summary.prefix_queries_tokens += totals.prefix_queries_tokens
        summary.prefix_hits_tokens += totals.prefix_hits_tokens
        summary.busy_seconds += group.busy_seconds
    return summary


def notes(groups: Sequence[Group]) -> dict[str, float]:
    """What the fronts have to say."""
    said: Counter[str] = Counter()
    for group in groups:
        prefix = f"{group.name}: " if len(groups) > 1 else ""
        said.update({f"{prefix}{name}": value for name, value in group.front.notes().items()})
    return dict(said)


@contextmanager
def _no_garbage_passes() -> Iterator[None]:
    """No cycles are made here, and a pass over all records would take longer than a step."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
