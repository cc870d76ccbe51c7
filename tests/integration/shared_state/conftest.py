"""A real server that holds the shared state, and pods that use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.redis_server import RedisServer, redis_server
from support.shared_state import Pod, StartPod


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
    with redis_server(tmp_path) as running:
        yield running


@pytest.fixture
async def start_pod() -> AsyncIterator[StartPod]:
    """``start_pod(address, ...)``: a pod; no task of it is left afterwards."""
    before = asyncio.all_tasks()
    started: list[Pod] = []

    def start(*arguments: object, **options: object) -> Pod:
        started.append(Pod(*arguments, **options))
        return started[-1]

    yield start
    for pod in started:
        await pod.close()
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}


@pytest.fixture
async def pods(server: RedisServer, start_pod: StartPod) -> list[Pod]:
    """Two pods that have found the server."""
    both = [start_pod(server.address) for _ in range(2)]
    for pod in both:
        await pod.here()
    return both
