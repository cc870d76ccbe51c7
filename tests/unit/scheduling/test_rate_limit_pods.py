"""Rate limits over several pods: each for itself within its part, or by counts that all share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidegate.scheduling.contracts import LimitWindow, PromptLimit, RateLimit, SchedulingMode
from tidegate.scheduling.contracts.limits import OnExceed
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.rate_limit import LimitRefusal, RateLimiter, Reservation
from tidegate.scheduling.request import Refusal, Usage
from tidegate.scheduling.scheduler import Scheduler

LIMIT = RateLimit("limit", LimitWindow.MINUTE, requests=10, tokens=1_000)
DAY = RateLimit("day", LimitWindow.DAY, tokens=1_000)
START = Clocks(0.0, 86_400.0 * 20_000)


def admitted(limiter: RateLimiter, limit: RateLimit, tokens: int, clocks: Clocks = START) -> int:
    """How many such requests pass one after the other."""
    count = 0
    while isinstance(limiter.reserve("a", [limit], tokens, clocks), Reservation):
        count += 1
    return count


@pytest.mark.parametrize(("tokens", "most"), [(1, 3), (200, 1), (900, 1)])
def test_pods_that_count_for_themselves_stay_within_the_limit_together(
    tokens: int, most: int
) -> None:
    limiter = RateLimiter()
    limiter.pods = 3
    assert admitted(limiter, LIMIT, tokens) == most
    larger = limiter.reserve("a", [LIMIT], 1_001, START)
    assert isinstance(larger, LimitRefusal)
    assert larger.outcome is Outcome.REQUEST_EXCEEDS_LIMIT


def test_what_a_pod_reserved_is_settled_in_the_measure_it_was_reserved_in() -> None:
    limiter = RateLimiter()
    limiter.pods = 2
    reserved = limiter.reserve("a", [DAY], 300, START)
    assert isinstance(reserved, Reservation)
    limiter.pods = 5
    reserved.settle(100)
    assert limiter.room("a", [DAY], START)[1] == (1_000, 800, 86_400.0)


@pytest.mark.parametrize("limit", [LIMIT, DAY])
def test_shared_counts_take_the_place_of_a_pods_own(limit: RateLimit) -> None:
    limiter = RateLimiter()
    mine = limiter.reserve("a", [limit], 100, START)
    assert isinstance(mine, Reservation)
    limiter.observe("a", limit, 4, 700, Clocks(30.0, START.utc + 30))
    mine.settle(50)  # in the shared counts it is settled there
    away = Clocks(31.0, START.utc + 31)
    limiter.pods = 2
    assert admitted(limiter, limit, 50, away) == 3  # half of the 300 that are left
    assert limiter.room("a", [limit], away)[1] == (1_000, 0, pytest.approx(60.0, abs=86_400))
    limiter.observe("a", limit, 0, 0, away)
    assert limiter.room("a", [limit], away)[1] == (1_000, 1_000, 0.0)


def test_a_verdict_that_comes_with_a_request_is_the_limits_verdict(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy([build.tier(rate_limits=(LIMIT,))], {"a": {}}), 0.0)
    refused = build.request("1", "a", 10, 10)
    refused.limits_verdict = LimitRefusal(Outcome.RATE_LIMITED, "limit", 7)
    assert scheduler.submit(refused, 0.0) is Outcome.RATE_LIMITED
    assert refused.refusal == Refusal(Outcome.RATE_LIMITED, 7, "limit")
    request = build.request("2", "a", 10, 10)
    elsewhere = RateLimiter()
    verdict = elsewhere.reserve("a", [LIMIT], 20, START)
    request.limits_verdict = verdict
    assert scheduler.submit(request, 0.0) is None
    assert scheduler.limits.limiter.windows == {}
    assert scheduler.next(0.0) is request
    scheduler.finish("2", Usage(10, 4), 1.0)
    assert elsewhere.room("a", [LIMIT], START)[1] == (1_000, 986, 61.0)


@pytest.mark.parametrize("mode", list(SchedulingMode))
def test_what_is_refused_before_its_limits_gives_back_what_was_reserved_elsewhere(
    build: SimpleNamespace, mode: SchedulingMode
) -> None:
    tiers = [build.tier(rate_limits=(LIMIT,), prompt_limit=PromptLimit(max_tokens=5))]
    scheduler = Scheduler(build.policy(tiers, {"a": {}}, scheduling_mode=mode), 0.0)
    elsewhere = RateLimiter()
    request = build.request("1", "a", 10, 10)
    request.limits_verdict = elsewhere.reserve("a", [LIMIT], 20, START)
    refused = scheduler.submit(request, 0.0)
    assert (refused is None) is (mode is SchedulingMode.SHADOW)
    assert elsewhere.room("a", [LIMIT], START)[1] == (1_000, 1_000, 0.0)


def test_what_a_request_would_take_is_told_before_it_is_submitted(build: SimpleNamespace) -> None:
    tiers = [
        build.tier(
            rate_limits=(LIMIT, RateLimit("other", LimitWindow.HOUR, requests=1, models=("m2",))),
            prompt_limit=PromptLimit(max_tokens=50, on_exceed=OnExceed.TRUNCATE),
        ),
        build.tier("strict", rate_limits=(LIMIT,), prompt_limit=PromptLimit(max_tokens=50)),
        build.tier("free"),
    ]
    tenants = {"a": "standard", "b": "strict", "c": "free"}
    scheduler = Scheduler(build.policy(tiers, tenants), 0.0)
    demand = scheduler.limits.demand
    assert demand(build.request("1", "a", 10, 30, model="m1")) == ((LIMIT,), 40)
    assert demand(build.request("1", "a", 80, 30, model="m1")) == ((LIMIT,), 80)
    assert demand(build.request("1", "b", 80, 30)) is None  # rejected for its prompt
    assert demand(build.request("1", "c", 80, 30)) is None
    assert demand(build.request("1", "nobody", 80, 30)) is None
