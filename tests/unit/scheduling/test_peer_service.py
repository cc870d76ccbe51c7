"""Fair shares over several pods, in virtual time: production schedulers that tell each other."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import FairnessUnit
from tidegate.scheduling.deficit_round_robin import difference_bound
from tidegate.scheduling.peer_service import CARRIED_QUANTA, Given
from tidegate.scheduling.request import Usage
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

    def __init__(
        self, build: SimpleNamespace, places: list[set[str]], seed: int = 1, longest: int = 1_000
    ) -> None:
        """``places``: the tenants that have requests waiting on each pod, all the time."""
        tiers = [build.tier(unit="Tokens", quantum=QUANTUM)]
        policy = build.policy(tiers, dict.fromkeys(TENANTS, "standard"))
        self._build = build
        self.policy = policy
        self.pods = [Pod(Scheduler(policy, 0.0)) for _ in places]
        self.places = places
        self.connected: set[int] = set()
        self.longest = longest
        self.bound = difference_bound(QUANTUM, *[(longest + OUTPUT_TOKENS, 1)] * 2)
        self.now = 0.0
        self._random = random.Random(seed)
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
        request = self._build.request(str(self._requests), tenant, prompt_tokens, OUTPUT_TOKENS)
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
                    self.submit(index, tenant, self._random.randint(50, self.longest))
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


def widest_gap(served: list[dict[str, float]], one: str, other: str) -> float:
    """The greatest difference over all intervals within."""
    differences = [row[one] - row[other] for row in served]
    return max(differences) - min(differences)


def places(pods: int) -> list[set[str]]:
    """PINNED reaches the first pod alone, the others all of them; every pod is contended."""
    return [set(TENANTS), *({SPREAD, OTHER} for _ in range(pods - 1))]


@pytest.mark.parametrize("pods", [2, 3])
@given(seed=st.integers(0, 999), longest=st.sampled_from([300, 1_000, 1_500]))
@settings(max_examples=4, deadline=None)
def test_one_pinned_to_a_pod_gets_what_one_gets_that_spreads_over_all(
    build: SimpleNamespace, pods: int, seed: int, longest: int
) -> None:
    fleet = Fleet(build, places(pods), seed, longest)
    fleet.connect(*range(pods))
    served = list(fleet.run(10))
    for one, other in ((PINNED, SPREAD), (PINNED, OTHER), (SPREAD, OTHER)):
        assert widest_gap(served, one, other) <= 1.5 * fleet.bound
    apart = Fleet(build, places(pods), seed, longest)
    assert widest_gap(list(apart.run(10)), PINNED, SPREAD) > 5 * fleet.bound


def test_what_an_idle_pod_gives_costs_nothing_on_the_busy_one(build: SimpleNamespace) -> None:
    waits = {}
    for name, reached in {
        "spread": [{PINNED, SPREAD}, {SPREAD}],
        "unspread": [{PINNED, SPREAD}, set()],
    }.items():
        fleet = Fleet(build, reached)
        fleet.connect(0, 1)
        for _ in fleet.run(20):
            pass
        waits[name] = mean(fleet.pods[0].waits)
    assert waits["spread"] <= 1.05 * waits["unspread"]


def test_cut_off_and_joining_pods_are_fair_each_by_itself(build: SimpleNamespace) -> None:
    everywhere = [{SPREAD, OTHER} for _ in range(3)]
    fleet = Fleet(build, everywhere, longest=600)
    fleet.connect(0, 1)
    served = list(fleet.run(5))
    fleet.connect(2)  # it joins
    served += fleet.run(5)
    fleet.cut()
    served += fleet.run(60)
    fleet.connect(0, 1, 2)
    served += fleet.run(5)
    assert widest_gap(served, SPREAD, OTHER) <= 3 * fleet.bound


def test_after_an_outage_nothing_of_it_is_repaid(build: SimpleNamespace) -> None:
    fleet = Fleet(build, places(2))
    fleet.connect(0, 1)
    list(fleet.run(5))
    fleet.cut()
    assert widest_gap(list(fleet.run(60)), PINNED, SPREAD) > 10 * fleet.bound
    fleet.connect(0, 1)
    assert widest_gap(list(fleet.run(20)), PINNED, SPREAD) <= 1.5 * fleet.bound


def test_a_late_or_wrong_report_costs_some_quanta_at_most(
    build: SimpleNamespace,
) -> None:
    fleet = Fleet(build, [{PINNED, SPREAD}])
    fleet.connect(0)
    list(fleet.run(2))
    peers = fleet.pods[0].scheduler.peers
    peers.heard([Given(SPREAD, FairnessUnit.TOKENS, 1e9), Given(PINNED, FairnessUnit.REQUESTS, 9)])
    peers.heard([Given("nobody", FairnessUnit.TOKENS, 5.0)])
    gap = widest_gap(list(fleet.run(20)), PINNED, SPREAD)
    forgiven = (CARRIED_QUANTA + 1) * QUANTUM
    assert forgiven - fleet.bound < gap <= forgiven + fleet.bound


def test_who_is_idle_here_owes_nothing_here(build: SimpleNamespace) -> None:
    fleet = Fleet(build, [{PINNED, OTHER}])
    fleet.connect(0)
    list(fleet.run(2))
    for _ in range(50):
        fleet.pods[0].scheduler.peers.heard([Given(SPREAD, FairnessUnit.TOKENS, 1_000.0)])
        list(fleet.run(INTERVAL_SECONDS))
    fleet.submit(0, SPREAD, 100)
    list(fleet.run(1))
    assert fleet.pods[0].served[SPREAD] == 100 + OUTPUT_TOKENS
