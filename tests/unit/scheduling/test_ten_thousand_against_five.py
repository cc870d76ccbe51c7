"""A queues 10,000 requests and B sends 5: none of B's is refused, and A's own are.

The production scheduler and throttle in virtual time, before an engine that takes ten requests a
second; over HTTP, and with fewer, it is ``test_sidecar_throttle``.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from tidegate.scheduling.contracts import (
    LimitWindow,
    QueueLimits,
    RateLimit,
    SloMetric,
    SloObjective,
)
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import Scheduler

MANY = 10_000
TARGET_SECONDS = 2.0
PROMISE = (SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, TARGET_SECONDS),)
LIMIT = RateLimit("day", LimitWindow.DAY, requests=1_000_000)
QUEUE = QueueLimits(max_requests=2 * MANY, max_bytes=1 << 40, max_wait_seconds=86_400.0)


class Engine:
    """Ten requests a second, one after the other."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.dispatched: dict[str, float] = {}

    def serve(self, requests: int) -> None:
        for _ in range(requests):
            request = self.scheduler.next(self.now)
            assert request is not None
            self.dispatched[request.id] = self.now
            self.now += 0.1
            self.scheduler.finish(request.id, Usage(100, 100), self.now)

    def submit(self, build: SimpleNamespace, prefix: str, tenant: str, count: int) -> Counter[str]:
        """How many of so many were taken, and how the others were refused."""
        return Counter(
            self.scheduler.submit(build.request(f"{prefix}{number}", tenant), self.now, self.now)
            or "taken"
            for number in range(count)
        )


@pytest.mark.parametrize("objective_of_a", [True, False])
def test_a_queues_ten_thousand_and_b_sends_five(
    build: SimpleNamespace, objective_of_a: bool
) -> None:
    shared = {"queue": QUEUE, "rate_limits": (LIMIT,), "unit": "Tokens", "quantum": 200}
    tiers = [
        build.tier("promised", priority=1, slo_objectives=PROMISE, **shared),
        build.tier("bulk", priority=1, **shared),
    ]
    tenants = {"a": "promised" if objective_of_a else "bulk", "b": "promised"}
    engine = Engine(Scheduler(build.policy(tiers, tenants), 0.0))
    # Nobody knows yet what the engine takes, so all of them are taken.
    assert engine.submit(build, "a", "a", MANY) == {"taken": MANY}
    engine.serve(200)
    five = engine.submit(build, "b", "b", 5)
    assert five == {"taken": 5}
    sent_at = engine.now
    more = engine.submit(build, "more", "a", 100)
    assert more == ({Outcome.THROTTLED: 100} if objective_of_a else {"taken": 100})
    engine.serve(20)
    waits = [engine.dispatched[f"b{number}"] - sent_at for number in range(5)]
    assert max(waits) < TARGET_SECONDS
    # What was refused counts nowhere.
    clocks = Clocks(engine.now, engine.now)
    room, _ = engine.scheduler.limits.room("a", None, None, clocks)
    assert room is not None
    assert room.limit - room.remaining == MANY + more["taken"]


def test_a_sends_ten_thousand_at_once_where_the_engine_is_known(build: SimpleNamespace) -> None:
    tier = build.tier(
        slo_objectives=PROMISE, queue=QUEUE, rate_limits=(LIMIT,), unit="Tokens", quantum=200
    )
    engine = Engine(Scheduler(build.policy([tier], {"a": {}, "b": {}}), 0.0))
    engine.submit(build, "before", "a", 60)
    engine.serve(50)
    sent = engine.submit(build, "a", "a", MANY)
    assert sent[Outcome.THROTTLED] + sent["taken"] == MANY
    assert 0 < sent["taken"] < 2 * TARGET_SECONDS * 10
    assert engine.submit(build, "b", "b", 5) == {"taken": 5}
    clocks = Clocks(engine.now, engine.now)
    room, _ = engine.scheduler.limits.room("a", None, None, clocks)
    assert room is not None
    assert room.limit - room.remaining == 60 + sent["taken"]
