"""What a soak puts under load: the real sidecar before the fake engine, and what happens to them.

Every few seconds something changes: the engine is ended, killed or frozen and comes back; a policy
with other weights, limits of concurrency, modes and tenants is posted, or one that must be refused;
a tenant's key is rotated (old and new side by side, until nobody uses the old one) or revoked at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from soak_judge import Span, View

from tidegate.scheduling import contracts

MODEL = "soak-model"
SEATS = 8
BUDGET_TOKENS = 512
START_SECONDS = 60.0
Metrics = dict[str, list[tuple[dict[str, str], float]]]
"""Labels and values, by the sample's name."""
NOBODY = "tg-key-of-nobody"
MODES = (
    contracts.SchedulingMode.TIDEGATE,
    contracts.SchedulingMode.TIDEGATE,
    contracts.SchedulingMode.FIRST_COME_FIRST_SERVED,
)
METERED = contracts.RateLimit(
    name="minute", per=contracts.LimitWindow.MINUTE, requests=40, tokens=2_500
)
TENANTS: dict[str, str] = {
    "soak/chat-1": "interactive",
    "soak/chat-2": "interactive",
    "soak/batch-1": "batch",
    "soak/batch-2": "batch",
    "soak/metered-1": "metered",
    "soak/metered-2": "metered",
}
VISITOR = "soak/visitor"
"""Comes and goes."""


def tiers() -> tuple[contracts.TierPolicy, ...]:
    """Three, so that every way to be refused, to wait and to be sent off occurs."""
    ttft = contracts.SloObjective(
        metric=contracts.SloMetric.TIME_TO_FIRST_TOKEN, target_seconds=4.0
    )
    return (
        contracts.TierPolicy(
            name="interactive", priority=10, reserved_percent=30, slo_objectives=(ttft,)
        ),
        contracts.TierPolicy(
            name="batch",
            queue=contracts.QueueLimits(max_requests=12, max_wait_seconds=6.0),
            preemption=contracts.Preemption(evictable=True),
        ),
        contracts.TierPolicy(name="metered", priority=5, rate_limits=(METERED,)),
    )


