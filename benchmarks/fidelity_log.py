"""The notes of real vLLM's scheduler, read: arrivals, steps, and the figures that follow from them.

A step's duration is from its start to the start of the next one while requests are left, so that
all steps add up to the time the engine was busy; the last one before the engine falls idle lasts
until its tokens were taken in. A request's first token leaves with the step in which its prompt is
computed to its end. Tokens count as computed again from what a victim lost, less what it still hit
when it came back.

Two clocks. On the wall's, a request arrives when it comes into the API process; on the engine's,
when it comes into the engine's process. The engine's stands still while something else has its
core: within a step it is the processor time of the engine's thread, between a step and an arrival
at an idle engine the wall's. On a quiet machine they go alike; on a busy one the engine's clock
still says what this engine does with these arrivals, which is what its model can be judged by.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Row(NamedTuple):
    """What a step computes of one request."""

    name: str
    computed: int
    tokens: int


@dataclass(slots=True)
class Arrival:
    """A request, as vLLM took it; `before_step` is the first step that could serve it.

    `ranked_at` is what vLLM orders by, `reached_at` when the engine's process had it.
    """

    name: str
    arrived_at: float
    ranked_at: float
    reached_at: float
    prompt_tokens: int
    output_tokens: int
    priority: int
    before_step: int


@dataclass(slots=True)
class Step:
    """A step of the engine, with its start and end on the processor clock of the engine's thread.

    `followed`: another step came right behind it.
    """

    started_at: float
    ended_at: float
    processor_started: float
    processor_ended: float
    rows: list[Row]
    preempted: list[tuple[str, int]]
    duration_seconds: float = 0.0
    followed: bool = False
    decode_rows: int = 0
    kv_tokens_read: int = 0
    attention_pairs: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


@dataclass(slots=True)
class Outcome:
    """The figures of a run: of real vLLM, or of the model."""

    first_token_seconds: dict[str, float]
    makespan_seconds: float
    generated_tokens: int
    preemptions: int
    recomputed_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.generated_tokens / self.makespan_seconds


@dataclass(slots=True)
class Notes:
    """A run's arrivals and steps, and what follows from them."""

    arrivals: list[Arrival]
    steps: list[Step]
    outcome: Outcome
    idle_starts: list[tuple[int, float]] = field(default_factory=list)
    """Of arrivals that found the engine idle: prompt tokens, and seconds until their step began."""

    @property
    def busy_seconds(self) -> float:
        """All steps together."""
        return sum(step.duration_seconds for step in self.steps)

    def on_engine_clock(self) -> Notes:
        """The same on the clock that stands still while something else has the engine's core."""
        starts, steps = self._engine_starts(), []
        for step, start in zip(self.steps, starts, strict=True):
            end = start + step.processor_ended - step.processor_started
            steps.append(replace(step, started_at=start, ended_at=end))
        arrivals = [
            replace(a, arrived_at=self._engine_time(a.reached_at, starts)) for a in self.arrivals
        ]
        return _Reader(arrivals, steps).read()

    def _engine_starts(self) -> list[float]:
        starts = [self.steps[0].started_at]
        for step, following in itertools.pairwise(self.steps):
            spent = following.processor_started - step.processor_started
            if not step.followed:
                spent = step.processor_ended - step.processor_started
                spent += following.started_at - step.ended_at
            starts.append(starts[-1] + spent)
        return starts

    def _engine_time(self, moment: float, starts: list[float]) -> float:
        """A moment of the wall clock; within a step both clocks go evenly."""
        index = bisect.bisect_right(self.steps, moment, key=lambda step: step.started_at)
        if index == 0:
            return starts[0] - (self.steps[0].started_at - moment)
        step, start = self.steps[index - 1], starts[index - 1]
        if index == len(self.steps) or step.followed:
            length = step.processor_ended - step.processor_started
            if index < len(self.steps):
                length = starts[index] - start
            return start + length * min((moment - step.started_at) / step.duration_seconds, 1.0)
        if moment <= step.ended_at:
            share = (moment - step.started_at) / (step.ended_at - step.started_at)
            return start + share * (step.processor_ended - step.processor_started)
        return starts[index] - (self.steps[index].started_at - moment)


