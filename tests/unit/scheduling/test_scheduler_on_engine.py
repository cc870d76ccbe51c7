"""Scheduler and gate together before a small engine, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import EngineLimits
from tidegate.scheduling.gate import Gate
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler


class Host:
    """What a sidecar does with scheduler and gate, without its input and output."""

    def __init__(self, scheduler: Scheduler, engine: Any) -> None:
        self.scheduler, self.engine = scheduler, engine
        self.gate = Gate(EngineLimits(engine.seats, engine.budget))
        self.arrivals: list[tuple[float, Request]] = []
        self.requests: dict[str, Request] = {}
        self.ends: dict[str, float] = {}
        self._spoke: dict[str, int] = {}
        self._step = 0

    def run(self, until: Callable[[], bool]) -> None:
        self.arrivals.sort(key=lambda arrival: -arrival[0])
        self._pump()
        self.engine.run(self._on_step, self.scheduler.has_work, until)

    def _pump(self) -> None:
        now = self.engine.now
        while self.arrivals and self.arrivals[-1][0] <= now:
            at, request = self.arrivals.pop()
            assert self.scheduler.submit(request, at) is None
        while self.gate.is_open() and (request := self.scheduler.next(now)) is not None:
            self.requests[request.id] = request
            self.gate.dispatched(request.id, 1, request.prompt_tokens)
            self.engine.submit(request.id, request.prompt_tokens, request.max_output_tokens)

    def _on_step(self, events: Any) -> None:
        now, ended = self.engine.now, set(events.ended)
        for id in events.tokens:
            request = self.requests[id]
            if request.output_tokens == 0:
                self.gate.started(id)
            self.scheduler.progress(id, 1, now)
            if self._spoke.get(id) == self._step:
                self._step += 1
                self.gate.step(self.scheduler.has_work())
            self._spoke[id] = self._step
            if id in ended:
                self.gate.ended(id)
                self.scheduler.finish(id, Usage(request.prompt_tokens, request.output_tokens), now)
                self.ends[id] = now
            self._pump()


def served_in(host: Host, start: float, end: float) -> dict[str, int]:
    """Tokens that the engine worked on in a window, by tenant."""
    tokens: dict[str, int] = {}
    for at, id, count in host.engine.served:
        if start <= at < end:
            tenant = host.requests[id].tenant
            tokens[tenant] = tokens.get(tenant, 0) + count
    return tokens


def tiered(build: SimpleNamespace) -> Scheduler:
    tiers = [
        build.tier("t0", "Tokens", 2048, priority=10),
        build.tier("t3", "Tokens", 2048, priority=-10, reserved_percent=10),
    ]
    return Scheduler(build.policy(tiers, {"paid": "t0", "free": "t3"}), 0.0)


def test_t0_waits_at_most_one_service_of_a_t3_that_fills_the_engine(build: SimpleNamespace) -> None:
    host = Host(tiered(build), build.engine(seats=16))
    for i in range(1500):
        host.arrivals.append((0.0, build.request(f"f{i}", "free", 100 + i % 50, 100 + i % 90)))
    for i in range(200):
        host.arrivals.append((5.0 + i * 0.15, build.request(f"p{i}", "paid", 200, 50 + i % 20)))
    host.run(until=lambda: host.engine.now > 40.0)
    paid = [request for request in host.requests.values() if request.tenant == "paid"]
    assert len(paid) == 200
    waits = [r.dispatched - r.arrival for r in paid if r.dispatched is not None]
    services = [
        host.ends[r.id] - r.dispatched
        for r in host.requests.values()
        if r.tenant == "free" and r.dispatched is not None and r.id in host.ends
    ]
    assert quantiles(waits, n=100)[98] <= median(services)


@pytest.mark.parametrize(
    ("paid_output", "requests_short"),
    [
        pytest.param(20, 1, id="short"),
        pytest.param(100, 1, id="equal"),
        pytest.param(400, 2, id="long: the seats that T0 took at once free after 4 s only"),
    ],
)
def test_t3_gets_its_reservation_minus_one_request_in_any_10_s(
    build: SimpleNamespace, paid_output: int, requests_short: int
) -> None:
    host = Host(tiered(build), build.engine(seats=16))
    largest = 250 + 180
    for i in range(2500):
        host.arrivals.append((0.0, build.request(f"f{i}", "free", 100 + i % 150, 100 + i % 80)))
        host.arrivals.append((10.0, build.request(f"p{i}", "paid", 200, paid_output)))
    host.run(until=lambda: host.engine.now > 40.0)
    for start in range(30):
        served = served_in(host, start, start + 10.0)
        assert served["free"] >= 0.1 * sum(served.values()) - requests_short * largest
    late = served_in(host, 20.0, 40.0)
    assert late["free"] <= 0.13 * sum(late.values()), "and no more than that before a higher tier"


def test_weights_1_to_3_are_shares_of_served_tokens(build: SimpleNamespace) -> None:
    tiers = [build.tier("t1", "Tokens", 2048)]
    tenants = {"one": {"weight": 1}, "three": {"weight": 3}}
    host = Host(Scheduler(build.policy(tiers, tenants), 0.0), build.engine(seats=32))
    for i in range(1500):
        host.arrivals.append((0.0, build.request(f"o{i}", "one", 300, 40 + i % 60)))
        host.arrivals.append((0.0, build.request(f"t{i}", "three", 60, 100 + i % 300)))
    host.run(until=lambda: host.engine.now > 50.0)
    served = served_in(host, 10.0, 50.0)
    assert served["three"] / served["one"] == pytest.approx(3.0, rel=0.05)
