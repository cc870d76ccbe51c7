"""Drafts in real engines with the plug-in: off for a tier, acceptance told, outputs unchanged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.plugin_bench import policy, tier

from testbed.real_vllm import ENVIRONMENT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TESTS = Path(__file__).resolve().parents[1]
RATES = ("0.41", "0.74")


@pytest.fixture(scope="module")
def told(
    python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was said and told without drafts, and with drafts of each acceptance."""
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(policy([tier("t0", 300), tier("t3", 0, draft_tokens=0)])))
    done = subprocess.run(
        [python, TESTS / "support" / "plugin_acceptance.py", tiny_model, path, *RATES],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"plain"')]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("rate", RATES)
def test_acceptance_by_tier_is_what_it_is(told: dict[str, Any], rate: str) -> None:
    drafts = told[rate]
    assert drafts["failures"] == 0
    assert set(drafts["drafted"]) == {"t0"}  # none for T3
    accepted = drafts["accepted"]["t0"] / drafts["drafted"]["t0"]
    assert accepted == pytest.approx(float(rate), abs=0.02)
    # Each step of T0 gives one token and what was accepted; T3's one token, as without drafts.
    plain = told["plain"]["decodes"]
    assert plain["t0"] / drafts["decodes"]["t0"] == pytest.approx(1 + float(rate), abs=0.04)
    assert drafts["decodes"]["t3"] == plain["t3"]


@pytest.mark.parametrize("rate", RATES)
def test_outputs_are_those_without_drafts(told: dict[str, Any], rate: str) -> None:
    assert told[rate]["said"] == told["plain"]["said"]
