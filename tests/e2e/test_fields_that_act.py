"""Each limit, promise and share of the API on a running pool: a request differs with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAMESPACE = "e2e-fields"
SEATS = 4
CHUNK_TOKENS = 512
SLACK = 5
CALLS = {"name": "calls", "per": "Minute", "endpoints": ["Completions"]}


def tiers() -> dict[str, dict[str, Any]]:
    return {
        "plain": {},
        "cut": {"promptLimit": {"maxTokens": 64}},
        "truncated": {"promptLimit": {"maxTokens": 64, "onExceed": "Truncate"}},
        "limited": {"rateLimits": [{**CALLS, "requests": 2}]},
        "loose": {
            "rateLimits": [{**CALLS, "requests": 2}],
            "tenantOverrides": {"rateLimits": "Any"},
        },
        "promised": {"slo": {"objectives": [{"metric": "TimeToFirstToken", "target": "50ms"}]}},
        "one": {"weight": 1},
        "three": {"weight": 3},
        "by-tokens": {"fairness": {"unit": "Tokens"}},
        "by-time": {"fairness": {"unit": "EngineTime"}},
        "high": {"priority": 1000},
        "firm": {"priority": -10},
        "evictable": {
            "priority": -10,
            "preemption": {"evictable": True, "recomputeBackoff": {"perQueuedRequest": "0s"}},
        },
        "small": {},
    }


TENANTS: dict[str, dict[str, Any]] = {
    "narrow": {"tier": "plain", "models": ["another-model"]},
    "tight": {"tier": "limited", "rateLimits": [{**CALLS, "requests": 1}]},
    "loosened": {"tier": "loose", "rateLimits": [{**CALLS, "requests": 100}]},
    "greedy": {"tier": "limited", "rateLimits": [{**CALLS, "requests": 100}]},
    "long-tokens": {"tier": "by-tokens"},
    "short-tokens": {"tier": "by-tokens"},
    "long-time": {"tier": "by-time"},
    "short-time": {"tier": "by-time"},
}


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """One pool with every field, of one pod, and a tenant of its own name in each tier."""
    small = {"tiers": [f"{NAMESPACE}-small"], "percent": 2, "borrowLimitPercent": 0}
    return make_scene(
        NAMESPACE,
        tiers=tiers(),
        tenants={name: {"tier": name} for name in tiers()} | TENANTS,
        # 4,095 blocks of 16 tokens.
        engine_args=[f"--max-num-seqs={SEATS}", "--num-gpu-blocks-override=4096"],
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1", "TIDEGATE_FAKE_TIME_SCALE": "8"},
        pool_spec={
            "betweenTiers": "Weighted",
            "kvPools": [{"name": "small", **small}],
            "prefill": {"chunkTokens": CHUNK_TOKENS},
        },
    )


async def test_each_field_makes_a_request_differ(scene: Scene) -> None:
    """One pool and one test: what takes long is the pod."""
    await prompts_are_limited(scene)
    await calls_are_limited(scene)
    await models_are_narrowed(scene)
    await promises_throttle_a_backlog(scene)
    await weights_count_where_they_are_asked_for(scene)
    await tenants_are_compared_in_the_unit_of_their_tier(scene)
    await the_evictable_make_room(scene)
    await a_part_of_the_kv_cache_is_a_bound(scene)
    await prompts_come_in_chunks(scene)
    await an_unusual_budget_is_told(scene)
    await streams_that_wait_are_kept_alive(scene)
    await in_shadow_nothing_is_done(scene)


def client(scene: Scene, tenant: str, seed: int = 0) -> TenantClient:
    return TenantClient(scene.endpoint, scene.key(tenant), scene.model, seed=seed)


async def codes(
    scene: Scene, tenant: str, count: int, prompt_tokens: int = 8, output_tokens: int = 1
) -> list[str | None]:
    """Of so many requests, one after the other; None: served."""
    async with client(scene, tenant) as caller:
        return [(await caller.complete(prompt_tokens, output_tokens)).code for _ in range(count)]


async def burst(
    scene: Scene, tenant: str, count: int, prompt_tokens: int, output_tokens: int
) -> list[Sent]:
    async with client(scene, tenant) as caller:
        requests = (caller.complete(prompt_tokens, output_tokens) for _ in range(count))
        return list(await asyncio.gather(*requests))


def events_of(scene: Scene, sent: list[Sent]) -> list[dict[str, Any]]:
    ids = {one.request_id for one in sent}
    return [event for event in scene.engine_events() if event["x_request_id"] in ids]


async def prompts_are_limited(scene: Scene) -> None:
    assert await codes(scene, "plain", 1, 100) == [None]
    assert await codes(scene, "cut", 1, 100) == ["prompt_too_long"]
    assert await codes(scene, "cut", 1, 64) == [None]
    sent = await burst(scene, "truncated", 1, 100, 1)
    lengths = {event.get("prompt_tokens") for event in events_of(scene, sent)} - {None}
    assert lengths == {64}


async def calls_are_limited(scene: Scene) -> None:
    limited = "rate_limit_exceeded"
    assert await codes(scene, "plain", 3) == [None] * 3
    assert await codes(scene, "limited", 3) == [None, None, limited]
    assert await codes(scene, "tight", 2) == [None, limited]
    assert await codes(scene, "loosened", 3) == [None] * 3
    async with aiohttp.ClientSession() as session:
        body = {
            "model": scene.model,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 1,
        }
        headers = {"Authorization": f"Bearer {scene.key('limited')}"}
        url = f"{scene.endpoint}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200  # the limit counts completions alone
    greedy = scene.cluster.get("tenants.tidegate.io", "greedy", "-n", scene.namespace)
    accepted = condition(greedy, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "RateLimitNotAllowed")
    assert await codes(scene, "greedy", 1) == ["invalid_api_key"]


async def models_are_narrowed(scene: Scene) -> None:
    assert await codes(scene, "narrow", 1) == ["model_not_found"]


async def promises_throttle_a_backlog(scene: Scene) -> None:
    """Where nothing is promised a backlog waits; where it could not be kept it is refused."""
    waiting = await burst(scene, "plain", 12, 20, 20)
    assert [sent.code for sent in waiting] == [None] * 12
    promised = await burst(scene, "promised", 12, 20, 20)
    assert {sent.code for sent in promised} == {None, "throttled"}


async def served(scene: Scene, seconds: float, loads: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Requests that each tenant got served within a time in which all were backlogged."""
    finished = {}

    async def load(tenant: str, prompt_tokens: int, output_tokens: int, seed: int) -> None:
        async with client(scene, tenant, seed) as caller:
            until = time.time() + seconds
            await asyncio.gather(
                *(
                    caller.keep_sending(until, prompt_tokens, output_tokens)
                    for _ in range(3 * SEATS)
                )
            )
            done = (one for one in caller.requests if one.complete and one.ended_at <= until)
            finished[tenant] = sum(1 for _ in done)

    await asyncio.gather(
        *(load(name, *sizes, seed) for seed, (name, sizes) in enumerate(loads.items()))
    )
    return finished


