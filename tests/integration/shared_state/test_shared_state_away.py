"""The server killed, paused or full: requests go on, and nothing is counted twice or lost."""

from __future__ import annotations

import asyncio

import pytest
from support.fake_engine import until
from support.redis_server import RedisServer
from support.shared_state import MONTH, Pod, StartPod, tokens_in

from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request

pytestmark = pytest.mark.integration

TROUBLES = {
    "paused": (RedisServer.pause, RedisServer.resume),
    "full": (RedisServer.fill, RedisServer.empty),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_what_is_counted_without_the_server_is_told_once_it_is_back(
    server: RedisServer, start_pod: StartPod, trouble: str
) -> None:
    begin, end = TROUBLES[trouble]
    one, two = (start_pod(server.address, MONTH, deadline_seconds=0.2) for _ in range(2))
    await one.here()
    await two.here()
    assert await two.admitted(199, most=1) == 1
    before = await one.submit(200)
    assert isinstance(before, Request)
    assert await two.admitted(1, most=1) == 1  # so that both have heard of 400 of 1,000 tokens
    begin(server)
    # The first ones wait for the deadline, and whether they were counted nobody knows.
    asked = one.loop.time()
    first = await asyncio.gather(*[one.submit(10) for _ in range(3)])
    assert all(isinstance(each, Request) for each in first)
    assert one.loop.time() - asked < 5 * 2 * 0.2
    for pod in (one, two):
        while pod.host.status.available:
            await pod.admitted(1, most=1)
    started = one.loop.time()
    # Half of the 600 that are left, less what was taken since.
    alone = [await pod.admitted(50) for pod in (one, two)]
    assert one.loop.time() - started < 5.0
    assert alone[0] == 5
    assert alone[1] in (5, 6)
    one.serve(before, 150)  # reserved there, ended while it is away
    for request in first:
        one.serve(request, 10)
    taken = 350 + 30 + sum(alone) * 50
    end(server)
    await one.here()
    await two.here()
    assert taken <= tokens_in(server) <= taken + 40  # and the single tokens until it was noticed
    assert server.client.keys("tidegate:limit:*") != []
    left = 1_000 - tokens_in(server)
    assert await one.admitted(1, most=left) == left
    assert await two.submit(1) is Outcome.RATE_LIMITED


async def test_a_killed_server_is_found_again_and_a_month_survives_its_restart(
    server: RedisServer, start_pod: StartPod
) -> None:
    server.kill()
    server.start("--appendonly", "yes", "--appendfsync", "always")
    pod = start_pod(server.address, MONTH)
    await pod.here()
    assert await pod.admitted(300, most=2) == 2
    await pod.here()
    server.kill()
    while pod.host.status.available:
        assert await pod.admitted(10, most=1) == 1
    status = pod.host.status
    assert status.error
    assert pod.host.alone_total > 0
    assert await pod.admitted(1, most=7) == 7
    alone = pod.host.alone_total * 10
    server.start("--appendonly", "yes")
    await pod.here()
    assert pod.host.status.error is None
    assert 607 <= tokens_in(server) <= 600 + alone


async def test_an_operation_sent_twice_counts_once(server: RedisServer, pods: list[Pod]) -> None:
    """As when an answer is lost on the way: all is sent again."""
    pod = pods[0]
    store = pod.host._server.store
    send = store.send

    async def twice(operations: list[object]) -> None:
        await send(operations)
        await send(operations)

    store.send = twice
    held = await pod.submit(100, 100)
    assert isinstance(held, Request)
    pod.scheduler.next(pod.loop.time())
    pod.scheduler.progress(held.id, 250, pod.loop.time())
    await pod.here()
    assert tokens_in(server) == 350
    pod.scheduler.finish(held.id, None, pod.loop.time())
    await pod.here()
    uid, counted = "uid-of-alice", [("tidegate:limit:{uid-of-alice}:month:Month", "Month", 24_323)]
    pod.host._outbox.count(uid, counted, 40)
    pod.host._outbox.count(uid, counted, 2)
    await pod.here()
    assert tokens_in(server) in (350, 392)  # of a month that is over nothing is counted
    keys = ("tidegate:held:{uid-of-alice}:late:1", "tidegate:limit:{uid-of-alice}:month:Month")
    await send([(keys, ("forget",))])
    before = tokens_in(server)
    assert await store.ask(keys, ("reserve", 5, "Month", -1, 1_000)) == [0]
    assert tokens_in(server) == before


async def test_without_a_server_from_the_start_and_with_another_one(
    server: RedisServer, start_pod: StartPod
) -> None:
    pod = start_pod("redis://127.0.0.1:1", MONTH)
    assert await pod.admitted(100) == 5
    await until(lambda: "not connected yet" not in str(pod.host.status.error), 20)
    pod.apply(server.address, (MONTH,))
    await pod.here()
    assert tokens_in(server) == 500
    pod.apply(None, (MONTH,))
    assert pod.host.status is None
    assert pod.host.pending == 0
