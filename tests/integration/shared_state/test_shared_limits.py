"""Rate limits that two pods count together, in a real server."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from support.redis_server import RedisServer, redis_server
from support.shared_state import MINUTE, MONTH, TENANT, Pod, StartPod, tokens_in
from tidegate_sidecar.shared_state import store

from tidegate.scheduling.calendar_window import month_of
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request

pytestmark = pytest.mark.integration


async def test_two_pods_share_one_limit_and_give_back_what_is_not_used(
    server: RedisServer, pods: list[Pod]
) -> None:
    one, two = pods
    first, second = await one.submit(300, 200), await two.submit(100, 400)
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert await one.submit(1) is Outcome.RATE_LIMITED
    assert await two.submit(1) is Outcome.RATE_LIMITED
    one.serve(first, 350)
    two.serve(second, None)
    await one.here()
    await two.here()
    assert tokens_in(server) == tokens_in(server, "minute:Minute") == 350
    assert server.client.keys("tidegate:held:*") == []
    assert await two.submit(1_001) is Outcome.REQUEST_EXCEEDS_LIMIT
    assert await one.admitted(100) + await two.admitted(50) == 6 + 1
    assert tokens_in(server) == 1_000


async def test_side_by_side_on_two_pods_no_more_passes_than_fits(
    server: RedisServer, pods: list[Pod]
) -> None:
    got = await asyncio.gather(*[pod.submit(9) for pod in pods for _ in range(100)])
    assert sum(isinstance(each, Request) for each in got) == 100
    assert all(pod.host.alone_total == 0 for pod in pods)
    for pod in pods:
        for request in [each for each in got if isinstance(each, Request)]:
            if request.id in pod.scheduler._jobs:
                pod.serve(request, 9)
        await pod.here()
    assert tokens_in(server) == 900


async def test_what_outgrows_its_reservation_counts_while_it_streams(
    server: RedisServer, pods: list[Pod]
) -> None:
    one, two = pods
    request = await one.submit(100, 50)
    assert isinstance(request, Request)
    assert one.scheduler.next(one.loop.time()) is request
    one.scheduler.progress(request.id, 800, one.loop.time())
    await one.here()
    assert tokens_in(server) == 900
    assert await two.submit(101) is Outcome.RATE_LIMITED
    one.scheduler.finish(request.id, None, one.loop.time())


async def test_a_restarted_pod_finds_the_month_as_it_was(
    server: RedisServer, pods: list[Pod], start_pod: StartPod
) -> None:
    assert await pods[0].admitted(400) == 2
    await pods[0].here()
    reborn = start_pod(server.address)
    await reborn.here()
    assert await reborn.admitted(100) == 2
    clocks = Clocks(reborn.loop.time(), time.time())
    _, tokens = reborn.scheduler.limits.room(TENANT, None, None, clocks)
    assert tokens.remaining == 0


async def test_what_stands_in_the_server(server: RedisServer, pods: list[Pod]) -> None:
    """Tenants' UIDs, names of limits and numbers, and nothing that does not expire."""
    request = await pods[0].submit(10, 10)
    keys = server.client.keys("*")
    assert len(keys) == 3 + len(pods)
    for key in keys:
        assert re.fullmatch(r"tidegate:((limit|held):\{uid-of-alice\}:[a-zA-Z0-9:]+|pod:\w+)", key)
        assert 0 < server.client.ttl(key) <= 34 * 86_400
    assert isinstance(request, Request)
    pods[0].serve(request, 10)


@pytest.mark.parametrize(
    ("utc", "month", "ends_in_days"),
    [(1_709_164_800, 2024 * 12 + 1, 1), (1_767_225_599, 2025 * 12 + 11, 1), (0, 1970 * 12, 31)],
)
def test_the_servers_months_are_ours(
    server: RedisServer, utc: int, month: int, ends_in_days: int
) -> None:
    assert month_of(utc) == month
    functions = store._SCRIPT.split("local function window")[0]
    call = "local m, ends = calendar('Month', tonumber(ARGV[1])) return {m, ends}"
    got = server.client.eval(functions + call, 1, "k", utc)
    assert got == [month, (utc // 86_400 + ends_in_days) * 86_400]


async def test_a_password_is_read_from_its_file_when_it_is_needed(
    tmp_path: Path, start_pod: StartPod
) -> None:
    secret = tmp_path / "password"
    with redis_server(tmp_path, password="right") as server:
        pod = start_pod(server.address, MONTH, MINUTE, secret_file=str(secret))
        secret.write_text("wrong\n")
        status = pod.host.status
        assert status is not None
        assert not status.available
        secret.write_text("right\n")
        await pod.here()
        assert await pod.admitted(500) == 2
