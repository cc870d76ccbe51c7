"""Real vLLM on CPU for the fidelity check: starts it, sends it requests, gives back its notes.

It serves the tiny model (random weights, 2 layers) over a Unix socket from the environment
that `scripts/install-vllm` makes, with `fidelity_recorder` as its scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from fidelity_log import Notes, read_notes

from testbed.real_vllm import (
    BLOCK_TOKENS,
    ENVIRONMENT,
    MODEL,
    START_SECONDS,
    serve_tiny,
    started,
    until_healthy,
)

MAX_MODEL_TOKENS = 8192
_VOCABULARY = range(8, 500)
_HERE = Path(__file__).resolve().parent
_ENVIRONMENT = ENVIRONMENT | {
    # Else the CPU platform gives the model a process of its own, and each step waits for two.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": os.pathsep.join((str(_HERE), str(_HERE.parent))),
}


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """What the runs differ in; named like vLLM's flags."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    scheduling_policy: str = "priority"
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    plugin_policy: str | None = None
    """With the plug-in, under this policy.json; unset: stock."""

    def with_blocks(self, factor: float) -> EngineFlags:
        """With that many times the KV blocks."""
        return replace(self, num_gpu_blocks=round(self.num_gpu_blocks * factor))

    def arguments(self) -> list[str]:
        """For `vllm serve`."""
        longest = min(MAX_MODEL_TOKENS, (self.num_gpu_blocks - 1) * BLOCK_TOKENS)
        return [
            f"--max-num-seqs={self.max_num_seqs}",
            f"--max-num-batched-tokens={self.max_num_batched_tokens}",
            f"--num-gpu-blocks-override={self.num_gpu_blocks}",
            f"--scheduling-policy={self.scheduling_policy}",
            f"--long-prefill-token-threshold={self.long_prefill_token_threshold}",
            f"--watermark={self.watermark}",
            f"--max-model-len={longest}",
        ]


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to be sent `at` seconds after the run's start. `name` is unique in the run.

    Its first `shared_tokens` are those of every other request.
    """

    name: str
    at: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RealRun:
    """What vLLM noted, and the time to the first byte that the client saw, by name."""

    notes: Notes
    client_ttft_seconds: dict[str, float]


@dataclass(slots=True)
class RealEngine:
    """A `vllm serve` that was started; `until_ready` comes before the first run."""

    process: subprocess.Popen[bytes]
    folder: Path
    _seen: int = 0
    _runs: int = 0

    @property
    def socket(self) -> Path:
        return self.folder / "e.sock"

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"

    @property
    def notes_file(self) -> Path:
        return self.folder / "notes.jsonl"

    def until_ready(self) -> None:
        """VllmError: it ended, or did not answer in time."""
        until_healthy(self.process, self.socket, self.log)

    def run(self, planned: Sequence[Planned], seed: int) -> RealRun:
        """Sends all at their times; RuntimeError: one was not answered as asked."""
        self._runs += 1
        ttft = asyncio.run(_send_all(str(self.socket), planned, seed, str(self._runs)))
        lines = self.notes_file.read_text().splitlines()
        notes = read_notes(lines[self._seen :])
        self._seen = len(lines)
        return RealRun(notes, ttft)


@contextlib.contextmanager
def real_engine(
    python: Path, model: Path, flags: EngineFlags, folder: Path
) -> Iterator[RealEngine]:
    """`vllm serve` with these flags, in a folder with a short path; gone on exit."""
    folder.mkdir()
    scheduler = ["--scheduler-cls", "fidelity_recorder.RecordingScheduler"]
    if flags.plugin_policy is not None:
        policy = folder / "policy.json"
        policy.write_text(flags.plugin_policy)
        config = json.dumps({"tidegate": {"policy": str(policy)}})
        scheduler = ["--scheduler-cls", "fidelity_plugin_recorder.RecordingPlugin"]
        scheduler += ["--additional-config", config]
    command = serve_tiny(
        python,
        model,
        folder / "e.sock",
        "--distributed-executor-backend=uni",
        *scheduler,
        "--disable-uvicorn-access-log",
        "--stream-interval=16",  # the first token is sent at once all the same
        *flags.arguments(),
    )
    environment = _ENVIRONMENT | {"TIDEGATE_FIDELITY_LOG": str(folder / "notes.jsonl")}
    with started(command, folder / "engine.log", environment) as process:
        yield RealEngine(process, folder)


async def _send_all(path: str, planned: Sequence[Planned], seed: int, run: str) -> dict[str, float]:
    bodies = {one.name: _body(one, random.Random(f"{seed} {one.name}")) for one in planned}
    connector = aiohttp.UnixConnector(path=path, limit=0)
    timeout = aiohttp.ClientTimeout(total=START_SECONDS)
    async with aiohttp.ClientSession(
        "http://engine", connector=connector, timeout=timeout
    ) as session:
        start = time.monotonic() + 0.05
        sent = [_send(session, one, bodies[one.name], start, run) for one in planned]
        return dict(zip((one.name for one in planned), await asyncio.gather(*sent), strict=True))


def tier_of(name: str) -> str:
    """The tier that a request's name begins with."""
    return name.partition("-")[0]


def sequence_of(name: str) -> int:
    """The place in order of sending that a request's name ends with."""
    return int(name.rpartition("-")[2])


def _body(one: Planned, draw: random.Random) -> dict[str, object]:
    """With tags for the plug-in, which stock does not read."""
    tags: dict[str, object] = {"tidegate_tier": tier_of(one.name)}
    if one.name.rpartition("-")[2].isdecimal():
        tags["tidegate_sequence"] = sequence_of(one.name)
    shared = random.Random("shared").choices(_VOCABULARY, k=one.shared_tokens)
    own = draw.choices(_VOCABULARY, k=one.prompt_tokens - one.shared_tokens)
    return {
        "model": MODEL,
        "prompt": shared + own,
        "max_tokens": one.output_tokens,
        "priority": one.priority,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "vllm_xargs": tags,
    }


async def _send(
    session: aiohttp.ClientSession, one: Planned, body: dict[str, object], start: float, run: str
) -> float:
    due = start + one.at
    await asyncio.sleep(max(due - time.monotonic(), 0.0))
    headers = {"X-Request-Id": f"{one.name}.{run}"}
    first: float | None = None
    async with session.post("/v1/completions", json=body, headers=headers) as answer:
        if answer.status != 200:
            raise RuntimeError(f"vLLM answered {answer.status}: {(await answer.text())[:200]}")
        async for chunk in answer.content.iter_any():
            if first is None and chunk.startswith(b"data: {"):
                first = time.monotonic() - due
    if first is None:
        raise RuntimeError("vLLM answered without a token")
    return first
