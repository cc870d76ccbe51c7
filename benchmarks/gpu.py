"""The plug-in on a GPU: its cases, and T0's latency beside batch work.

For a machine with a GPU and vLLM 0.32 (``--python``: the interpreter that has it; by default
``$TIDEGATE_VLLM_PYTHON``, else ``python3``). It brings all else: the tests' tiny model and
tokenizer, made on the spot, and a model of 6.5 billion random weights that vLLM fills in itself.
Under eight minutes; nothing is downloaded. It has not been run on a GPU yet (docs/unproven.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from testbed.real_vllm import TINY_MODEL, started, until_healthy

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = ROOT / "tests" / "support"
WIDE = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 16_384,
}  # fmt: skip
TIERS = [
    {"name": "t0", "priority": 100},
    {"name": "t3", "priority": 0, "preemption": {"evictable": True}},
]
POLICY = {
    "version": 1, "generation": 1, "pool": "gpu/pool", "model": {"name": "m"}, "tiers": TIERS,
}  # fmt: skip
START_SECONDS = 180.0
LOAD_SECONDS = 30.0
BATCH_IN_FLIGHT = 300
T0_PER_SECOND = 8.0


@dataclass
class Seen:
    """What a load saw."""

    t0_seconds: list[float] = field(default_factory=list)
    tokens: int = 0

    def p95(self) -> float:
        """Of T0's time to its first token."""
        ordered = sorted(self.t0_seconds)
        return ordered[int((len(ordered) - 1) * 0.95)]


