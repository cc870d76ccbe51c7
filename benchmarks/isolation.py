"""What a batch overload does to interactive tenants: alone, unprotected, and behind the sidecar.

On one engine, first the fake one and then the real vLLM on CPU with the tests' tiny model: batch is
offered 1.2 times what the engine can do of it, and interactive requests half of their tier's
reservation. What it can do of each is measured first, with nothing else to do. In each round the
interactive requests come alone, then beside batch straight to the engine, then both through the
sidecar over HTTP, without the plug-in; the same requests at the same times.

The bound on batch throughput: unprotected, both are served as they come, so batch gets
1.2 / (1.2 + i) of the engine, where i is the interactive load; protected it gets what those leave,
1 - i. With half a reservation of 20% no scheduler can give batch more than 0.975 of unprotected.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import rivals
from isolation_load import (
    BATCH,
    INTERACTIVE,
    Run,
    Shape,
    Target,
    arrivals,
    capacity,
    open_loop,
    until_empty,
)
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from testbed.real_vllm import BLOCK_TOKENS, ENVIRONMENT, make_tiny_model, vllm_python
from tidegate.scheduling import contracts

MODEL = "isolation-model"
RESERVED_PERCENT = 20
BATCH_LOAD = 1.2
INTER_TOKEN_SECONDS = 0.1
"""Promised to the interactive tier; that it is promised bounds the prefills that are under way."""
START_SECONDS = 600.0
ALONE, UNPROTECTED, OURS = "alone", "unprotected", "ours"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine to measure on. ``start`` gives its command; VllmError: it cannot be had."""

    name: str
    seats: int
    budget_tokens: int
    interactive: Shape
    batch: Shape
    start: Callable[[Path, Path], rivals.Command]
    """Of a folder of its own and its socket."""


def _fake(folder: Path, socket: Path) -> rivals.Command:
    return rivals.Command(
        [
            sys.executable, "-m", "tidegate.simulator.fake_engine", "serve", MODEL,
            f"--uds={socket}", f"--max-num-seqs={FAKE.seats}",
            f"--max-num-batched-tokens={FAKE.budget_tokens}", "--fake-ignore-eos",
            "--fake-calibration=h100_70b_tp8", "--no-enable-prefix-caching",
            "--scheduling-policy=priority",
        ]
    )  # fmt: skip


def _vllm(folder: Path, socket: Path) -> rivals.Command:
    python = vllm_python()
    model = make_tiny_model(python, folder / "model")
    return rivals.Command(
        [
            str(python.with_name("vllm")), "serve", str(model), f"--uds={socket}",
            f"--served-model-name={MODEL}", f"--block-size={BLOCK_TOKENS}", "--enforce-eager",
            f"--max-num-seqs={VLLM.seats}", f"--max-num-batched-tokens={VLLM.budget_tokens}",
            "--max-model-len=1024", "--num-gpu-blocks-override=1024",
            "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
            "--scheduling-policy=priority",
        ],
        ENVIRONMENT,
    )  # fmt: skip


FAKE = EngineKind(
    "fake engine",
    64,
    2_048,
    Shape(INTERACTIVE, (100, 500), (20, 100)),
    Shape(BATCH, (200, 800), (50, 250)),
    _fake,
)
VLLM = EngineKind(
    "vLLM on CPU",
    16,
    256,
    Shape(INTERACTIVE, (40, 120), (8, 24)),
    Shape(BATCH, (40, 120), (40, 120)),
    _vllm,
)
KINDS = {"fake": FAKE, "vllm": VLLM}


