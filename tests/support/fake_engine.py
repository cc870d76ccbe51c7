"""Fake engines for tests: in this process, or as one of their own.

In process, a test sees the model itself (``engine.engine``); as a process, it can be signalled and
killed. Both listen on 127.0.0.1 or on a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tidegate.simulator.fake_engine import FakeEngine, Options, parse_options

MODEL = "test-model"
StartEngine = Callable[..., Awaitable[FakeEngine]]
_START_SECONDS = 30.0
_QUIET_SECONDS = 5.0


@contextlib.contextmanager
def socket_folder() -> Any:
    """A folder with a path short enough for a Unix socket (pytest's own are too long)."""
    folder = tempfile.mkdtemp(prefix="tg-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def engine_options(*flags: str, model: str = MODEL) -> Options:
    """Options of ``serve MODEL flags``, on a free loopback port unless the flags say otherwise."""
    return parse_options(["serve", model, "--host", "127.0.0.1", "--port", "0", *flags], {})


def client_session(engine: FakeEngine | EngineProcess) -> aiohttp.ClientSession:
    """A client of the engine without timeouts and limits of its own."""
    uds = engine.options.uds if isinstance(engine, FakeEngine) else engine.uds
    connector: aiohttp.BaseConnector
    if uds is not None:
        connector = aiohttp.UnixConnector(path=uds, limit=0)
    else:
        connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        engine.url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    )


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until ``condition()`` is true; TimeoutError after ``seconds``."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"the condition did not come true within {seconds} s")
        await asyncio.sleep(0.002)


async def wait_quiet(engine: FakeEngine) -> None:
    """Wait until nothing is in flight; AssertionError, with what is left, after a few seconds."""
    deadline = asyncio.get_running_loop().time() + _QUIET_SECONDS
    while engine.live_sequences or engine.open_answers or engine.engine.has_work:
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(
                f"still in flight: {engine.live_sequences} sequences, {engine.open_answers} "
                f"answers, {len(engine.engine.running)} running, {len(engine.engine.waiting)} "
                "waiting"
            )
        await asyncio.sleep(0.005)
    assert engine.engine.kv.held_blocks == 0
    engine.engine.check()


@contextlib.asynccontextmanager
async def engine_in_process(*flags: str, model: str = MODEL) -> AsyncIterator[FakeEngine]:
    """A fake engine on this event loop; on exit nothing may be in flight."""
    async with FakeEngine(engine_options(*flags, model=model)) as engine:
        yield engine
        await wait_quiet(engine)


@dataclass(slots=True)
class EngineProcess:
    """A fake engine in a process of its own."""

    process: asyncio.subprocess.Process
    url: str
    uds: str | None

    async def wait(self, timeout_seconds: float = 10.0) -> int:
        """Exit status, once it has ended."""
        return await asyncio.wait_for(self.process.wait(), timeout_seconds)


@contextlib.asynccontextmanager
async def engine_process(
    *flags: str, model: str = MODEL, uds: str | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[EngineProcess]:
    """Start ``python -m tidegate.simulator.fake_engine``, wait until it serves, kill it on exit."""
    where = ["--uds", uds] if uds is not None else ["--host", "127.0.0.1", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate.simulator.fake_engine", "serve", model, *where, *flags,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        address = line.decode().rpartition(" on ")[2].strip()
        if not address:
            raise AssertionError(f"the fake engine did not start (status {await process.wait()})")
        url = "http://engine" if uds is not None else address
        yield EngineProcess(process=process, url=url, uds=uds)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        # The transport of the pipe closes on the next pass of the loop.
        await asyncio.sleep(0)


def read_log(path: Path, *events: str) -> list[dict[str, Any]]:
    """Lines of a request log; only those of ``events`` where some are named."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if not events or line["event"] in events]


def check_log(path: Path) -> Counter[str]:
    """AssertionError unless every sequence arrived once and ended once; counts by event."""
    arrived = Counter(line["request"] for line in read_log(path, "arrived"))
    ended = Counter(line["request"] for line in read_log(path, "finished", "aborted"))
    assert arrived == ended
    assert set(arrived.values()) <= {1}
    return Counter(line["event"] for line in read_log(path))
