"""A tier whose first tokens become slow: its traffic is sampled, announced, and can be replayed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.fake_engine import until
from support.faulty_engine import MODEL, FaultyEngine
from support.faulty_upstream import stall
from support.sidecar import ALICE, BOB, SidecarUnderTest, speak
from tidegate_sidecar.latency_baseline import SLICE_SECONDS
from tidegate_sidecar.traffic_profile import TenantNames

from tidegate.scheduling.contracts import SidecarStatus, loads
from tidegate.workload import Workload, read_scenario
from tidegate.workload.traces import read_usage_jsonl

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


class Slices:
    """First tokens slice by slice, on a clock that runs ahead of the loop's."""

    def __init__(self, sidecar: SidecarUnderTest) -> None:
        self.reports = sidecar.runtime.reports
        self.now = sidecar.runtime.dispatcher.loop.time()

    async def run(self, seconds: float, ttft: float) -> None:
        for _ in range(round(seconds / SLICE_SECONDS)):
            for _ in range(20):
                self.reports.baseline.observe("standard", ttft)
            self.now += SLICE_SECONDS
            await self.reports.look(self.now)


@pytest.mark.parametrize("names", ["hashed", "named"])
async def test_a_sample_of_slow_traffic(
    start_sidecar: StartSidecar,
    engine: FaultyEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    names: str,
) -> None:
    folder = tmp_path / "profiles"
    sidecar = await start_sidecar(profile_folder=folder, profile_tenants=TenantNames(names))
    slices = Slices(sidecar)
    await slices.run(600, 0.2)
    for tenant in (ALICE, ALICE, BOB):
        async with sidecar.chat(tenant=tenant, stream=True) as answer:
            await answer.read()
    await slices.run(40, 0.9)
    assert sidecar.runtime.reports.profile.samples_total == {}  # the minute after is not over
    engine.script = stall
    running = asyncio.create_task(speak(sidecar))
    await until(lambda: engine.busy == 1)
    await slices.run(70, 0.9)
    text = await get(sidecar, "/metrics")
    assert 'tidegate_profile_samples_total{tier="standard"} 1.0' in text
    ratio = next(line for line in text.splitlines() if "p99_over_baseline{" in line).split()[-1]
    assert 4 < float(ratio) < 5
    events = [getattr(record, "event", "") for record in caplog.records]
    assert [event for event in events if event] == ["profile_sample", "profile_sample_taken"]
    (listed,) = json.loads(await get(sidecar, "/profiles"))["samples"]
    assert (listed["tier"], listed["rows"]) == ("standard", 4)
    told = loads(SidecarStatus, await get(sidecar, "/status")).last_sample
    assert told is not None
    assert (told.name, told.tier, told.at) == (listed["name"], "standard", listed["at"])
    assert 4 < told.p99_over_baseline < 5
    content = await get(sidecar, f"/profiles/{listed['name']}")
    assert (folder / listed["name"]).read_text() == content
    rows = [json.loads(line) for line in content.splitlines()]
    assert sorted(row["outcome"] for row in rows) == [*["completed"] * 3, "running"]
    tenants = [row["tenant"] for row in rows]
    assert tenants[0] == tenants[1] == tenants[3] != tenants[2]
    assert (tenants[0] == ALICE) == (names == "named")
    assert "Say hello" not in content
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(list(read_usage_jsonl(folder / listed["name"]))) == 4
    assert replayed(tmp_path, f"profiles/{listed['name']}", tenants[2]) == 1


def replayed(folder: Path, path: str, tenant: str) -> int:
    """How many requests a scenario over the sample sends for one of its tenants."""
    scenario = folder / "scenario.yaml"
    trace = {"format": "UsageJSONL", "path": path, "tenant": tenant}
    row = {"name": "b", "arrival": {"process": "Trace"}, "trace": trace}
    document = {"version": 1, "name": "s", "model": MODEL, "duration_seconds": 60, "tenants": [row]}
    scenario.write_text(json.dumps(document))
    workload: Workload = read_scenario(scenario)
    return len(list(workload.requests(workload.scenario.tenants[0])))


async def get(sidecar: SidecarUnderTest, path: str) -> str:
    async with sidecar.client.get(sidecar.admin_url + path) as answer:
        assert answer.status == 200
        return await answer.text()
