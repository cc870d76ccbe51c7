"""The real vLLM on CPU, serving the tiny model on a Unix socket, for tests marked `vllm`.

vLLM lives in an environment of its own (`scripts/install-vllm`); where that is not installed the
tests are skipped, but in CI (`CI=true`) they fail. vLLM neither removes its socket when it ends nor
replaces one that is there: each engine here gets a folder of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from support.fake_engine import socket_folder

VLLM_VERSION = "0.32.0"
MODEL = "tiny"
BLOCK_TOKENS = 32
START_SECONDS = 300.0
"""An engine starts in 30 to 60 s on two idle cores."""
STOP_SECONDS = 60.0
_TINY_MODEL = Path(__file__).with_name("tiny_model.py")

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # more threads spin for each other when the machine is busy
}


def vllm_python() -> Path:
    """The Python with vLLM in it; skips (in CI: fails) the calling test where there is none."""
    cache = os.environ.get("TIDEGATE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate"
    )
    folder = Path(cache, f"vllm-{VLLM_VERSION}")
    if not (folder / ".complete").exists():
        missing = f"vLLM {VLLM_VERSION} is not installed; run scripts/install-vllm"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return folder / "bin" / "python"


def make_tiny_model(python: Path, folder: Path) -> Path:
    """The tiny model, written into `folder` by vLLM's own Python."""
    subprocess.run(
        [python, _TINY_MODEL, folder],
        check=True,
        capture_output=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=300,
    )
    return folder


@dataclass(slots=True)
class VllmEngine:
    """A running `vllm serve`."""

    process: subprocess.Popen[bytes]
    uds: str
    log: Path

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

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def vllm_engine(python: Path, model: Path, *flags: str) -> Iterator[VllmEngine]:
    """Start `vllm serve MODEL --uds PATH` with `flags`, wait for its /health; gone on exit."""
    with socket_folder() as folder:
        uds, log = str(folder / "engine.sock"), folder / "engine.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    python.with_name("vllm"), "serve", model, "--uds", uds,
                    "--served-model-name", MODEL, "--block-size", str(BLOCK_TOKENS),
                    "--enforce-eager", *flags,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )  # fmt: skip
        engine = VllmEngine(process, uds, log)
        try:
            _until_healthy(engine)
            yield engine
        finally:
            _end(process)


def _until_healthy(engine: VllmEngine) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(engine.uds):
        if engine.process.poll() is not None:
            raise AssertionError(f"vLLM ended while starting:\n{engine.log_tail()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"vLLM did not start in {START_SECONDS} s:\n{engine.log_tail()}")
        time.sleep(0.2)


def _healthy(uds: str) -> bool:
    connection = http.client.HTTPConnection("engine", timeout=START_SECONDS)
    with contextlib.closing(connection), socket.socket(socket.AF_UNIX) as connection.sock:
        try:
            connection.sock.connect(uds)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the server and, whatever state they are in, its engine and worker processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