def script(python: str, file: Path, *arguments: object, seconds: float) -> list[str]:
    """Lines of JSON that one of the tests' scripts prints; RuntimeError: it failed."""
    done = subprocess.run(
        [python, file, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=seconds,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{file.name}: {done.stderr.strip()[-300:]}")
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def cases(python: str, model: Path) -> Figure:
    """The plug-in's cases on this machine's vLLM."""
    told = [
        json.loads(line)
        for line in script(python, SUPPORT / "plugin_runner.py", model, seconds=150)
    ]
    failed = [f"{one['case']} ({one['variant']})" for one in told if one["error"]]
    name = "cases of the plug-in that fail, of both classes"
    return figure(name, len(failed), "", Aim("<=", 0), ", ".join(failed) or f"of {len(told)}")


@contextmanager
def server(python: str, model: Path, folder: Path, *, plugin: bool) -> Iterator[str]:
    """``vllm serve`` with CUDA graphs and async scheduling, on a Unix socket; gone on exit."""
    uds, log = folder / "e.sock", folder / "engine.log"
    flags: list[str] = []
    if plugin:
        (folder / "policy.json").write_text(json.dumps(POLICY))
        paths = {"policy": str(folder / "policy.json"), "statistics": str(folder / "steps.sock")}
        flags = [
            "--scheduler-cls=tidegate.vllm_plugin.TidegateAsyncScheduler",
            f"--additional-config={json.dumps({'tidegate': paths})}",
        ]
    with suppress(FileNotFoundError):
        uds.unlink()
    command = [
        python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), f"--uds={uds}",
        "--served-model-name=m", "--load-format=dummy", "--max-model-len=8192",
        "--max-num-seqs=256", "--async-scheduling", *flags,
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with started(command, log, environment) as process:
        until_healthy(process, uds, log, START_SECONDS)
        yield str(uds)


def _session(uds: str) -> aiohttp.ClientSession:
    connector = aiohttp.UnixConnector(path=uds, limit=0)
    return aiohttp.ClientSession("http://engine", connector=connector)


async def serve_load(uds: str, *, batch: bool, seconds: float = LOAD_SECONDS) -> Seen:
    """T0 at a fixed rate, with a backlog of batch beside it or without."""
    seen, sequence = Seen(), iter(range(1 << 30))
    end = time.monotonic() + seconds

    async def send(tier: str, prompt: int, output: int) -> None:
        number = next(sequence)
        draw, begin, first = random.Random(number), time.monotonic(), True
        body = {
            "model": "m", "prompt": draw.choices(range(8, 500), k=prompt), "max_tokens": output,
            "ignore_eos": True, "stream": True, "temperature": 0,
            "vllm_xargs": {"tidegate_tier": tier, "tidegate_sequence": number},
        }  # fmt: skip
        async with client.post("/v1/completions", json=body) as answer:
            async for chunk in answer.content.iter_any():
                if time.monotonic() < end:
                    seen.tokens += chunk.count(b'"text"')
                if first and tier == "t0":
                    seen.t0_seconds.append(time.monotonic() - begin)
                first = False

    async def keep_sending() -> None:
        while True:
            await send("t3", random.randrange(200, 3_000), random.randrange(100, 400))

    async with _session(uds) as client:
        tasks = [asyncio.create_task(keep_sending()) for _ in range(BATCH_IN_FLIGHT * batch)]
        t0 = []
        while time.monotonic() < end:
            t0.append(asyncio.create_task(send("t0", random.randrange(50, 400), 32)))
            await asyncio.sleep(random.expovariate(T0_PER_SECOND))
        await asyncio.wait(t0, timeout=20)
        for task in (*tasks, *t0):
            task.cancel()
        await asyncio.gather(*tasks, *t0, return_exceptions=True)
    return seen


def latency(python: str, model: Path, folder: Path, console: Console) -> list[Figure]:
    """Stock, then with the plug-in."""
    console.print("stock engine")
    with server(python, model, folder, plugin=False) as uds:
        asyncio.run(serve_load(uds, batch=False, seconds=10))
        alone = asyncio.run(serve_load(uds, batch=False, seconds=15))
        stock = asyncio.run(serve_load(uds, batch=True))
    console.print("engine with the plug-in")
    with server(python, model, folder, plugin=True) as uds:
        asyncio.run(serve_load(uds, batch=False, seconds=10))
        plans: list[float] = []
        with listening(folder / "steps.sock") as receiver:
            ours = asyncio.run(_load_and_listen(uds, receiver, plans))
    plans.sort()
    return [
        figure("T0 TTFT p95 alone", alone.p95() * 1e3, "ms"),
        figure("stock FCFS: T0 TTFT p95 over alone", stock.p95() / alone.p95(), ""),
        figure("plug-in: T0 TTFT p95 over alone", ours.p95() / alone.p95(), "", Aim("<=", 1.5)),
        figure(
            "plug-in: tokens a second over stock's", ours.tokens / stock.tokens, "", Aim(">=", 0.95)
        ),
        figure(
            "time before schedule(), median",
            1e3 * plans[len(plans) // 2] if plans else None,
            "ms",
            Aim("<=", 0.3),
            f"{len(plans)} steps told" if plans else "no step was told",
        ),
    ]


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Where the plug-in tells of its steps."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.setblocking(False)
        yield receiver


async def _load_and_listen(uds: str, receiver: socket.socket, plans: list[float]) -> Seen:
    def read() -> None:
        with suppress(BlockingIOError):
            while True:
                plans.append(json.loads(receiver.recv(1 << 18))["plan_seconds"])

    loop = asyncio.get_running_loop()
    loop.add_reader(receiver, read)
    try:
        return await serve_load(uds, batch=True)
    finally:
        loop.remove_reader(receiver)


def wide(tiny: Path, folder: Path) -> Path:
    """The tiny model's configuration and tokenizer with a large model's sizes, and no weights."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config.pop("head_dim", None)
    (folder / "config.json").write_text(json.dumps(config | WIDE))
    return folder


def options(parser: argparse.ArgumentParser) -> None:
    """Which vLLM."""
    chosen = os.environ.get("TIDEGATE_VLLM_PYTHON", "python3")
    parser.add_argument("--python", default=chosen, help="an interpreter with vLLM 0.32")


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Everything, or why not."""
    if shutil.which("nvidia-smi") is None:
        return [figure("the plug-in on a GPU", None, "", why="this machine has no NVIDIA GPU")]
    python, found = arguments.python, []
    with tempfile.TemporaryDirectory(prefix="tg-") as scratch:
        folder = Path(scratch)
        try:
            script(python, TINY_MODEL, folder / "tiny", seconds=90)
            found.append(cases(python, folder / "tiny"))
            model = wide(folder / "tiny", folder / "wide")
            found += latency(python, model, folder, console)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            found.append(figure("the rest", None, "", why=str(error)[:300]))
    return found


if __name__ == "__main__":
    sys.exit(benchmark("gpu", (__doc__ or "").splitlines()[0], measure, options))
