"""Scripts that take no arguments say so, and do nothing."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ["quickstart", "check", "generate", "install-prometheus", "install-vllm"]


@pytest.mark.parametrize("name", NAMES)
def test_help_is_printed_and_anything_else_refused(name: str, tmp_path: Path) -> None:
    def run(argument: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [SCRIPTS / name, argument], capture_output=True, text=True, cwd=tmp_path, timeout=20
        )

    told = run("--help")
    usage, *rest = told.stdout.splitlines()
    assert (told.returncode, usage, told.stderr) == (0, f"usage: scripts/{name}", "")
    assert rest
    assert not any(line.startswith("#") for line in rest)
    for refused in (run("--name"), run("")):
        assert refused.returncode == 2
        assert "takes no arguments" in refused.stderr
