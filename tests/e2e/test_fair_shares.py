"""Who is served when: orders and shares read from the engine's own request log."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SLOW_STEPS = {"TIDEGATE_FAKE_IGNORE_EOS": "1", "TIDEGATE_FAKE_TIME_SCALE": "4"}
SEATS = 4


def client(scene: Scene, tenant: str, seed: int = 0) -> TenantClient:
    return TenantClient(scene.endpoint, scene.key(tenant), scene.model, seed=seed)


def tokens(events: Iterable[dict[str, Any]], ids: set[str]) -> int:
    return sum(
        event["prompt_tokens"] + event["output_tokens"]
        for event in events
        if event["x_request_id"] in ids
    )


def finished(events: list[dict[str, Any]], start: float, end: float) -> list[dict[str, Any]]:
    return [e for e in events if e["event"] == "finished" and start <= e["time"] < end]


async def backlog(
    tenant: TenantClient, until: float, width: int, prompt_tokens: int, output_tokens: int
) -> None:
    """`width` requests of the tenant are always queued or running."""
    loops = (tenant.keep_sending(until, prompt_tokens, output_tokens) for _ in range(width))
    await asyncio.gather(*loops)


async def test_five_requests_pass_two_thousand_queued_ones(
    make_scene: Callable[..., Scene],
) -> None:
    """A queues 2,000, B of the same tier sends 5: B's go within A's next 6 dispatches."""
    scene = make_scene(
        "e2e-order",
        tiers={"t": {"fairness": {"unit": "Requests", "quantum": 1}, "queue": {"maxWait": "10m"}}},
        tenants={"a": {"tier": "t"}, "b": {"tier": "t"}},
        engine_args=["--max-num-seqs=4"],
        engine_env=SLOW_STEPS,
    )
    async with client(scene, "a") as a, client(scene, "b", seed=1) as b:
        heavy = [asyncio.create_task(a.complete(32, 100)) for _ in range(2000)]
        await wait_until_queued(scene, "a", 1_900)
        sent_at = time.time()
        light = await asyncio.gather(*(b.complete(32, 100) for _ in range(5)))
        for task in heavy:
            task.cancel()
        await asyncio.gather(*heavy, return_exceptions=True)

    assert all(sent.complete for sent in light)
    arrivals = [e for e in scene.engine_events() if e["event"] == "arrived"]
    last_b = max(e["time"] for e in arrivals if e["x_request_id"] in b.ids)
    between = [
        e for e in arrivals if e["x_request_id"] not in b.ids and sent_at <= e["time"] < last_b
    ]
    assert len(between) <= 6


async def wait_until_queued(scene: Scene, tenant: str, least: int) -> None:
    """Until the tenant's status, which follows the load, shows so many waiting requests."""
    deadline = time.monotonic() + 100
    while True:
        await asyncio.sleep(0.5)
        pool = await asyncio.to_thread(scene.pool_object)
        rows = pool["status"].get("tenants", [])
        queued = [row.get("queued", 0) for row in rows if row["name"].endswith(f"/{tenant}")]
        if queued and queued[0] >= least:
            return
        assert time.monotonic() < deadline, f"status shows {rows}"


