"""Real servers on loopback, shared by the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.fake_engine import StartEngine, engine_in_process, socket_folder

from tidegate.simulator.fake_engine import FakeEngine


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for Unix sockets."""
    with socket_folder() as folder:
        yield folder


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """``await start_engine(*flags)``: a fake engine in this process.

    At the end of the test nothing may be in flight in any of them.
    """
    async with AsyncExitStack() as stack:

        async def start(*flags: str) -> FakeEngine:
            return await stack.enter_async_context(engine_in_process(*flags))

        yield start
