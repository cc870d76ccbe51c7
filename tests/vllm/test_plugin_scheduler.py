"""The plug-in on vLLM's own scheduler classes, driven by hand: no model, no engine process.

Both classes run every case of ``support/plugin_cases``, in one process of vLLM's environment;
the asynchronous one with two steps in flight, which no CPU engine ever gives it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support import plugin_cases

from testbed.real_vllm import ENVIRONMENT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def told(python: Path, tiny_model: Path) -> dict[tuple[str, str], str | None]:
    """By class and case: why it failed."""
    done = subprocess.run(
        [python, TESTS / "support" / "plugin_runner.py", tiny_model],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
        timeout=800,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {(line["variant"], line["case"]): line["error"] for line in lines}


@pytest.mark.parametrize("variant", ["sync", "async"])
@pytest.mark.parametrize("case", plugin_cases.CASES)
def test_case(told: dict[tuple[str, str], str | None], case: str, variant: str) -> None:
    error = told[variant, case]
    assert error is None, error
