"""o14: what a low tier gets while a high one asks for 120% of the engine for ten minutes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidegate.scheduling.contracts import BetweenTiers, QueueLimits, TierPolicy
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler

SECONDS = 600
TOKENS_PER_SECOND = 4_000
"""Of an engine that works on one request at a time."""
HIGH = 400
"""Tokens of a request of the high tier; 12 a second are 120% of the engine."""
LOW = 800
"""Of one of the low tier, of which one a second comes: 20% of the engine."""
MAX_WAIT = 20.0
QUEUE = QueueLimits(max_wait_seconds=MAX_WAIT)


class Flood:
    """Ten minutes of it."""

    def __init__(self, build: SimpleNamespace, low: TierPolicy, **fields: object) -> None:
        tiers = [build.tier("high", "Tokens", 2048, priority=10, queue=QUEUE), low]
        policy = build.policy(tiers, {"paid": "high", "free": "low"}, **fields)
        self._build = build
        self.scheduler = Scheduler(policy, 0.0)
        self.served: list[tuple[float, Request]] = []
        self.refused: list[tuple[float, Request, Outcome]] = []
        arrivals = [(i / 12, "paid", HIGH) for i in range(12 * SECONDS)]
        arrivals += [(float(i), "free", LOW) for i in range(SECONDS)]
        arrivals.sort(reverse=True)
        now = 0.0
        while now < SECONDS:
            while arrivals and arrivals[-1][0] <= now:
                self._send(*arrivals.pop())
            for request, outcome in self.scheduler.expire(now):
                self.refused.append((now, request, outcome))
            running = self.scheduler.next(now)
            if running is None:
                now = arrivals[-1][0]
                continue
            now += running.prompt_tokens / TOKENS_PER_SECOND
            self.scheduler.finish(running.id, Usage(running.prompt_tokens, 0), now)
            self.served.append((now, running))

    def _send(self, at: float, tenant: str, tokens: int) -> None:
        request = self._build.request(f"{tenant}{at}", tenant, tokens, 0)
        assert self.scheduler.submit(request, at) is None

    def tokens(self, tenant: str, begin: float, end: float) -> int:
        return sum(
            request.prompt_tokens
            for at, request in self.served
            if request.tenant == tenant and begin < at <= end
        )


@pytest.mark.parametrize("reserved", [5, 15])
def test_o14_a_reservation_holds_in_every_minute(build: SimpleNamespace, reserved: int) -> None:
    low = build.tier("low", "Tokens", 2048, reserved_percent=reserved, queue=QUEUE)
    flood = Flood(build, low)
    for begin in range(0, SECONDS, 60):
        got = flood.tokens("free", begin, begin + 60)
        promised = reserved / 100 * 60 * TOKENS_PER_SECOND
        assert promised - LOW <= got <= promised + LOW
    waited = [at - request.arrival for at, request in flood.served if request.tenant == "free"]
    assert max(waited) <= MAX_WAIT + LOW / TOKENS_PER_SECOND


def test_o14_a_reservation_above_the_demand_serves_all_of_it_soon(build: SimpleNamespace) -> None:
    flood = Flood(build, build.tier("low", "Tokens", 2048, reserved_percent=25))
    waited = [at - request.arrival for at, request in flood.served if request.tenant == "free"]
    assert len(waited) >= SECONDS - 1
    assert max(waited) <= (2 * LOW + HIGH) / TOKENS_PER_SECOND
    assert all(request.tenant == "paid" for _, request, _ in flood.refused)


def test_o14_without_one_each_is_told_in_time(build: SimpleNamespace) -> None:
    """Strict means strict: nothing for the low tier; but no request waits without an end."""
    flood = Flood(build, build.tier("low", "Tokens", 2048, queue=QUEUE))
    assert flood.tokens("free", 60, SECONDS) == 0
    told = [(at - request.arrival, why) for at, request, why in flood.refused
            if request.tenant == "free"]  # fmt: skip
    assert len(told) >= SECONDS - 60
    assert {why for _, why in told} == {Outcome.QUEUE_WAIT_EXCEEDED}
    assert max(waited for waited, _ in told) <= MAX_WAIT + HIGH / TOKENS_PER_SECOND
    row = next(row for row in flood.scheduler.tenant_snapshots(SECONDS) if row.name == "free")
    assert row.longest_wait_seconds > MAX_WAIT - 2, "and it is to be seen"


def test_o14_by_weight_the_low_tier_gets_its_share(build: SimpleNamespace) -> None:
    low = build.tier("low", "Tokens", 2048, weight=1)
    flood = Flood(build, low, between_tiers=BetweenTiers.WEIGHTED)
    for begin in range(0, SECONDS, 60):
        got = flood.tokens("free", begin, begin + 60)
        assert got >= min(0.5 * 60 * TOKENS_PER_SECOND, 60 * LOW) - 2 * LOW