@dataclass(slots=True)
class Rounds:
    """All runs on one engine, by contestant."""

    runs: dict[str, list[Run]] = field(
        default_factory=lambda: {ALONE: [], UNPROTECTED: [], OURS: []}
    )


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--only", choices=KINDS, help="one engine; unset: both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=24.0, help="of a run (24)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the engines' logs and usage records here"
    )


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Both engines."""
    figures: list[Figure] = []
    for name, kind in KINDS.items():
        if arguments.only not in (None, name):
            continue
        rounds, why = None, ""
        try:
            rounds = asyncio.run(measured(kind, arguments, console))
        except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            why = str(error) or type(error).__name__
        figures += _figures(kind, rounds, why)
    return figures


async def measured(kind: EngineKind, arguments: argparse.Namespace, console: Console) -> Rounds:
    """All rounds on one engine."""
    rounds, seconds = Rounds(), arguments.seconds
    warm = seconds / 4
    async with stack(kind, arguments.keep) as (engine, sidecar):
        can = {
            shape.tier: await capacity(engine, shape, 2 * kind.seats, seconds)
            for shape in (kind.interactive, kind.batch)
        }
        await until_empty(engine)
        said = ", ".join(f"{rate:.2f} {tier}" for tier, rate in can.items())
        console.print(f"{kind.name}: {said} requests/s", style="dim", highlight=False)
        for number in range(arguments.rounds):
            quiet = arrivals(
                kind.interactive,
                can[INTERACTIVE] * RESERVED_PERCENT / 200,
                seconds,
                f"interactive {number}",
            )
            loud = arrivals(kind.batch, can[BATCH] * BATCH_LOAD, seconds, f"batch {number}")
            order = [ALONE, UNPROTECTED, OURS]
            for name in order[number % 3 :] + order[: number % 3]:
                target = sidecar if name == OURS else engine
                dues = quiet if name == ALONE else quiet + loud
                run = await open_loop(target, dues, warm, seconds)
                rounds.runs[name].append(run)
                await until_empty(engine)
                console.print(
                    f"  {name}: p95 {1e3 * run.p95_seconds():.0f} ms of "
                    f"{len(run.ttft_seconds)}, {run.missed} missed, "
                    f"batch {run.batch_tokens_per_second:.0f} tokens/s",
                    style="dim",
                    highlight=False,
                )
    return rounds


@contextlib.asynccontextmanager
async def stack(kind: EngineKind, keep: Path | None) -> AsyncIterator[tuple[Target, Target]]:
    """The engine, and the sidecar before it."""
    with tempfile.TemporaryDirectory(prefix="tg-iso-") as name, contextlib.ExitStack() as stack:
        folder, sidecar_flags = Path(name), list[str]()
        socket, port, admin_port = folder / "e.sock", rivals.free_port(), rivals.free_port()
        keys = {tier: f"tg-{secrets.token_urlsafe(32)}" for tier in (INTERACTIVE, BATCH)}
        _write_policy(kind, folder, keys)
        cores = sorted(os.sched_getaffinity(0))
        command = await asyncio.to_thread(kind.start, folder, socket)
        if keep is not None:
            await asyncio.to_thread(keep.mkdir, parents=True, exist_ok=True)
            sidecar_flags = [f"--usage-records={keep / f'{kind.name} usage.jsonl'}"]
            if kind is FAKE:
                log = f"--fake-request-log={keep / 'requests.jsonl'}"
                command.arguments.extend((log, "--fake-log-steps"))
        process = stack.enter_context(rivals.started(command, cores[0], folder / "engine.log"))
        arguments = _sidecar_arguments(folder, socket, port, admin_port) + sidecar_flags
        stack.enter_context(
            rivals.started(rivals.Command(arguments), cores[-1], folder / "sidecar.log")
        )
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=str(socket), limit=0), timeout=timeout
            ) as direct,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=timeout
            ) as through,
        ):
            await _until_ready(through, admin_port, process, folder / "engine.log")
            yield (
                Target(direct, "http://engine", MODEL, {}),
                Target(through, f"http://127.0.0.1:{port}", MODEL, keys),
            )


async def _until_ready(
    session: aiohttp.ClientSession,
    admin_port: int,
    engine: subprocess.Popen[bytes],
    log: Path,
) -> None:
    """TimeoutError where it takes too long, RuntimeError where the engine ends."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"http://127.0.0.1:{admin_port}/readyz") as answer:
                if answer.status == 200:
                    return
        if engine.poll() is not None:
            raise RuntimeError(f"the engine ended: {_last_line(log)}")
        await asyncio.sleep(0.2)
    raise TimeoutError("the engine did not get ready")


