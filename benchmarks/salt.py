"""What cache salts cost: a prefix cache isolated by tenant, shared in groups, or by all.

Eight tenants in two companies of four. Every prompt begins with a system prompt that all have in
common, goes on with one of its company's documents, and ends with a question of its own, so what a
tenant asks about was often computed before: for itself, for its company, or for anybody. System
prompt and documents are 20,000 tokens, 86,000 once for each tenant, in a KV cache of 48,000.

Through the real sidecar before the fake engine (the engine model behind vLLM's endpoints, which
hashes blocks with the salt as vLLM does), one mode after the other, the same requests in the same
order. Hit rates are the engine's own: prompt tokens found over prompt tokens asked for, after every
tenant has had each of its documents once, in whatever mode.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import rivals
from report import Aim, Figure, benchmark, figure
from rich.console import Console

from tidegate.scheduling import contracts

MODEL = "bench-model"
CALIBRATION = "h100_70b_tp8"
COMPANIES = 2
TENANTS_OF_COMPANY = 4
DOCUMENTS = 6
SYSTEM_TOKENS = 1_536
DOCUMENT_TOKENS = 1_536
QUESTION_TOKENS = 96
OUTPUT_TOKENS = 32
BLOCK_TOKENS = 16
KV_TOKENS = 48_000
CALLERS = 16

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    tenant: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Run:
    """What one mode gave."""

    hit_ratio: float
    tokens_per_second: float
    ttft_p50_seconds: float
    foreign_hit_tokens: int
    """Found by a tenant of what only one of the other company had asked."""


MODES: dict[str, str] = {
    "isolated": "tenant/{tenant}",
    "grouped": "group/{company}",
    "none": "",
}
"""By name: the scope of a tenant's salt; empty: no salt."""


def company_of(tenant: int) -> int:
    return tenant // TENANTS_OF_COMPANY


