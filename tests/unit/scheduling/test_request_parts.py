"""A request in parts: each is scheduled by itself, and all are limited and bounded as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import LimitWindow, OnExceed, PromptLimit, QueueLimits, RateLimit
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler


def in_parts(build: SimpleNamespace, id: str, tenant: str, *prompts: int, **fields: Any) -> Request:
    whole: Request = build.request(id, tenant, sum(prompts), 0, **fields)
    whole.parts = tuple(
        build.request(f"{id}-{index}", tenant, prompt, 0, whole=whole)
        for index, prompt in enumerate(prompts)
    )
    whole.parts[-1].body_bytes = whole.body_bytes
    return whole


def drained(scheduler: Scheduler, now: float = 0.0) -> list[str]:
    """What is dispatched, in order; each ends at once with what was estimated."""
    order = []
    while (request := scheduler.next(now)) is not None:
        order.append(request.id)
        scheduler.finish(request.id, Usage(request.prompt_tokens, 0), now)
    return order


def test_another_tenant_has_its_turn_between_the_parts(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy(tenants={"a": {}, "b": {}}), 0.0)
    assert scheduler.submit(in_parts(build, "a", "a", *[2048] * 8), 0.0) is None
    assert scheduler.next(0.0) is not None
    assert scheduler.submit(build.request("b", "b", 10, 0), 0.0) is None
    assert drained(scheduler)[:2] in (["b", "a-1"], ["a-1", "b"])
    scheduler.finish("a-0", Usage(2048, 0), 1.0)
    assert scheduler.in_flight() == scheduler.queued() == 0


def test_it_is_one_request_to_the_bounds_of_its_queue(build: SimpleNamespace) -> None:
    tier = build.tier(queue=QueueLimits(max_requests=2, max_bytes=100))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    assert scheduler.submit(in_parts(build, "a", "a", 1, 1, 1, body_bytes=60), 0.0) is None
    assert scheduler.submit(build.request("big", "a", body_bytes=41), 0.0) is Outcome.QUEUE_FULL
    assert scheduler.submit(build.request("small", "a", body_bytes=40), 0.0) is None
    assert scheduler.submit(build.request("third", "a"), 0.0) is Outcome.QUEUE_FULL
    for _ in range(3):
        assert scheduler.next(0.0) is not None
    assert scheduler.submit(build.request("then", "a", body_bytes=60), 0.0) is None


def test_its_limits_reserve_and_settle_once(build: SimpleNamespace) -> None:
    limit = RateLimit("minute", LimitWindow.MINUTE, requests=2, tokens=100)
    tier = build.tier(rate_limits=(limit,))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    assert scheduler.submit(in_parts(build, "a", "a", 40, 40), 0.0) is None
    assert scheduler.submit(build.request("b", "a", 21, 0), 0.0) is Outcome.RATE_LIMITED
    assert scheduler.next(0.0) is not None
    scheduler.finish("a-0", Usage(10, 0), 1.0)
    assert scheduler.submit(build.request("b", "a", 21, 0), 1.0) is Outcome.RATE_LIMITED
    scheduler.cancel("a-1", 2.0)
    assert scheduler.submit(build.request("b", "a", 90, 0), 2.0) is None  # 10 were used
    assert scheduler.submit(build.request("c", "a", 0, 0), 2.0) is Outcome.RATE_LIMITED  # the third


def test_one_larger_than_the_window_is_refused_whole(build: SimpleNamespace) -> None:
    tier = build.tier(rate_limits=(RateLimit("minute", LimitWindow.MINUTE, tokens=100),))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    refused = scheduler.submit(in_parts(build, "a", "a", 60, 60), 0.0)
    assert refused is Outcome.REQUEST_EXCEEDS_LIMIT
    assert scheduler.queued() == 0


@pytest.mark.parametrize("on_exceed", OnExceed)
def test_the_prompt_limit_is_about_its_longest_part(
    build: SimpleNamespace, on_exceed: OnExceed
) -> None:
    tier = build.tier(prompt_limit=PromptLimit(1000, on_exceed=on_exceed))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    assert scheduler.submit(in_parts(build, "fits", "a", 900, 900), 0.0) is None
    assert drained(scheduler) == ["fits-0", "fits-1"]
    long = in_parts(build, "long", "a", 900, 1500)
    outcome = scheduler.submit(long, 0.0)
    if on_exceed is OnExceed.REJECT:
        assert outcome is Outcome.PROMPT_TOO_LONG
        return
    assert outcome is None
    cut = on_exceed is OnExceed.TRUNCATE
    assert [part.truncate_to_tokens for part in long.parts] == [None, 1000 if cut else None]
    assert long.prompt_tokens == (1900 if cut else 2400)


def test_it_waits_too_long_only_until_it_is_begun(build: SimpleNamespace) -> None:
    tier = build.tier(queue=QueueLimits(max_wait_seconds=10))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    assert scheduler.submit(in_parts(build, "begun", "a", 1, 1), 0.0) is None
    assert scheduler.submit(in_parts(build, "late", "a", 1, 1), 0.0) is None
    assert scheduler.next(0.0) is not None
    assert [request.id for request, _ in scheduler.expire(11.0)] == ["late-0"]
    assert scheduler.cancel("late-1", 11.0)  # its host ends the rest
    request = scheduler.next(11.0)
    assert request is not None
    assert request.id == "begun-1"
