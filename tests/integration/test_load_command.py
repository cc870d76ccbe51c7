"""`tidegate load` as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.fake_engine import MODEL, engine_process

from tidegate.scheduling.contracts import LoadReport, loads

pytestmark = pytest.mark.integration

SCENARIO = f"""
version: 1
name: test
model: {MODEL}
duration_seconds: 60
tenants:
- name: a
  tier: T1
  key_env: TIDEGATE_TEST_KEY
  arrival: {{process: Burst}}
  requests: 5
  prompt_tokens: {{distribution: Constant, value: 8}}
  output_tokens: {{distribution: Constant, value: 4}}
"""
KEY = "sk-test-only"


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return written(tmp_path, SCENARIO)


async def start(*arguments: object, key: str | None = KEY) -> asyncio.subprocess.Process:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
    if key is not None:
        environment["TIDEGATE_TEST_KEY"] = key
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from tidegate.cli.main import main; main()", "load",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 100)
    return process.returncode, out.decode(), err.decode()


async def test_a_scenario_gives_a_table_and_a_report_without_keys(
    scenario: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    async with engine_process() as engine:
        status, out, err = await ended(
            await start(scenario, "--endpoint", engine.url, "--json", target)
        )
    assert (status, err) == (0, "")
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["a"]]
    assert row[:6] == ["a", "T1", "5", "5", "0", "0"]
    report = loads(LoadReport, target.read_text())
    assert report.complete
    assert report.tenants[0].figures.ok == 5
    assert KEY not in target.read_text() + out


async def test_interrupted_it_shows_what_was_measured(tmp_path: Path) -> None:
    slow = SCENARIO.replace("Burst}", "Closed, concurrency: 2}").replace("  requests: 5\n", "")
    scenario = written(tmp_path, slow)
    target = tmp_path / "report.json"
    async with engine_process("--fake-time-scale", "20") as engine:
        process = await start(scenario, "--endpoint", engine.url, "--json", target)
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stderr.readline(), 60)
        assert b"test: 10 s of 60 s" in line
        process.send_signal(signal.SIGINT)
        status, out, _ = await ended(process)
    assert status == 130
    assert "Interrupted: these are the figures until then." in out
    report = json.loads(target.read_text())
    assert not report["complete"]
    figures = report["total"]
    assert figures["ok"] > 0
    assert figures["sent"] == figures["ok"] + figures["unfinished"]


async def test_a_run_in_which_nothing_was_answered_fails(tmp_path: Path) -> None:
    scenario = written(tmp_path, SCENARIO.replace(MODEL, "another"))
    async with engine_process() as engine:
        status, out, err = await ended(await start(scenario, "--endpoint", engine.url))
    assert status == 1
    assert "a: 5 refused" in out
    assert "no request was answered" in err
