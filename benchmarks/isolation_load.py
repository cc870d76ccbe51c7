"""Open-loop callers for `scripts/bench isolation`: interactive requests beside a batch overload.

Requests come at times drawn beforehand (Poisson), whether or not those before them were answered. A
first token counts from when its request was due; one that was refused, failed, or has none when the
run ends counts as having waited for the rest of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

INTERACTIVE, BATCH = "interactive", "batch"
_VOCABULARY = range(8, 500)
_EMPTY_SECONDS = 60.0
_LAST_SECONDS = 1.0
"""Requests due later than so long before a run's end are not counted: they had no time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one tier: tokens, each drawn evenly between two bounds."""

    tier: str
    prompt: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Due:
    """One request; ``at`` in seconds from the run's begin."""

    at: float
    tier: str
    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: the engine itself, or a sidecar with a key for each tier."""

    session: aiohttp.ClientSession
    url: str
    model: str
    keys: dict[str, str]


@dataclass(slots=True)
class Run:
    """What came of one run after its warming up."""

    ttft_seconds: list[float] = field(default_factory=list)
    batch_tokens: int = 0
    """Prompt and output, of those that ended."""
    missed: int = 0
    """Interactive requests without a first token."""
    seconds: float = 0.0

    def p95_seconds(self) -> float:
        """Nearest rank."""
        ordered = sorted(self.ttft_seconds)
        return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]

    @property
    def batch_tokens_per_second(self) -> float:
        return self.batch_tokens / self.seconds


def arrivals(shape: Shape, per_second: float, seconds: float, seed: str) -> list[Due]:
    """A Poisson process."""
    draw = random.Random(seed)
    at, dues = draw.expovariate(per_second), []
    while at < seconds:
        dues.append(_due(shape, at, draw))
        at += draw.expovariate(per_second)
    return dues


def _due(shape: Shape, at: float, draw: random.Random) -> Due:
    prompt = [draw.choice(_VOCABULARY) for _ in range(draw.randint(*shape.prompt))]
    return Due(at, shape.tier, prompt, draw.randint(*shape.output))


async def open_loop(target: Target, dues: Sequence[Due], warm: float, seconds: float) -> Run:
    """Send all as they are due; what is under way at the end is given up."""
    run = Run(seconds=seconds - warm)
    began = time.perf_counter()
    tasks = [
        asyncio.create_task(_interactive(target, due, began, run, warm, seconds))
        if due.tier == INTERACTIVE
        else asyncio.create_task(_batch(target, due, began, run, warm, seconds))
        for due in dues
    ]
    await asyncio.sleep(began + seconds - time.perf_counter())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return run


async def _interactive(
    target: Target, due: Due, began: float, run: Run, warm: float, seconds: float
) -> None:
    ttft = None
    try:
        await asyncio.sleep(began + due.at - time.perf_counter())
        async with _post(target, due, stream=True) as answer:
            if answer.status == 200:
                async for line in answer.content:
                    if line.startswith(b"data: {") and b'"error"' not in line:
                        ttft = time.perf_counter() - began - due.at
                        break
                async for _ in answer.content:
                    pass
    except aiohttp.ClientError:
        pass
    finally:
        if warm <= due.at <= seconds - _LAST_SECONDS:
            run.missed += ttft is None
            run.ttft_seconds.append(seconds - due.at if ttft is None else ttft)


async def _batch(
    target: Target, due: Due, began: float, run: Run, warm: float, seconds: float
) -> None:
    await asyncio.sleep(began + due.at - time.perf_counter())
    with contextlib.suppress(aiohttp.ClientError):
        async with _post(target, due, stream=False) as answer:
            document = await answer.json()
            if answer.status == 200 and warm <= time.perf_counter() - began <= seconds:
                run.batch_tokens += document["usage"]["total_tokens"]


def _post(
    target: Target, due: Due, *, stream: bool
) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
    body = orjson.dumps(
        {
            "model": target.model,
            "prompt": due.prompt,
            "max_tokens": due.output_tokens,
            "temperature": 0,
            "stream": stream,
        }
    )
    headers = {"Content-Type": "application/json"}
    if due.tier in target.keys:
        headers["Authorization"] = f"Bearer {target.keys[due.tier]}"
    return target.session.post(f"{target.url}/v1/completions", data=body, headers=headers)


async def capacity(target: Target, shape: Shape, callers: int, seconds: float) -> float:
    """Requests of one shape per second that an engine ends which has nothing else to do."""
    draw = random.Random(f"capacity {shape.tier}")
    ended, warm = 0, seconds / 3
    began = time.perf_counter()

    async def caller() -> None:
        nonlocal ended
        while True:
            async with _post(target, _due(shape, 0.0, draw), stream=False) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"the engine answered {answer.status}")
            ended += time.perf_counter() - began >= warm

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
    return ended / (seconds - warm)


async def until_empty(engine: Target) -> None:
    """Until the engine has nothing left of what was given up."""
    async with asyncio.timeout(_EMPTY_SECONDS):
        while True:
            async with engine.session.get(f"{engine.url}/metrics") as answer:
                text = await answer.text()
            names = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
            lines = [line for line in text.splitlines() if line.startswith(names)]
            if lines and not any(float(line.rpartition(" ")[2]) for line in lines):
                return
            await asyncio.sleep(0.1)
