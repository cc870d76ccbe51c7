"""Whatever befalls the server and the clients: in the end it counts exactly what was settled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from support.redis_server import RedisServer
from support.shared_state import Pod, StartPod, tokens_in

from tidegate.scheduling.contracts import LimitWindow, RateLimit
from tidegate.scheduling.request import Request

pytestmark = pytest.mark.integration

BUDGET = RateLimit("month", LimitWindow.MONTH, tokens=10**9)
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Clients:
    """Requests without end on one pod: served, refused by the engine, or given up while asking."""

    def __init__(self, pod: Pod, draw: random.Random) -> None:
        self._pod = pod
        self._draw = draw
        self.settled = 0
        self.stopped = False

    async def served(self) -> None:
        draw = self._draw
        while not self.stopped:
            request = await self._pod.submit(draw.randint(1, 50), draw.randint(0, 50))
            assert isinstance(request, Request), request
            await asyncio.sleep(draw.random() * 0.02)
            tokens = draw.randint(1, 200) if draw.random() < 0.8 else None
            self._pod.serve(request, tokens)
            self.settled += tokens or 0

    async def given_up(self) -> None:
        while not self.stopped:
            asking = asyncio.ensure_future(self._pod.submit(7))
            await asyncio.sleep(self._draw.random() * 0.002)
            asking.cancel()
            (request,) = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(request, Request):
                self._pod.serve(request, None)
            await asyncio.sleep(0.005)


async def killed(server: RedisServer) -> None:
    server.kill()
    await asyncio.sleep(0.2)
    server.start(*DURABLE)


async def paused(server: RedisServer) -> None:
    server.pause()
    await asyncio.sleep(0.4)
    server.resume()


async def full(server: RedisServer) -> None:
    server.fill()
    await asyncio.sleep(0.2)
    server.empty()


async def test_all_that_is_settled_is_counted_once(
    server: RedisServer, start_pod: StartPod
) -> None:
    server.kill()
    server.start(*DURABLE)
    pods = [start_pod(server.address, BUDGET, deadline_seconds=0.05) for _ in range(2)]
    for pod in pods:
        await pod.here()
    clients = [Clients(pod, random.Random(seed)) for seed, pod in enumerate(pods)]
    tasks = [asyncio.create_task(each.given_up()) for each in clients]
    tasks += [asyncio.create_task(each.served()) for each in clients for _ in range(4)]
    troubles: list[Callable[[RedisServer], object]] = [killed, paused, full, paused, killed]
    for trouble in troubles:
        await asyncio.sleep(0.2)
        await trouble(server)  # type: ignore[misc]
    for each in clients:
        each.stopped = True
    await asyncio.gather(*tasks)
    for pod in pods:
        await pod.here()
    assert tokens_in(server) == sum(each.settled for each in clients) > 0
    assert all(pod.host.alone_total > 0 for pod in pods)
    held = server.client.keys("tidegate:held:*")
    assert {server.client.get(key) for key in held} <= {"x"}  # names that are used up
