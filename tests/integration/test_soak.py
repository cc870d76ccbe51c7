"""A minute of `scripts/bench soak`: every aim is met. The whole of it takes twenty.

What a minute cannot show is memory that grows by less than a few kilobytes for each request; all
other rules hold from the first request on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
SECONDS = 35
MUST_BE_MET = 11


@pytest.mark.timeout(600)
def test_nothing_is_lost_kept_or_counted_twice_under_abuse(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    command = [sys.executable, SOAK, f"--seconds={SECONDS}", "--every=1.5", f"--json={report}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=560, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(report.read_text())["figures"]
    judged = {figure["name"]: figure["met"] for figure in figures if figure["aim"]}
    assert len(judged) >= MUST_BE_MET, done.stdout
    assert all(judged.values()), done.stdout
