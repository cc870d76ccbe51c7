"""`scripts/bench`: every benchmark it lists can be run."""

import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "scripts" / "bench"
NAMES = [
    "autoscale",
    "control-plane",
    "drafts",
    "fairness",
    "fidelity",
    "gate",
    "incidents",
    "isolation",
    "node",
    "prefill",
    "proxy",
    "replicas",
    "response",
    "salt",
    "scheduler",
    "soak",
]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_found(name: str) -> None:
    done = bench(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


def test_an_unknown_one_is_told_what_there_is() -> None:
    done = bench("nope")
    assert done.returncode == 2
    assert "no benchmark is called nope" in done.stderr
    assert "gate" in done.stderr
    assert "proxy" in done.stderr
