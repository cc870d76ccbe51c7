"""`tidegate serve` and `tidegate router` with files that are not there: one line, exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidegate.cli.main import main

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"


@pytest.mark.parametrize("missing", ["policy", "keys", "pods"])
def test_a_file_that_is_missing_is_named(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {name: CONTRACTS / f"{name}.json" for name in ("policy", "keys", "pods")}
    files[missing] = tmp_path / "absent.json"
    arguments = [f"--policy={files['policy']}", f"--keys={files['keys']}"]
    router = ["router", *arguments, f"--pods={files['pods']}", "--identity-keys=none"]
    serve = ["serve", *arguments, "--engine=http://127.0.0.1:9"]
    for command in (router,) if missing == "pods" else (serve, router):
        monkeypatch.setattr(sys, "argv", ["tidegate", *command])
        with pytest.raises(SystemExit) as raised:
            main()
        assert raised.value.code == 2
        said = capsys.readouterr().err
        assert said == f"tidegate: {files[missing]}: No such file or directory\n"
