"""A real vLLM on CPU that serves the tiny model on a Unix socket, for tests marked `vllm`."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from support.fake_engine import socket_folder

from testbed.real_vllm import (
    ENVIRONMENT,
    START_SECONDS,
    STOP_SECONDS,
    serve_tiny,
    started,
    until_healthy,
)


@dataclass(slots=True)
class VllmEngine:
    """A running `vllm serve`."""

    process: subprocess.Popen[bytes]
    uds: str

    def client(self) -> aiohttp.ClientSession:
        """A client of the engine without limits of its own; close it before the engine ends."""
        return aiohttp.ClientSession(
            "http://engine",
            connector=aiohttp.UnixConnector(path=self.uds, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=START_SECONDS),
        )

    async def metrics(self, client: aiohttp.ClientSession) -> dict[str, float]:
        """Samples of /metrics by name, summed over their labels."""
        sums: dict[str, float] = {}
        async with client.get("/metrics") as answer:
            text = await answer.text()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def until_running(self, client: aiohttp.ClientSession, waiting: int = 0) -> None:
        """Until a request runs and `waiting` wait; TimeoutError after half a minute."""
        async with asyncio.timeout(30):
            figures = await self.metrics(client)
            while not (
                figures["vllm:num_requests_running"]
                and figures["vllm:num_requests_waiting"] >= waiting
            ):
                await asyncio.sleep(0.01)
                figures = await self.metrics(client)

    async def wait(self) -> int:
        """Exit status, once it has ended; TimeoutError if it does not."""
        return await asyncio.to_thread(self.process.wait, STOP_SECONDS)


@contextlib.contextmanager
def vllm_engine(python: Path, model: Path, *flags: str) -> Iterator[VllmEngine]:
    """Start `vllm serve MODEL --uds PATH` with `flags`, wait for its /health; gone on exit."""
    with socket_folder() as folder:
        uds, log = folder / "engine.sock", folder / "engine.log"
        command = serve_tiny(python, model, uds, *flags)
        with started(command, log, ENVIRONMENT) as process:
            until_healthy(process, uds, log)
            yield VllmEngine(process, str(uds))
