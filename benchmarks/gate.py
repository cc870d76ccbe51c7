"""Whether the gate keeps the engine busy and its queue short: the sidecar before the fake engine.

Four workloads: short chat, 16K prompts, 2K outputs, and a change from each to the next. All
requests of one are given to the sidecar at once; what became of them is read from the engine's own
log of requests and steps.

The reference is the engine alone, all requests at once, with the best of three max_num_seqs. It is
the same engine model run in virtual time, so it pays for no HTTP and no client: what the sidecar,
the sockets and a busy machine cost counts against the gate.

A step's idle share is that of its seats which stayed empty although the sidecar had requests
queued, the engine's own queue was empty, and seats, KV and token budget were free for one more.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp
import rivals
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from tidegate.scheduling import contracts
from tidegate.simulator.engine_model import CALIBRATIONS, Engine, EngineConfig, EngineRequest

CALIBRATION = "h100_70b_tp8"
SEATS = (16, 32, 64)
BUDGET_TOKENS = 2_048
BLOCK_TOKENS = 16
KV_BLOCKS = 24_000
MODEL = "bench-model"
TENANT = "bench/tenant"
_QUEUED_SECONDS = 20.0

Shape = tuple[int, int]
"""Prompt and output tokens."""


def _shapes(prompts: range, outputs: range, count: int) -> list[Shape]:
    return list(islice(zip(cycle(prompts), cycle(outputs), strict=False), count))


def _chat(count: int) -> list[Shape]:
    return _shapes(range(50, 400, 37), range(20, 250, 23), count)


def _long_prompts(count: int) -> list[Shape]:
    return _shapes(range(15_000, 17_000, 311), range(50, 200, 17), count)


def _long_outputs(count: int) -> list[Shape]:
    return _shapes(range(50, 400, 37), range(1_500, 2_500, 101), count)


WORKLOADS: dict[str, list[Shape]] = {
    "short chat": _chat(900),
    "16K prompts": _long_prompts(40),
    "2K outputs": _long_outputs(160),
    "step change": _chat(300) + _long_prompts(20) + _long_outputs(100) + _chat(300),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What the engine's log says of one workload behind the sidecar."""

    makespan_seconds: float
    wait_p95_steps: int
    idle_ratio: float
    steps: int


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="multiplies the engine's step times"
    )
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, help="workloads; unset: all")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs the workloads; three figures of each."""
    figures: list[Figure] = []
    for name in arguments.only or WORKLOADS:
        shapes = WORKLOADS[name]
        alone = {seats: alone_seconds(shapes, seats, arguments.time_scale) for seats in SEATS}
        seats = min(alone, key=lambda each: alone[each])
        console.print(
            f"{name}: {len(shapes)} requests, the engine alone takes {alone[seats]:.1f} s "
            f"with max_num_seqs {seats}",
            style="dim",
            highlight=False,
        )
        run, why = None, ""
        try:
            run = asyncio.run(gated(shapes, seats, arguments.time_scale))
        except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            why = f"{type(error).__name__}: {error}"
        figures += _figures(name, run, alone[seats], why)
    return figures


def _figures(name: str, run: Run | None, alone: float, why: str) -> list[Figure]:
    return [
        figure(
            f"{name}: throughput of the engine alone",
            None if run is None else alone / run.makespan_seconds,
            "ratio",
            Aim(">=", 0.97),
            why,
        ),
        figure(
            f"{name}: wait in the engine, p95",
            None if run is None else run.wait_p95_steps,
            "steps",
            Aim("<=", 2),
            why,
        ),
        figure(
            f"{name}: steps idle while we had work",
            None if run is None else 100 * run.idle_ratio,
            "%",
            Aim("<=", 1),
            why,
        ),
    ]


def alone_seconds(shapes: Sequence[Shape], seats: int, time_scale: float) -> float:
    """How long the engine takes when it is given all at once, in its own time."""
    engine = Engine(
        EngineConfig(
            step_time=CALIBRATIONS[CALIBRATION].step_time.scaled(time_scale),
            num_gpu_blocks=KV_BLOCKS,
            block_size=BLOCK_TOKENS,
            max_num_seqs=seats,
            max_num_batched_tokens=BUDGET_TOKENS,
            enable_prefix_caching=False,
        )
    )
    for number, (prompt, output) in enumerate(shapes):
        engine.add(EngineRequest(str(number), prompt, output))
    now = 0.0
    while engine.has_work:
        now = engine.step(now).ends_at
    return now


async def gated(shapes: Sequence[Shape], seats: int, time_scale: float) -> Run:
    """The same through the sidecar, in real time."""
    core = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="tg-gate-") as name:
        folder = Path(name)
        log = folder / "requests.jsonl"
        port, admin_port = rivals.free_port(), rivals.free_port()
        engine = rivals.Command(_engine_arguments(folder, log, seats, time_scale))
        sidecar = rivals.Command(_sidecar_arguments(folder, seats, port, admin_port))
        with (
            rivals.started(engine, core[0], folder / "engine.log") as process,
            rivals.started(sidecar, core[-1], folder / "sidecar.log"),
        ):
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                admin = f"http://127.0.0.1:{admin_port}"
                await _until_ready(session, admin)
                # Stopped while they are sent, so that the engine finds a full queue behind it.
                os.kill(process.pid, signal.SIGSTOP)
                sent = [
                    asyncio.create_task(_send(session, f"http://127.0.0.1:{port}", shape))
                    for shape in shapes
                ]
                try:
                    await _until_taken(session, admin, len(shapes))
                finally:
                    os.kill(process.pid, signal.SIGCONT)
                await asyncio.gather(*sent)
        return read_log(log, seats)


def _engine_arguments(folder: Path, log: Path, seats: int, time_scale: float) -> list[str]:
    return [
        sys.executable, "-m", "tidegate.simulator.fake_engine", "serve", MODEL,
        f"--uds={folder / 'engine.sock'}", f"--max-num-seqs={seats}",
        f"--max-num-batched-tokens={BUDGET_TOKENS}", f"--num-gpu-blocks-override={KV_BLOCKS}",
        f"--block-size={BLOCK_TOKENS}", "--no-enable-prefix-caching",
        f"--fake-calibration={CALIBRATION}", f"--fake-time-scale={time_scale}",
        "--fake-ignore-eos", f"--fake-request-log={log}", "--fake-log-steps",
    ]  # fmt: skip


def _sidecar_arguments(folder: Path, seats: int, port: int, admin_port: int) -> list[str]:
    queue = contracts.QueueLimits(max_wait_seconds=3_600.0)
    tier = contracts.TierPolicy(name="standard", queue=queue)
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name=MODEL),
        tiers=(tier,),
        tenants=(contracts.TenantPolicy(name=TENANT, tier=tier.name),),
        engine=contracts.EngineLimits(max_num_seqs=seats, max_num_batched_tokens=BUDGET_TOKENS),
    )
    digest = hashlib.sha256(rivals.KEY.encode()).hexdigest()
    keys = contracts.KeySet(version=contracts.KEYS_VERSION, generation=1, keys={digest: TENANT})
    for name, document in (("policy.json", policy), ("keys.json", keys)):
        (folder / name).write_text(contracts.dumps(document))
    return [
        sys.executable, "-m", "tidegate_sidecar", f"--policy={folder / 'policy.json'}",
        f"--keys={folder / 'keys.json'}", f"--engine=uds:{folder / 'engine.sock'}",
        f"--port={port}", f"--admin-port={admin_port}",
    ]  # fmt: skip


async def _until_ready(session: aiohttp.ClientSession, admin: str) -> None:
    async with asyncio.timeout(rivals.START_SECONDS):
        while True:
            status = await _status(session, admin)
            if status and status["engine"]["ready"]:
                return
            await asyncio.sleep(0.1)


async def _until_taken(session: aiohttp.ClientSession, admin: str, count: int) -> None:
    async with asyncio.timeout(_QUEUED_SECONDS):
        while True:
            status = await _status(session, admin)
            if status and sum(t["queued"] + t["running"] for t in status["tiers"]) >= count:
                return
            await asyncio.sleep(0.05)


async def _status(session: aiohttp.ClientSession, admin: str) -> dict[str, Any] | None:
    try:
        async with session.get(f"{admin}/status") as answer:
            status: dict[str, Any] | None = await answer.json() if answer.status == 200 else None
            return status if status and status.get("engine") else None
    except aiohttp.ClientConnectionError:
        return None


async def _send(session: aiohttp.ClientSession, url: str, shape: Shape) -> None:
    prompt, output = shape
    body = {"model": MODEL, "prompt": [7] * prompt, "max_tokens": output}
    headers = {"Authorization": f"Bearer {rivals.KEY}"}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        document = await answer.json()
        if answer.status != 200 or document["usage"]["completion_tokens"] != output:
            raise RuntimeError(f"a request was answered {answer.status}: {str(document)[:200]}")


def read_log(path: Path, seats: int) -> Run:
    """The figures of a run, from the engine's log."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    arrived = [line for line in lines if line["event"] == "arrived"]
    ended = [line["time"] for line in lines if line["event"] == "finished"]
    waits = sorted(line["wait_steps"] for line in lines if line["event"] == "scheduled")
    # Our queue was not empty from the first arrival there to the last.
    first, last = arrived[0]["time"], arrived[-1]["time"]
    steps = [s for s in lines if s["event"] == "step" and first <= s["time"] <= last]
    if not steps:
        raise RuntimeError("the engine's log has no step while requests were queued")
    typical_blocks = max(line["prompt_tokens"] for line in arrived) // BLOCK_TOKENS + 1
    mean_seconds = sum(step["seconds"] for step in steps) / len(steps)
    idle = 0.0
    for step in steps:
        could_have_had_one = (
            not step["waiting"]
            and step["free_blocks"] >= typical_blocks
            and step["prefill_tokens"] + step["decode_tokens"] < BUDGET_TOKENS
        )
        if could_have_had_one:
            idle += step["free_seats"] / seats
        idle += step["idle_seconds"] / mean_seconds if step is not steps[0] else 0.0
    return Run(
        makespan_seconds=max(ended) - first,
        wait_p95_steps=waits[min(len(waits) - 1, int(0.95 * len(waits)))],
        idle_ratio=idle / len(steps),
        steps=len(steps),
    )


if __name__ == "__main__":
    sys.exit(benchmark("gate", __doc__ or "", measure, options))
