"""The trace that ships is what its script makes, and its scenario replays all of it."""

import subprocess
import sys
from pathlib import Path

from tidegate.workload import read_scenario

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_trace_is_what_its_script_makes() -> None:
    made = subprocess.run(
        [sys.executable, EXAMPLES / "traces" / "make.py"], capture_output=True, check=True
    )
    assert made.stdout == (EXAMPLES / "traces" / "synthetic-chat.jsonl").read_bytes()


def test_its_scenario_replays_all_of_it() -> None:
    workload = read_scenario(EXAMPLES / "load" / "short-chat.yaml")
    workload.check_sources()
    (traced,) = [tenant for tenant in workload.scenario.tenants if tenant.trace]
    lines = (EXAMPLES / "traces" / "synthetic-chat.jsonl").read_text().splitlines()
    planned = list(workload.requests(traced))
    assert len(planned) == len(lines)
    assert any(request.prefix and len(request.prefix.block_ids) > 2 for request in planned)