async def weights_count_where_they_are_asked_for(scene: Scene) -> None:
    loads = {"one": (20, 10), "three": (20, 10)}
    weighted = await served(scene, 8.0, loads)
    assert weighted["three"] > 2 * weighted["one"]
    await asyncio.to_thread(scene.change, betweenTiers="Strict")
    strict = await served(scene, 6.0, loads)
    assert strict["three"] < 1.5 * strict["one"]


async def tenants_are_compared_in_the_unit_of_their_tier(scene: Scene) -> None:
    """A prompt costs as many tokens as an answer of its length, and much less time."""
    long, short = (1_000, 1), (8, 25)
    found = await served(
        scene,
        10.0,
        {"long-tokens": long, "short-tokens": short, "long-time": long, "short-time": short},
    )
    by_tokens = found["short-tokens"] / max(1, found["long-tokens"])
    by_time = found["short-time"] / max(1, found["long-time"])
    assert by_tokens > 3 * by_time


async def the_evictable_make_room(scene: Scene) -> None:
    aborted = {}
    for tier in ("firm", "evictable"):
        since = time.time()
        running = asyncio.create_task(burst(scene, tier, SEATS, 20, 150))
        await arrived(scene, SEATS, 150, since)
        await codes(scene, "high", 1, 20, 2)
        sent = await running
        assert all(one.complete for one in sent)
        events = events_of(scene, sent)
        aborted[tier] = sum(event["event"] == "aborted" for event in events)
    assert aborted["firm"] == 0
    assert aborted["evictable"] >= 1