def asks(count: int, seed: int) -> tuple[list[Ask], list[Ask]]:
    """The requests that fill the caches, and those that are measured."""
    draw = random.Random(seed)

    def text(tokens: int) -> Prompt:
        return [draw.randrange(1_000, 30_000) for _ in range(tokens)]

    system = text(SYSTEM_TOKENS)
    documents = [[text(DOCUMENT_TOKENS) for _ in range(DOCUMENTS)] for _ in range(COMPANIES)]
    tenants = range(COMPANIES * TENANTS_OF_COMPANY)

    def ask(tenant: int, document: int) -> Ask:
        known = system + documents[company_of(tenant)][document]
        return Ask(tenant, known + text(QUESTION_TOKENS))

    first = [ask(tenant, document) for document in range(DOCUMENTS) for tenant in tenants]
    then = [ask(draw.choice(tenants), draw.randrange(DOCUMENTS)) for _ in range(count)]
    return first, then


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own."""
    parser.add_argument("--requests", type=int, default=400, help="measured, in each mode")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="multiplies the engine's step times"
    )
    parser.add_argument("--seed", type=int, default=0)


def measure(arguments: argparse.Namespace, console: Console) -> Sequence[Figure]:
    """Runs the modes; three figures of each, and whether isolation holds."""
    figures: list[Figure] = []
    runs: dict[str, Run] = {}
    for mode, scope in MODES.items():
        console.print(f"{mode}: {arguments.requests} requests", style="dim", highlight=False)
        run, why = None, ""
        try:
            run = runs[mode] = asyncio.run(measured(mode, scope, arguments))
        except (OSError, RuntimeError, TimeoutError, aiohttp.ClientError) as error:
            why = f"{type(error).__name__}: {error}"
        figures += _figures(mode, run, why)
    shared = runs.get("none")
    for mode in ("isolated", "grouped"):
        run = runs.get(mode)
        ratio = run.tokens_per_second / shared.tokens_per_second if run and shared else None
        figures.append(
            figure(f"{mode}: throughput of none's", ratio, "ratio", why="" if ratio else "no run")
        )
    return figures


def _figures(mode: str, run: Run | None, why: str) -> list[Figure]:
    foreign = "what a tenant finds of a prompt that only another company's tenant had sent"
    return [
        figure(f"{mode}: hit rate", None if run is None else 100 * run.hit_ratio, "%", why=why),
        figure(
            f"{mode}: throughput",
            None if run is None else run.tokens_per_second,
            "tokens/s",
            why=why,
        ),
        figure(
            f"{mode}: time to first token, p50",
            None if run is None else 1e3 * run.ttft_p50_seconds,
            "ms",
            why=why,
        ),
        figure(
            f"{mode}: found across companies",
            None if run is None else run.foreign_hit_tokens,
            "tokens",
            None if mode == "none" else Aim("<=", 0),
            why or foreign,
        ),
    ]


async def measured(mode: str, scope: str, arguments: argparse.Namespace) -> Run:
    """One mode, on an engine and a sidecar of its own."""
    keys = [f"tg-{secrets.token_urlsafe(32)}" for _ in range(COMPANIES * TENANTS_OF_COMPANY)]
    with tempfile.TemporaryDirectory(prefix="tg-salt-") as name:
        folder = Path(name)
        port, admin_port = rivals.free_port(), rivals.free_port()
        _write_policy(folder, scope, keys)
        engine = rivals.Command(_engine_arguments(folder, arguments.time_scale))
        sidecar = rivals.Command(_sidecar_arguments(folder, port, admin_port))
        cores = sorted(os.sched_getaffinity(0))
        with (
            rivals.started(engine, cores[0], folder / "engine.log"),
            rivals.started(sidecar, cores[-1], folder / "sidecar.log"),
        ):
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                client = _Client(session, port, admin_port, keys)
                await client.until_ready()
                return await _run(client, arguments)


async def _run(client: _Client, arguments: argparse.Namespace) -> Run:
    first, then = asks(arguments.requests, arguments.seed)
    await client.send_all(first)
    before, began = await client.cache_counters(), time.perf_counter()
    ttfts = await client.send_all(then)
    seconds, after = time.perf_counter() - began, await client.cache_counters()
    hits, queries = (after[name] - before[name] for name in ("hits", "queries"))
    tokens = sum(len(ask.prompt) + OUTPUT_TOKENS for ask in then)
    return Run(
        hits / queries,
        tokens / seconds,
        sorted(ttfts)[len(ttfts) // 2],
        await _foreign_hits(client, arguments.seed),
    )


async def _foreign_hits(client: _Client, seed: int) -> int:
    """A prompt that nobody sent before, from one company and then from the other."""
    draw = random.Random(seed + 1)
    prompt = [draw.randrange(1_000, 30_000) for _ in range(DOCUMENT_TOKENS)]
    await client.send(Ask(0, prompt))
    before = await client.cache_counters()
    await client.send(Ask(TENANTS_OF_COMPANY, prompt))
    after = await client.cache_counters()
    return round(after["hits"] - before["hits"])


class _Client:
    """Sends requests, and reads the engine's counters through the sidecar."""

    def __init__(
        self, session: aiohttp.ClientSession, port: int, admin_port: int, keys: Sequence[str]
    ) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._admin = f"http://127.0.0.1:{admin_port}"
        self._keys = keys

    async def until_ready(self) -> None:
        async with asyncio.timeout(rivals.START_SECONDS):
            while True:
                try:
                    async with self._session.get(f"{self._admin}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.1)

    async def send_all(self, wanted: Sequence[Ask]) -> list[float]:
        """So many at once as there are callers; times to first token in seconds."""
        left = iter(wanted)
        ttfts: list[float] = []

        async def caller() -> None:
            for ask in left:
                ttfts.append(await self.send(ask))

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return ttfts

    async def send(self, ask: Ask) -> float:
        body = {"model": MODEL, "prompt": ask.prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
        headers = {"Authorization": f"Bearer {self._keys[ask.tenant]}"}
        began = time.perf_counter()
        async with self._session.post(self._url, json=body, headers=headers) as answer:
            await answer.content.readany()
            ttft = time.perf_counter() - began
            rest = await answer.content.read()
            if answer.status != 200 or not rest.rstrip().endswith(b"data: [DONE]"):
                raise RuntimeError(f"a request was answered {answer.status}")
        return ttft

    async def cache_counters(self) -> Mapping[str, float]:
        """Prompt tokens asked of the engine's prefix cache, and found there."""
        async with self._session.get(f"{self._admin}/engine/metrics") as answer:
            text = await answer.text()
        found = {}
        for line in text.splitlines():
            for name in ("hits", "queries"):
                if line.startswith(f"vllm:prefix_cache_{name}_total"):
                    found[name] = float(line.rsplit(" ", 1)[1])
        return found


def _write_policy(folder: Path, scope: str, keys: Sequence[str]) -> None:
    tier = contracts.TierPolicy(name="standard")
    rows = tuple(
        contracts.TenantPolicy(
            name=f"bench/tenant-{tenant}",
            tier=tier.name,
            cache_scope=scope.format(tenant=tenant, company=company_of(tenant)) or None,
        )
        for tenant in range(len(keys))
    )
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name=MODEL),
        tiers=(tier,),
        tenants=rows,
    )
    digests = {
        hashlib.sha256(key.encode()).hexdigest(): row.name
        for key, row in zip(keys, rows, strict=True)
    }
    document = contracts.KeySet(version=contracts.KEYS_VERSION, generation=1, keys=digests)
    (folder / "policy.json").write_text(contracts.dumps(policy))
    (folder / "keys.json").write_text(contracts.dumps(document))


def _engine_arguments(folder: Path, time_scale: float) -> list[str]:
    return [
        sys.executable, "-m", "tidegate.simulator.fake_engine", "serve", MODEL,
        f"--uds={folder / 'engine.sock'}", "--max-num-seqs=16", "--max-num-batched-tokens=2048",
        f"--num-gpu-blocks-override={KV_TOKENS // BLOCK_TOKENS}", f"--block-size={BLOCK_TOKENS}",
        f"--fake-calibration={CALIBRATION}", f"--fake-time-scale={time_scale}",
        "--fake-ignore-eos",
    ]  # fmt: skip


def _sidecar_arguments(folder: Path, port: int, admin_port: int) -> list[str]:
    return [
        sys.executable, "-m", "tidegate_sidecar", f"--policy={folder / 'policy.json'}",
        f"--keys={folder / 'keys.json'}", f"--engine=uds:{folder / 'engine.sock'}",
        f"--port={port}", f"--admin-port={admin_port}",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(benchmark("salt", __doc__ or "", measure, options))