def read_notes(lines: Iterable[str]) -> Notes:
    """The notes of one run, from its first arrival to its last token. ValueError: there is none."""
    arrivals: list[Arrival] = []
    steps: list[Step] = []
    for line in lines:
        note = json.loads(line)
        if "step" in note:
            start, end, processor_start, processor_end = note["step"]
            rows = [Row(_name(name), computed, tokens) for name, computed, tokens in note["rows"]]
            preempted = [(_name(name), lost) for name, lost in note["preempted"]]
            steps.append(Step(start, end, processor_start, processor_end, rows, preempted))
        else:
            arrivals.append(
                Arrival(
                    name=_name(note["id"]),
                    arrived_at=note["arrived"],
                    ranked_at=note["arrived"],
                    reached_at=note["reached"],
                    prompt_tokens=note["prompt"],
                    output_tokens=note["output"],
                    priority=note["priority"],
                    before_step=len(steps),
                )
            )
    if not arrivals or not steps:
        raise ValueError("vLLM noted no request")
    return _Reader(arrivals, steps).read()


def _name(request_id: str) -> str:
    """`cmpl-NAME.RUN-0-abc` as NAME."""
    return request_id.removeprefix("cmpl-").partition(".")[0]


class _Reader:
    """Follows each request through the steps."""

    def __init__(self, arrivals: list[Arrival], steps: list[Step]) -> None:
        self._arrivals, self._steps = arrivals, steps
        self._known = {a.name: a.prompt_tokens for a in arrivals}
        self._left = {a.name: a.output_tokens for a in arrivals}
        self._lost: dict[str, int] = {}
        self._recomputed = 0
        self._first: dict[str, float] = {}

    def read(self) -> Notes:
        by_name = {a.name: a for a in self._arrivals}
        idle_starts: list[tuple[int, float]] = []
        arrived = iter(self._arrivals)
        waiting = next(arrived, None)
        live = 0
        for number, step in enumerate(self._steps):
            was_idle = live == 0
            while waiting is not None and waiting.before_step <= number:
                if was_idle:
                    idle_starts.append(
                        (waiting.prompt_tokens, step.started_at - waiting.arrived_at)
                    )
                    was_idle = False
                live += 1
                waiting = next(arrived, None)
            step.decode_rows = step.kv_tokens_read = 0
            step.attention_pairs = 0.0
            live -= self._follow(step, by_name)
            following = self._steps[number + 1] if number + 1 < len(self._steps) else None
            step.followed = following is not None and live > 0
            end = following.started_at if following and step.followed else step.ended_at
            step.duration_seconds = end - step.started_at
        outcome = Outcome(
            first_token_seconds=self._first,
            makespan_seconds=self._steps[-1].ended_at - self._arrivals[0].arrived_at,
            generated_tokens=sum(a.output_tokens for a in self._arrivals),
            preemptions=sum(len(step.preempted) for step in self._steps),
            recomputed_tokens=self._recomputed,
        )
        return Notes(self._arrivals, self._steps, outcome, idle_starts)

    def _follow(self, step: Step, by_name: dict[str, Arrival]) -> int:
        """Count what the step reads and finishes; how many requests ended."""
        ended = 0
        for name, lost in step.preempted:
            self._lost[name] = lost
        for name, computed, tokens in step.rows:
            known = self._known[name]
            self._recomputed += max(self._lost.pop(name, 0) - computed, 0)
            if computed + 1 == known and known > by_name[name].prompt_tokens:
                step.decode_rows += 1
                step.kv_tokens_read += computed + tokens
            else:
                step.attention_pairs += tokens * (computed + tokens / 2)
            if computed + tokens < known:
                continue
            self._first.setdefault(name, step.ended_at - by_name[name].arrived_at)
            self._known[name] += 1
            self._left[name] -= 1
            ended += self._left[name] == 0
        return ended


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the nearest ranks. ValueError: no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