async def arrived(scene: Scene, count: int, output_tokens: int, since: float) -> None:
    """Until so many requests of that length have come to the engine."""
    deadline = time.monotonic() + 5 * SLACK
    while True:
        events = await asyncio.to_thread(scene.engine_events)
        there = [
            event
            for event in events
            if event["event"] == "arrived"
            and event["output_tokens_target"] == output_tokens
            and event["time"] > since
        ]
        if len(there) >= count:
            return
        assert time.monotonic() < deadline, f"{len(there)} of {count} came"


async def a_part_of_the_kv_cache_is_a_bound(scene: Scene) -> None:
    """2% of 4,095 blocks are 81: two requests of 600 tokens, however many seats are free."""
    most = {}
    for tier in ("plain", "small"):
        sent = await burst(scene, tier, 6, 560, 40)
        assert all(one.complete for one in sent)
        most[tier] = most_at_once(events_of(scene, sent))
    assert most["small"] <= 2 < most["plain"]


def most_at_once(events: list[dict[str, Any]]) -> int:
    running = most = 0
    ends = ("finished", "aborted")
    moments = [e for e in events if e["event"] in ("arrived", *ends)]
    for event in sorted(moments, key=lambda e: (e["time"], e["event"] not in ends)):
        running += -1 if event["event"] in ends else 1
        most = max(most, running)
    return most


async def prompts_come_in_chunks(scene: Scene) -> None:
    """Beside another request a prompt of 4,000 tokens takes eight steps of 512, and not one."""
    since = time.time()
    beside = asyncio.create_task(burst(scene, "plain", 2, 30, 300))
    await arrived(scene, 2, 300, since)
    sent = await burst(scene, "high", 1, 4_000, 2)
    await beside
    steps = {event["event"]: event["step"] for event in events_of(scene, sent)}
    assert steps["first_token"] - steps["scheduled"] + 1 >= 4_000 // CHUNK_TOKENS


async def an_unusual_budget_is_told(scene: Scene) -> None:
    assert condition(scene.pool_object(), "UnusualPrefillBudget") == {}
    await asyncio.to_thread(
        scene.change, prefill={"budgetPercent": 10, "chunkTokens": CHUNK_TOKENS}
    )
    warned = condition(scene.pool_object(), "UnusualPrefillBudget")
    assert warned["reason"] == "BudgetTooSmall"


async def streams_that_wait_are_kept_alive(scene: Scene) -> None:
    service = {"type": "LoadBalancer"}
    assert b": keep-alive" not in await streamed_behind_others(scene)
    await asyncio.to_thread(scene.change, service=service | {"streamKeepAlive": "1s"})
    kept = await streamed_behind_others(scene)
    assert kept.startswith(b": keep-alive\n\n")
    assert kept.rstrip().endswith(b"data: [DONE]")
    await asyncio.to_thread(scene.change, service=service)


async def streamed_behind_others(scene: Scene) -> bytes:
    """A stream that waits for more than a second, until somebody leaves the engine."""
    since = time.time()
    running = asyncio.create_task(burst(scene, "firm", SEATS, 20, 1_500))
    await arrived(scene, SEATS, 1_500, since)
    body = {"model": scene.model, "prompt": "hello", "max_tokens": 2, "stream": True}
    headers = {"Authorization": f"Bearer {scene.key('firm')}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{scene.endpoint}/v1/completions", json=body, headers=headers) as answer,
    ):
        content = await answer.read()
    await running
    return content


async def in_shadow_nothing_is_done(scene: Scene) -> None:
    assert await codes(scene, "cut", 1, 100) == ["prompt_too_long"]
    await asyncio.to_thread(scene.change, schedulingMode="Shadow")
    assert await codes(scene, "cut", 1, 100) == [None]