def _last_line(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").strip().splitlines()[-1:])[:300]


def _write_policy(kind: EngineKind, folder: Path, keys: dict[str, str]) -> None:
    promise = contracts.SloObjective(
        metric=contracts.SloMetric.INTER_TOKEN_LATENCY, target_seconds=INTER_TOKEN_SECONDS
    )
    tiers = (
        contracts.TierPolicy(
            name=INTERACTIVE,
            priority=10,
            reserved_percent=RESERVED_PERCENT,
            slo_objectives=(promise,),
        ),
        contracts.TierPolicy(name=BATCH),
    )
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name=MODEL),
        tiers=tiers,
        tenants=tuple(
            contracts.TenantPolicy(name=f"bench/{tier.name}", tier=tier.name) for tier in tiers
        ),
        engine=contracts.EngineLimits(
            max_num_seqs=kind.seats, max_num_batched_tokens=kind.budget_tokens
        ),
    )
    digests = {
        hashlib.sha256(key.encode()).hexdigest(): f"bench/{tier}" for tier, key in keys.items()
    }
    key_set = contracts.KeySet(version=contracts.KEYS_VERSION, generation=1, keys=digests)
    (folder / "policy.json").write_text(contracts.dumps(policy))
    (folder / "keys.json").write_text(contracts.dumps(key_set))


def _sidecar_arguments(folder: Path, socket: Path, port: int, admin_port: int) -> list[str]:
    return [
        sys.executable, "-m", "tidegate_sidecar", f"--policy={folder / 'policy.json'}",
        f"--keys={folder / 'keys.json'}", f"--engine=uds:{socket}",
        f"--port={port}", f"--admin-port={admin_port}",
    ]  # fmt: skip


def _figures(kind: EngineKind, rounds: Rounds | None, why: str) -> list[Figure]:
    head = f"{kind.name}: interactive TTFT p95"
    batch = f"{kind.name}: batch throughput, ours over unprotected"
    bound = (1 - RESERVED_PERCENT / 200) * (1 + RESERVED_PERCENT / 200 / BATCH_LOAD)
    if rounds is None:
        return [
            figure(f"{head} alone", None, "ms", why=why),
            figure(f"{head}, {UNPROTECTED}, over alone", None, "ratio", Aim(">=", 8), why),
            figure(f"{head}, {OURS}, over alone", None, "ratio", Aim("<=", 2.5), why),
            figure(batch, None, "ratio", Aim(">=", 0.95), why),
        ]
    runs = rounds.runs
    p95 = {name: [run.p95_seconds() for run in those] for name, those in runs.items()}

    def over_alone(name: str) -> list[float]:
        return [one / alone for one, alone in zip(p95[name], p95[ALONE], strict=True)]

    tokens = [
        ours.batch_tokens_per_second / max(theirs.batch_tokens_per_second, 1e-9)
        for ours, theirs in zip(runs[OURS], runs[UNPROTECTED], strict=True)
    ]
    return [
        _median(f"{head} alone", [1e3 * one for one in p95[ALONE]], "ms", None, runs[ALONE]),
        _median(
            f"{head}, {UNPROTECTED}, over alone",
            over_alone(UNPROTECTED),
            "ratio",
            Aim(">=", 8),
            runs[UNPROTECTED],
        ),
        _median(
            f"{head}, {OURS}, over alone", over_alone(OURS), "ratio", Aim("<=", 2.5), runs[OURS]
        ),
        figure(
            batch,
            statistics.median(tokens),
            "ratio",
            Aim(">=", 0.95),
            f"{min(tokens):.3f} to {max(tokens):.3f}; at most {bound:.3f} is to be had",
        ),
    ]


def _median(
    name: str, values: Sequence[float], unit: str, aim: Aim | None, runs: Sequence[Run]
) -> Figure:
    requests = sum(len(run.ttft_seconds) for run in runs)
    missed = sum(run.missed for run in runs)
    why = (
        f"median of {len(values)} rounds, {min(values):.3g} to {max(values):.3g}; "
        f"{missed} of {requests} missed"
    )
    return figure(name, statistics.median(values), unit, aim, why)


if __name__ == "__main__":
    sys.exit(benchmark("isolation", (__doc__ or "").splitlines()[0], measure, options))