async def test_a_paid_request_waits_less_than_one_free_one_runs(
    make_scene: Callable[..., Scene],
) -> None:
    """T3 fills the engine: T0's p99 wait <= T3's median service; T3 keeps its reservation."""
    reserved_percent = 20
    scene = make_scene(
        "e2e-tiers",
        tiers={
            "t0": {"priority": 1000, "reservedPercent": 50},
            "t3": {"priority": -10, "reservedPercent": reserved_percent},
        },
        tenants={"paid": {"tier": "t0"}, "free": {"tier": "t3"}},
        engine_args=[f"--max-num-seqs={SEATS}"],
        engine_env=SLOW_STEPS,
    )
    free_request_tokens = 100 + 200
    async with client(scene, "free") as free, client(scene, "paid", seed=1) as paid:
        until = time.time() + 60
        flood = asyncio.create_task(backlog(free, until, 8 * SEATS, 100, 200))
        start = time.time() + 3
        await steadily(paid, 200, after_seconds=3, within_seconds=52)
        end = time.time()
        await flood

    events = scene.engine_events()
    arrived = {e["x_request_id"]: e["time"] for e in events if e["event"] == "arrived"}
    waits = sorted(arrived[sent.request_id] - sent.sent_at for sent in paid.requests)
    assert len(waits) == 200
    assert all(sent.complete for sent in paid.requests)
    service = statistics.median(
        e["served_seconds"]
        for e in events
        if e["event"] == "finished" and e["x_request_id"] in free.ids
    )
    assert waits[197] <= service

    window = start
    while window + 10 <= end:
        ended = finished(events, window, window + 10)
        share = tokens(ended, free.ids) + free_request_tokens
        assert share >= reserved_percent / 100 * tokens(ended, free.ids | paid.ids)
        window += 1


async def steadily(
    tenant: TenantClient, count: int, after_seconds: float, within_seconds: float
) -> None:
    """So many short requests at random times, each sent at its time."""
    dice = random.Random(7)
    times = sorted(after_seconds + dice.uniform(0, within_seconds) for _ in range(count))
    start = time.time()

    async def at(moment: float) -> Sent:
        await asyncio.sleep(max(0.0, start + moment - time.time()))
        return await tenant.complete(50, 10, stream=True)

    await asyncio.gather(*(at(moment) for moment in times))


async def test_weights_one_to_three_get_one_to_three(make_scene: Callable[..., Scene]) -> None:
    """Two tenants always backlogged for 60 s: shares within 5% of their weights."""
    scene = make_scene(
        "e2e-weights",
        tiers={
            "t": {
                # Turns of a few requests: a window of 60 s then holds many whole rounds.
                "fairness": {"unit": "Tokens", "quantum": 256},
                "tenantOverrides": {"maxWeight": 3},
            }
        },
        tenants={"one": {"tier": "t", "weight": 1}, "three": {"tier": "t", "weight": 3}},
        engine_args=[f"--max-num-seqs={SEATS}"],
        engine_env=SLOW_STEPS,
    )
    async with client(scene, "one") as one, client(scene, "three", seed=1) as three:
        start = time.time() + 5
        until = start + 61
        await asyncio.gather(
            backlog(one, until, 6 * SEATS, 50, 30), backlog(three, until, 6 * SEATS, 50, 30)
        )
    ended = finished(scene.engine_events(), start, start + 60)
    ratio = tokens(ended, three.ids) / tokens(ended, one.ids)
    assert 3 * 0.95 <= ratio <= 3 * 1.05


async def test_one_huge_request_at_a_time_gets_no_more_than_its_share(
    make_scene: Callable[..., Scene],
) -> None:
    """Unit Tokens: one request of 100 times the size always queued: its share plus one request."""
    scene = make_scene(
        "e2e-huge",
        tiers={"t": {"fairness": {"unit": "Tokens"}}},
        tenants={"small": {"tier": "t"}, "huge": {"tier": "t"}},
        engine_args=[f"--max-num-seqs={SEATS}", "--no-enable-prefix-caching"],
        engine_env=SLOW_STEPS,
    )
    small_tokens = (20, 20)
    huge_tokens = (3_900, 100)
    async with client(scene, "small") as small, client(scene, "huge", seed=1) as huge:
        start = time.time() + 2
        until = start + 41
        await asyncio.gather(
            backlog(small, until, 6 * SEATS, *small_tokens), backlog(huge, until, 2, *huge_tokens)
        )
    ended = finished(scene.engine_events(), start, start + 40)
    total = tokens(ended, small.ids | huge.ids)
    assert tokens(ended, huge.ids) <= total / 2 + sum(huge_tokens)
    assert tokens(ended, huge.ids) > 0
