"""Pods in virtual time: production schedulers before even engines, which tell each other or not.

Every tenant of a pod always has requests waiting there, of prompts of any length up to ``longest``
and ``OUTPUT_TOKENS`` of output, so what is given is what the schedulers decide.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Fairness,
    ModelPolicy,
    Policy,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.deficit_round_robin import difference_bound
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler

INTERVAL_SECONDS = 0.05
QUANTUM = 2_048
TOKENS_PER_SECOND = 10_000
"""Of one pod; an interval holds a quarter of a quantum."""
OUTPUT_TOKENS = 100
SEATS = 4
PINNED, SPREAD, OTHER = "pinned", "spread", "other"
TENANTS = (PINNED, SPREAD, OTHER)


@dataclass
class Pod:
    """A scheduler before an engine of ``SEATS`` seats that serves all at an even rate."""

    scheduler: Scheduler
    served: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TENANTS, 0.0))
    waiting: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TENANTS, 0))
    waits: list[float] = field(default_factory=list)
    """Of SPREAD: arrival to dispatch."""


class Fleet:
    """Pods, the requests that keep coming, and the exchange between those that are connected."""

    def __init__(self, places: list[set[str]], seed: int = 1, longest: int = 1_000) -> None:
        """``places``: the tenants that have requests waiting on each pod, all the time."""
        policy = Policy(
            POLICY_VERSION,
            generation=1,
            pool="bench/pool",
            model=ModelPolicy("model"),
            tiers=(TierPolicy("standard", fairness=Fairness(quantum=QUANTUM)),),
            tenants=tuple(TenantPolicy(name, "standard") for name in TENANTS),
        )
        self.pods = [Pod(Scheduler(policy, 0.0)) for _ in places]
        self.places = places
        self.connected: set[int] = set()
        self.longest = longest
        self.bound = difference_bound(QUANTUM, *[(longest + OUTPUT_TOKENS, 1)] * 2)
        self.now = 0.0
        self._lengths = [random.Random(f"{seed} {index}") for index in range(len(places))]
        self._ends: list[tuple[float, str, int, int]] = []
        self._requests = 0
        self._next_exchange = INTERVAL_SECONDS

    def connect(self, *pods: int) -> None:
        for index in pods:
            self.pods[index].scheduler.peers.join()
            self.connected.add(index)

    def cut(self) -> None:
        """The store is away: nobody hears anything."""
        for index in self.connected:
            self.pods[index].scheduler.peers.leave()
        self.connected = set()

    def submit(self, index: int, tenant: str, prompt_tokens: int) -> None:
        self._requests += 1
        request = Request(str(self._requests), tenant, prompt_tokens, OUTPUT_TOKENS)
        assert self.pods[index].scheduler.submit(request, self.now) is None
        self.pods[index].waiting[tenant] += 1

    def run(self, seconds: float) -> Iterator[dict[str, float]]:
        """What each tenant was served on all pods, whenever that changed."""
        until = self.now + seconds
        while self.now < until:
            for index, pod in enumerate(self.pods):
                self._fill(index, pod)
            ends = self._ends[0][0] if self._ends else until
            self.now = min(ends, self._next_exchange, until)
            if self.now == self._next_exchange:
                self._exchange()
            while self._ends and self._ends[0][0] <= self.now:
                _, id, index, prompt = heapq.heappop(self._ends)
                self.pods[index].scheduler.finish(id, Usage(prompt, OUTPUT_TOKENS), self.now)
            yield {name: sum(pod.served[name] for pod in self.pods) for name in TENANTS}

    def _fill(self, index: int, pod: Pod) -> None:
        while pod.scheduler.in_flight() < SEATS:
            for tenant in sorted(self.places[index]):
                while pod.waiting[tenant] < 2:  # so that its queue is never empty
                    self.submit(index, tenant, self._lengths[index].randint(50, self.longest))
            request = pod.scheduler.next(self.now)
            if request is None:
                return
            tokens = request.prompt_tokens + OUTPUT_TOKENS
            pod.waiting[request.tenant] -= 1
            pod.served[request.tenant] += tokens
            if request.tenant == SPREAD:
                pod.waits.append(self.now - request.arrival)
            ends = self.now + tokens * SEATS / TOKENS_PER_SECOND
            heapq.heappush(self._ends, (ends, request.id, index, request.prompt_tokens))

    def _exchange(self) -> None:
        self._next_exchange += INTERVAL_SECONDS
        told = {index: self.pods[index].scheduler.peers.given() for index in self.connected}
        for index in self.connected:
            peers = self.pods[index].scheduler.peers
            for other, rows in told.items():
                if other != index:
                    peers.heard(rows)
            peers.count()


def widest_gap(served: Sequence[dict[str, float]], one: str, other: str) -> float:
    """The greatest difference over all intervals within."""
    differences = [row[one] - row[other] for row in served]
    return max(differences) - min(differences)


def places(pods: int) -> list[set[str]]:
    """PINNED reaches the first pod alone, the others all of them; every pod is contended."""
    return [set(TENANTS), *({SPREAD, OTHER} for _ in range(pods - 1))]
