"""Start-time fair queueing and post-paid deficit round robin as policies, with their variants.

What they have in common is when a request is charged, which is what the variants differ in: at
admission its prompt and the output that a predictor expects; while it streams what goes beyond
that; at its end the difference to the truth. (``while_streaming=False``: all of it at the end.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from tidegate.simulator.service_gap import INPUT_PRICE, OUTPUT_PRICE
from tidegate.simulator.slora.request import Job


class Discipline(Protocol):
    """Whose turn it is, by what each was charged."""

    def push(self, tenant: str, item: Job) -> None:
        """It waits."""

    def first(self) -> Job | None:
        """The next, left in its place."""

    def pop(self, cost: float = 0.0) -> Job:
        """Take it out."""

    def charge(self, tenant: str, cost: float) -> None:
        """More, or negative: less."""


class Predictor(Protocol):
    """Expects outputs; in tokens."""

    def expect(self, job: Job) -> float:
        """At admission."""

    def observe(self, job: Job) -> None:
        """At its end."""


class NoPrediction:
    """Expects nothing: the output is charged as it shows."""

    def expect(self, job: Job) -> float:
        return 0.0

    def observe(self, job: Job) -> None:
        pass


class Oracle(NoPrediction):
    """Knows."""

    def expect(self, job: Job) -> float:
        return float(job.output_tokens)


class MovingAverage:
    """Of the tenant's ended requests, as the artifact's predictor; 0 at first."""

    def __init__(self, window: int = 5) -> None:
        self._window = window
        self._expected: dict[str, float] = {}

    def expect(self, job: Job) -> float:
        return self._expected.get(job.tenant, 0.0)

    def observe(self, job: Job) -> None:
        old = self._expected.get(job.tenant)
        new = float(job.output_tokens)
        self._expected[job.tenant] = new if old is None else old + (new - old) / self._window


class MeanOfLast:
    """Of the tenant's last outputs; of everybody's while it has none, then of a prior."""

    PRIOR = 256.0

    def __init__(self, number: int = 32) -> None:
        self._number = number
        self._last: dict[str, deque[int]] = {}
        self._all: deque[int] = deque(maxlen=number)

    def expect(self, job: Job) -> float:
        last = self._last.get(job.tenant) or self._all
        return sum(last) / len(last) if last else self.PRIOR

    def observe(self, job: Job) -> None:
        self._last.setdefault(job.tenant, deque(maxlen=self._number)).append(job.output_tokens)
        self._all.append(job.output_tokens)


class DeficitRing:
    """Post-paid deficit round robin as it is usually spun: a ring of the tenants that wait.

    At the beginning of its turn a tenant gets a quantum; it is served while it has credit, may
    overdraw it, and then goes to the end of the ring. One whose queue runs empty leaves and loses
    its credit, not its debt.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._queues: dict[str, deque[Job]] = {}
        self._credit: dict[str, float] = {}
        self._ring: deque[str] = deque()
        self._turn: str | None = None
        """Whose turn has begun."""

    def push(self, tenant: str, item: Job) -> None:
        queue = self._queues.setdefault(tenant, deque())
        self._credit.setdefault(tenant, 0.0)
        if not queue and tenant not in self._ring:
            self._ring.append(tenant)
        queue.append(item)

    def first(self) -> Job | None:
        ring = self._ring
        while ring:
            tenant = ring[0]
            if not self._queues[tenant]:
                ring.popleft()
                self._credit[tenant] = min(0.0, self._credit[tenant])
                self._turn = None if self._turn == tenant else self._turn
                continue
            if self._turn != tenant:
                self._turn = tenant
                self._credit[tenant] += self._quantum
            if self._credit[tenant] > 0:
                return self._queues[tenant][0]
            ring.rotate(-1)
            self._turn = None
        return None

    def pop(self, cost: float = 0.0) -> Job:
        job = self.first()
        if job is None:
            raise IndexError("nothing waits")
        self._queues[job.tenant].popleft()
        self.charge(job.tenant, cost)
        return job

    def charge(self, tenant: str, cost: float) -> None:
        self._credit[tenant] -= cost


class FairQueueing:
    """A discipline with a predictor, as a policy of the engine."""

    def __init__(
        self, discipline: Discipline, predictor: Predictor, while_streaming: bool = True
    ) -> None:
        self._discipline = discipline
        self._predictor = predictor
        self._while_streaming = while_streaming
        self._charged: dict[Job, float] = {}
        """Output tokens of the running ones."""
        self._produced: dict[Job, int] = {}

    def arrive(self, job: Job, now: float) -> bool:
        self._discipline.push(job.tenant, job)
        return True

    def head(self, now: float) -> Job | None:
        return self._discipline.first()

    def admit(self, job: Job, now: float) -> None:
        expected = self._predictor.expect(job)
        self._discipline.pop(INPUT_PRICE * job.prompt_tokens + OUTPUT_PRICE * expected)
        self._charged[job] = expected
        self._produced[job] = 1  # by the prefill

    def decode(self, running: Iterable[Job], now: float) -> None:
        for job in running:
            self._produced[job] += 1
            excess = self._produced[job] - self._charged[job]
            if self._while_streaming and excess > 0:
                self._discipline.charge(job.tenant, OUTPUT_PRICE * excess)
                self._charged[job] += excess

    def finish(self, ended: Sequence[Job], batch: Iterable[Job], now: float) -> None:
        for job in ended:
            del self._produced[job]
            owed = job.output_tokens - self._charged.pop(job)
            self._discipline.charge(job.tenant, OUTPUT_PRICE * owed)
            self._predictor.observe(job)