class Stack:
    """Both processes and the policy in force."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession, seed: int) -> None:
        self.folder = folder
        self.session = session
        self.usage = folder / "usage.jsonl"
        self.keys = {name: new_key() for name in (*TENANTS, VISITOR)}
        """The one that each tenant uses."""
        self.views: list[View] = []
        """All requests that were sent, by whomever."""
        self.in_use: dict[str, int] = {}
        """Requests under way by key."""
        self.revoked = {NOBODY: 0.0, self.keys[VISITOR]: 0.0}
        """Since when a key may be refused."""
        self.engine_down: list[Span] = []
        self.faults: list[str] = []
        """Changes that did not act as they should."""
        self.changes: dict[str, int] = {}
        self.stopping = asyncio.Event()
        self._good_keys = {key: tenant for tenant, key in self.keys.items()}
        self._random = random.Random(seed)
        self._generation = 0
        self._policy = self._new_policy()
        self._engine: asyncio.subprocess.Process | None = None
        self.sidecar: asyncio.subprocess.Process | None = None
        self.url = self.admin = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Both up and ready; gone on exit."""
        try:
            await self._start_engine()
            await self._start_sidecar()
            yield
        finally:
            for process in (self.sidecar, self._engine):
                if process is not None and process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _start_engine(self) -> None:
        socket = self.folder / "engine.sock"
        socket.unlink(missing_ok=True)
        with (self.folder / "engine.log").open("ab") as log:
            self._engine = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidegate.simulator.fake_engine", "serve", MODEL,
                f"--uds={socket}", f"--max-num-seqs={SEATS}",
                f"--max-num-batched-tokens={BUDGET_TOKENS}", "--max-model-len=4096",
                "--num-gpu-blocks-override=512", "--fake-time-scale=15",
                "--fake-output-median=25", stdout=log, stderr=log,
            )  # fmt: skip

    async def _start_sidecar(self) -> None:
        for name, document in zip(("policy", "keys"), self._documents(), strict=True):
            (self.folder / f"{name}.json").write_text(contracts.dumps(document))
        state = self.folder / "state"
        state.mkdir()
        log = self.folder / "sidecar.log"
        with log.open("wb") as output:
            self.sidecar = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidegate_sidecar", f"--policy={self.folder / 'policy.json'}",
                f"--keys={self.folder / 'keys.json'}",
                f"--engine=uds:{self.folder / 'engine.sock'}", "--port=0", "--admin-port=0",
                f"--usage-records={self.usage}", f"--state-folder={state}",
                "--engine-poll-seconds=0.2", "--body-seconds=3",
                "--client-stall-seconds=5", stdout=output, stderr=output,
            )  # fmt: skip
        async with asyncio.timeout(START_SECONDS):
            while not (found := re.search(r"tenants on (\S+), admin on (\S+)", log.read_text())):
                if self.sidecar.returncode is not None:
                    raise RuntimeError(f"the sidecar did not start: {log.read_text()[-300:]}")
                await asyncio.sleep(0.05)
            self.url, self.admin = (f"http://{address}" for address in found.groups())
            await self.until_ready()

    async def until_ready(self) -> None:
        """TimeoutError where it does not get ready."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                async with self.session.get(f"{self.admin}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)

    async def status(self) -> dict[str, Any]:
        async with self.session.get(f"{self.admin}/status") as answer:
            read: dict[str, Any] = await answer.json()
            return read

    async def metrics(self) -> Metrics:
        """All samples."""
        async with self.session.get(f"{self.admin}/metrics") as answer:
            text = await answer.text()
        found: Metrics = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def resources(self) -> tuple[int, int]:
        """Resident bytes and open files of the sidecar."""
        assert self.sidecar is not None
        process = psutil.Process(self.sidecar.pid)
        return process.memory_info().rss, process.num_fds()

    async def end(self) -> int | None:
        """SIGTERM; its exit status, None where it does not end."""
        assert self.sidecar is not None
        self.sidecar.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.sidecar.wait(), START_SECONDS)
        except TimeoutError:
            return None

    # What befalls them.

    async def trouble(self, every_seconds: float) -> None:
        """Something happens every so often, until it is stopping."""
        events = (self.reload, self.rotate, self.engine_trouble, self.refused_policy, self.revoke)
        for event in cycle(events):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_seconds * self._random.uniform(0.5, 1.5)):
                    await self.stopping.wait()
            if self.stopping.is_set():
                return
            await event()
            self.changes[event.__name__] = self.changes.get(event.__name__, 0) + 1

    async def engine_trouble(self) -> None:
        """Ended, killed or frozen for a moment; then it is back."""
        assert self._engine is not None
        begin = time.time()
        how = self._random.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP))
        self._engine.send_signal(how)
        await asyncio.sleep(self._random.uniform(0.2, 1.5))
        if how is signal.SIGSTOP:
            self._engine.send_signal(signal.SIGCONT)
        else:
            await self._engine.wait()
            await self._start_engine()
            await self._until_engine_serves()
        await self.until_ready()
        self.engine_down.append(Span(begin, time.time()))

    async def _until_engine_serves(self) -> None:
        connector = aiohttp.UnixConnector(path=str(self.folder / "engine.sock"))
        async with aiohttp.ClientSession(connector=connector) as client:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        async with client.get("http://engine/health") as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.05)

    async def reload(self) -> None:
        """Other weights, concurrency, mode; the visitor comes or goes."""
        await self._put(self._new_policy())

    async def refused_policy(self) -> None:
        """One that cannot be, and one from before: both leave what is in force."""
        broken = contracts.encode(contracts.Bundle(*self._documents()))
        broken["policy"]["tenants"][0]["tier"] = "none-such"
        broken["policy"]["generation"] += 1
        broken["keys"]["generation"] += 1
        stale = contracts.encode(contracts.Bundle(*self._documents()))
        stale["policy"]["generation"] -= 1
        stale["keys"]["generation"] -= 1
        for document, expected in ((broken, 422), (stale, 409)):
            async with self.session.put(f"{self.admin}/policy", json=document) as answer:
                if answer.status != expected:
                    self.faults.append(f"a policy was answered {answer.status}, not {expected}")

    async def rotate(self) -> None:
        """A tenant changes its key: both are good until nobody uses the old one."""
        tenant = self._random.choice(list(TENANTS))
        old = self.keys[tenant]
        await self._change_key(tenant)
        await _until(lambda: not self.in_use.get(old))
        await self._end_key(old)

    async def revoke(self) -> None:
        """A key is gone at once, whatever waits under it."""
        tenant = self._random.choice(list(TENANTS))
        old = self.keys[tenant]
        await self._end_key(old)
        await self._change_key(tenant)

    async def _change_key(self, tenant: str) -> None:
        key = new_key()
        self._good_keys[key] = tenant
        await self._put(self._policy)
        self.keys[tenant] = key

    async def _end_key(self, key: str) -> None:
        self.revoked[key] = time.time()
        del self._good_keys[key]
        await self._put(self._policy)
        view = View("", key, time.time())
        self.views.append(view)
        headers = {"Authorization": f"Bearer {key}"}
        async with self.session.get(f"{self.url}/v1/models", headers=headers) as answer:
            view.status, view.request_id = answer.status, answer.headers["x-request-id"]
        view.ended_at = time.time()
        if view.status != 401:
            self.faults.append("a key that is gone was still good")

    async def _put(self, policy: contracts.Policy) -> None:
        self._generation += 1
        self._policy = replace(policy, generation=self._generation)
        document = contracts.encode(contracts.Bundle(*self._documents()))
        async with self.session.put(f"{self.admin}/policy", json=document) as answer:
            if answer.status != 200:
                self.faults.append(f"a good policy was answered {answer.status}")

    def _new_policy(self) -> contracts.Policy:
        draw = self._random
        named = dict(TENANTS) | ({VISITOR: "batch"} if draw.random() < 0.7 else {})
        changed = tuple(
            replace(tier, max_in_flight=draw.choice((None, 2, 4)), weight=draw.randint(1, 5))
            for tier in tiers()
        )
        return contracts.Policy(
            version=contracts.POLICY_VERSION,
            generation=self._generation,
            pool="soak/pool",
            model=contracts.ModelPolicy(name=MODEL),
            tiers=changed,
            tenants=tuple(
                contracts.TenantPolicy(name=name, tier=tier, weight=draw.randint(1, 3))
                for name, tier in named.items()
            ),
            between_tiers=draw.choice(list(contracts.BetweenTiers)),
            scheduling_mode=draw.choice(MODES),
            engine=contracts.EngineLimits(max_num_seqs=SEATS, max_num_batched_tokens=BUDGET_TOKENS),
        )

    def _documents(self) -> tuple[contracts.Policy, contracts.KeySet]:
        served = {tenant.name for tenant in self._policy.tenants}
        digests = {
            hashlib.sha256(key.encode()).hexdigest(): tenant
            for key, tenant in self._good_keys.items()
            if tenant in served
        }
        key_set = contracts.KeySet(
            version=contracts.KEYS_VERSION, generation=self._policy.generation, keys=digests
        )
        return self._policy, key_set


async def _until(condition: Callable[[], bool]) -> None:
    """TimeoutError where it does not come true."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("requests under a key that was changed did not end")
        await asyncio.sleep(0.05)


def new_key() -> str:
    return f"tg-{secrets.token_urlsafe(32)}"
