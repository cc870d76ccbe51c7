"""Builders and a small deterministic engine, in virtual time, for the tests of the core.

They are session fixtures that give functions and classes, because hypothesis calls a test many
times within one set of fixtures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Fairness,
    FairnessUnit,
    ModelPolicy,
    Policy,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.request import Request


def policy(
    tiers: list[TierPolicy] | None = None,
    tenants: dict[str, Any] | None = None,
    generation: int = 1,
    **fields: Any,
) -> Policy:
    """A policy; ``tenants``: name -> tier, or a dict of a TenantPolicy's fields."""
    if tiers is None:
        tiers = [TierPolicy(name="standard")]
    rows = []
    for name, row in (tenants or {}).items():
        wanted = {"tier": row} if isinstance(row, str) else row
        rows.append(TenantPolicy(**({"name": name, "tier": tiers[0].name} | wanted)))
    return Policy(
        version=POLICY_VERSION,
        generation=generation,
        pool="test/pool",
        model=ModelPolicy(name="model"),
        tiers=tuple(tiers),
        tenants=tuple(rows),
        **fields,
    )


def request(id: str, tenant: str, prompt: int = 100, output: int = 100, **fields: Any) -> Request:
    """A request of ``prompt`` tokens that may produce ``output``."""
    return Request(id=id, tenant=tenant, prompt_tokens=prompt, max_output_tokens=output, **fields)


def tier(
    name: str = "standard", unit: str = "Requests", quantum: int = 1, **fields: Any
) -> TierPolicy:
    """A tier; fairness by ``unit`` and ``quantum``."""
    return TierPolicy(
        name=name, fairness=Fairness(unit=FairnessUnit(unit), quantum=quantum), **fields
    )


@dataclass
class Job:
    """One sequence in the engine."""

    id: str
    prompt: int
    output: int
    arrived_step: int
    arrived: float
    prefilled: int = 0
    produced: int = 0
    recomputed: int = 0
    """Produced tokens that became part of its prompt when it was preempted."""
    scheduled: bool = False


@dataclass
class StepEvents:
    """What one step gave: tokens (ids, in the order of the batch) and ends."""

    tokens: list[str] = field(default_factory=list)
    first_tokens: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class ToyEngine:
    """Continuous batching by steps: decodes first, then prefill chunks, first come first served.

    KV is counted in tokens; a job enters when its prompt fits. When a decode does not fit, the
    youngest running job loses its KV and starts anew, as vLLM does.
    """

    def __init__(self, seats: int, budget: int = 2048, kv_tokens: int = 10**9) -> None:
        self.seats, self.budget, self.kv_tokens = seats, budget, kv_tokens
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.kv_used = 0
        self.step_number = 0
        self.now = 0.0
        self.waits_steps: list[int] = []
        self.served: list[tuple[float, str, int]] = []
        """(time, id, tokens) of each piece of work."""
        self.idle_steps = 0.0
        """Sum over steps of the share of seats that stayed empty though they could be filled."""
        self.preemptions = 0

    def submit(self, id: str, prompt: int, output: int) -> None:
        self.waiting.append(Job(id, prompt, output, self.step_number, self.now))

    def form(self, host_has_work: bool) -> tuple[list[tuple[Job, int]], float]:
        """The next step's batch (job, prefill tokens; 0: a decode) and how long it takes."""
        self.step_number += 1
        budget = self.budget
        self._make_room()
        batch: list[tuple[Job, int]] = []
        for job in self.running:
            if job.prefilled == job.prompt:
                batch.append((job, 0))
                self.kv_used += 1
                budget -= 1
            elif budget > 0:
                budget -= self._prefill(job, budget, batch)
        while self.waiting and len(self.running) < self.seats and budget > 0:
            job = self.waiting[0]
            if self.kv_used + self._reserved() + job.prompt > self.kv_tokens and self.running:
                break
            self.waiting.popleft()
            self.running.append(job)
            budget -= self._prefill(job, budget, batch)
            if not job.scheduled:
                job.scheduled = True
                self.waits_steps.append(self.step_number - job.arrived_step)
        typical = max((job.prompt for job in self.running), default=1)
        free = self.kv_tokens - self.kv_used - self._reserved()
        if host_has_work and not self.waiting and budget > 0 and free >= typical:
            self.idle_steps += (self.seats - len(self.running)) / self.seats
        prefill = sum(chunk for _, chunk in batch)
        return batch, 0.008 + 40e-6 * prefill + 20e-6 * len(batch)

    def _prefill(self, job: Job, budget: int, batch: list[tuple[Job, int]]) -> int:
        chunk = min(job.prompt - job.prefilled, budget)
        batch.append((job, chunk))
        self.kv_used += chunk
        return chunk

    def _reserved(self) -> int:
        """KV that admitted prompts still need."""
        return sum(job.prompt - job.prefilled for job in self.running)

    def _make_room(self) -> None:
        """For one token of each decode: the youngest loses all it holds and starts anew."""
        while len(self.running) > 1 and self.kv_used + len(self.running) > self.kv_tokens:
            victim = self.running.pop()
            self.kv_used -= victim.prefilled + victim.produced - victim.recomputed
            victim.prompt += victim.produced - victim.recomputed
            victim.recomputed = victim.produced
            victim.prefilled = 0
            self.waiting.appendleft(victim)
            self.preemptions += 1

    def complete(self, batch: list[tuple[Job, int]]) -> StepEvents:
        """Let the batch have happened."""
        events = StepEvents()
        for job, chunk in batch:
            if chunk:
                job.prefilled += chunk
                self.served.append((self.now, job.id, chunk))
                if job.prefilled < job.prompt:
                    continue
                self.kv_used += 1
            if job.produced == 0:
                events.first_tokens.append(job.id)
            job.produced += 1
            self.served.append((self.now, job.id, 1))
            events.tokens.append(job.id)
            if job.produced >= job.output:
                self.kv_used -= job.prefilled + job.produced - job.recomputed
                events.ended.append(job.id)
        if events.ended:
            gone = set(events.ended)
            self.running = [job for job in self.running if job.id not in gone]
        return events

    def run(
        self,
        on_step: Callable[[StepEvents], None],
        host_has_work: Callable[[], bool],
        until: Callable[[], bool],
    ) -> None:
        """Steps back to back: the host hears of a step while the next one already runs."""
        events: StepEvents | None = None
        while not until():
            batch, duration = self.form(host_has_work())
            if events is not None:
                on_step(events)
            elif not batch:
                raise AssertionError("nothing to run and nothing to wait for")
            if not batch:
                events = StepEvents()
                on_step(events)
                batch, duration = self.form(host_has_work())
                if not batch:
                    return
            self.now += duration
            events = self.complete(batch)
        if events is not None:
            on_step(events)


@pytest.fixture(scope="session")
def build() -> SimpleNamespace:
    """Builders: ``policy``, ``request``, ``tier``, ``engine``."""
    return SimpleNamespace(policy=policy, request=request, tier=tier, engine=ToyEngine)
