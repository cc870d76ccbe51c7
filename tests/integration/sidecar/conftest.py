"""A sidecar before an engine that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop
from support.faulty_engine import FaultyEngine
from support.sidecar import SidecarUnderTest, sidecar_under_test

StartSidecar = Callable[..., Awaitable[SidecarUnderTest]]


@pytest.fixture
async def engine() -> AsyncIterator[FaultyEngine]:
    """A faulty engine, sound until a test scripts it."""
    async with FaultyEngine() as engine:
        yield engine


@pytest.fixture
async def start_sidecar(engine: FaultyEngine, tmp_path: Path) -> AsyncIterator[StartSidecar]:
    """``await start_sidecar(policy=..., setting=...)``: a sidecar before ``engine``.

    At its end another tenant is served (unless not ``check_other``: it has no key or no place),
    and the accounting oracle holds.
    """
    async with AsyncExitStack() as stack:

        async def start(**options: object) -> SidecarUnderTest:
            return await stack.enter_async_context(
                sidecar_under_test(tmp_path, engine, **options)  # type: ignore[arg-type]
            )

        yield start


@pytest.fixture
async def sidecar(start_sidecar: StartSidecar) -> SidecarUnderTest:
    """A sidecar with the default policy and settings."""
    return await start_sidecar()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """These tests run on the loop that the sidecar runs on."""
    return {"uvloop": uvloop.new_event_loop}
