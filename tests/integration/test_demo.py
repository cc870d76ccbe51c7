"""The demonstration against a sidecar and a fake engine, the mode switched by its policy file."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.fake_engine import MODEL, engine_process, socket_folder

from tidegate.load import LoadError, LoadRun, build_report
from tidegate.load.demo import MODES, A, B, DemoInterruptedError, DemoSizes, run_demo
from tidegate.scheduling.contracts import (
    KEYS_VERSION,
    POLICY_VERSION,
    Fairness,
    FairnessUnit,
    KeySet,
    LoadReport,
    ModelPolicy,
    Policy,
    QueueLimits,
    SchedulingMode,
    SidecarStatus,
    TenantPolicy,
    TierPolicy,
    dumps,
    loads,
)

pytestmark = pytest.mark.integration

KEYS = {A: "demo-a", B: "demo-b"}
SIZES = DemoSizes(a_requests=200, b_requests=5, b_start_seconds=0.3, prompt_tokens=64)


def policy(mode: SchedulingMode, generation: int) -> Policy:
    return Policy(
        version=POLICY_VERSION,
        generation=generation,
        pool="ns/chat",
        model=ModelPolicy(MODEL),
        tiers=(
            TierPolicy(
                "t1",
                fairness=Fairness(FairnessUnit.REQUESTS, 1),
                queue=QueueLimits(max_wait_seconds=600.0),
            ),
        ),
        tenants=(TenantPolicy("ns/a", "t1"), TenantPolicy("ns/b", "t1")),
        scheduling_mode=mode,
    )


class PolicyFiles:
    """A mode switch that writes the sidecar's files and reads its status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.admin = ""
        self.asked: list[SchedulingMode] = []
        self.restored = 0
        self._generation = 0

    def write(self, mode: SchedulingMode) -> None:
        self._generation += 1
        keys = {hashlib.sha256(key.encode()).hexdigest(): f"ns/{a}" for a, key in KEYS.items()}
        documents = {
            "policy.json": dumps(policy(mode, self._generation)),
            "keys.json": dumps(KeySet(KEYS_VERSION, self._generation, keys)),
        }
        for name, text in documents.items():
            draft = self.folder / f".{name}"
            draft.write_text(text)
            draft.rename(self.folder / name)

    async def set(self, mode: SchedulingMode) -> None:
        self.asked.append(mode)
        self.write(mode)
        await self.status_shows(mode)

    async def restore(self) -> None:
        self.restored += 1

    async def status_shows(self, mode: SchedulingMode) -> None:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self.admin}/status") as response:
                        body = await response.read()
                    if loads(SidecarStatus, body).scheduling_mode is mode:
                        return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)


async def measure(run: LoadRun) -> LoadReport:
    await run.run()
    return build_report(
        run.scenario,
        run.samples,
        started_at=run.started_at,
        complete=run.complete,
        loop_lag_p99_seconds=run.loop_lag.p99_seconds,
    )


@asynccontextmanager
async def sidecar(files: PolicyFiles, engine: str, ports: tuple[int, int]) -> AsyncIterator[str]:
    """A sidecar process on these ports; its base URL."""
    port, admin_port = ports
    files.write(SchedulingMode.TIDEGATE)
    files.admin = f"http://127.0.0.1:{admin_port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_sidecar",
        "--policy", str(files.folder / "policy.json"), "--keys", str(files.folder / "keys.json"),
        "--engine", engine, "--port", str(port), "--admin-port", str(admin_port),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await files.status_shows(SchedulingMode.TIDEGATE)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def ports(unused_tcp_port_factory: object) -> tuple[int, int]:
    assert callable(unused_tcp_port_factory)
    return unused_tcp_port_factory(), unused_tcp_port_factory()


async def test_b_waits_behind_all_of_a_in_one_queue_and_not_through_tidegate(
    ports: tuple[int, int],
) -> None:
    with socket_folder() as folder:
        files = PolicyFiles(folder)
        uds = str(folder / "engine.sock")
        # 8 seats of 20 ms a step: 200 answers of 16 tokens take about 8 s, whoever is asked first
        async with (
            engine_process(
                "--max-num-seqs", "8", "--fake-time-scale", "10", "--fake-ignore-eos", uds=uds
            ),
            sidecar(files, f"uds:{uds}", ports) as url,
        ):
            phases = await run_demo(url, MODEL, KEYS, files, measure, sizes=SIZES)
    shared, fair = phases
    assert files.asked == [phase.mode for phase in phases] == list(MODES)
    assert files.restored == 1
    for phase in phases:
        assert phase.report.total.ok == SIZES.a_requests + SIZES.b_requests
        assert len(phase.b_answered_seconds) == SIZES.b_requests
    assert fair.b_longest_wait_seconds < shared.b_longest_wait_seconds / 3
    assert fair.b_answered_seconds[-1] < fair.a_longest_seconds / 2
    assert shared.b_answered_seconds[0] > shared.a_longest_seconds / 2


async def test_the_pools_mode_is_restored_when_a_phase_fails() -> None:
    class Switch:
        restored = 0

        async def set(self, mode: SchedulingMode) -> None:
            assert mode is MODES[0]

        async def restore(self) -> None:
            self.restored += 1

    async def stopped(run: LoadRun) -> LoadReport:
        run.stop()
        return build_report(
            run.scenario, [], started_at=0.0, complete=False, loop_lag_p99_seconds=0.0
        )

    switch = Switch()
    with pytest.raises(LoadError, match="cannot reach"):
        await run_demo("http://127.0.0.1:1", MODEL, KEYS, switch, measure, sizes=SIZES)
    with pytest.raises(DemoInterruptedError):
        await run_demo("http://127.0.0.1:1", MODEL, KEYS, switch, stopped, sizes=SIZES)
    assert switch.restored == 2
