"""`tidegate load` with wrong input: one line, an exit code, no traceback and no key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidegate.cli.main import main
from tidegate.workload.clients.built_in import SERVEGEN_FOLDER

KEY = "sk-test-only"
SERVEGEN = Path(__file__).parents[3] / "examples" / "load" / "servegen.yaml"
SCENARIO = """
version: 1
name: test
model: m
duration_seconds: 60
tenants:
- name: a
  key_env: TIDEGATE_TEST_KEY
  arrival: {process: Burst}
  requests: 5
  prompt_tokens: {distribution: Constant, value: 8}
  output_tokens: {distribution: Constant, value: 4}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    monkeypatch.setenv("TIDEGATE_TEST_KEY", KEY)
    monkeypatch.setenv("TIDEGATE_ENDPOINT", "http://127.0.0.1:1")
    return path


def failed(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--endpoint", "nonsense"], "expected http://HOST:PORT"),
        (["--key", "b=x"], "no tenant 'b'"),
        (["--key", "a"], "--key: expected NAME=KEY"),
        (["--key", "a=\n"], "not printable ASCII"),
        (["--json", "/nowhere/x"], "--json: cannot write /nowhere/x"),
        (["--json", "/"], "--json: cannot write /"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failed(monkeypatch, "load", scenario, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("tidegate: ")
    assert err.count("\n") == 1
    assert KEY not in err


def test_a_key_that_its_variable_does_not_hold_is_asked_for(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIDEGATE_TEST_KEY")
    assert failed(monkeypatch, "load", scenario) == 2
    assert "variable TIDEGATE_TEST_KEY holds no key; set it or give --key a=KEY" in (
        capsys.readouterr().err
    )


def test_a_scenario_that_is_wrong_is_told_where(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("Burst", "Trace"))
    assert failed(monkeypatch, "load", scenario) == 2
    assert capsys.readouterr().err == (
        f"tidegate: {scenario}: scenario.tenants[0]: trace: required for Trace\n"
    )


def test_servegen_cut_short_is_told_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / SERVEGEN_FOLDER
    folder.mkdir(parents=True)
    rates = folder / "chunk-0-trace.csv"
    rates.write_text("0,1.5,1,Gamma,1,1\n600,1.5")
    monkeypatch.setenv("TIDEGATE_TRACES", str(tmp_path))
    assert failed(monkeypatch, "load", SERVEGEN, "--endpoint", "http://127.0.0.1:1") == 2
    assert capsys.readouterr().err == f"tidegate: {rates}:2: expected 6 fields, got 2\n"
    rates.write_text("0,1.5,1,Gamma,1,1\n")
    assert failed(monkeypatch, "load", SERVEGEN, "--endpoint", "http://127.0.0.1:1") == 2
    assert capsys.readouterr().err == (
        f"tidegate: {rates}:1: ends after 600 s; there is nothing from 741600 s on\n"
    )


def test_a_tenant_that_a_built_in_workload_has_not_is_told(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "- name: a\n  arrival: {process: BuiltIn, workload: ten-thousand-against-five}\n"
    scenario.write_text(SCENARIO[: SCENARIO.index("- name")] + row)
    assert failed(monkeypatch, "load", scenario) == 2
    assert capsys.readouterr().err == (
        "tidegate: tenant 'a': the workload ten-thousand-against-five has none of that name; "
        "it has backlog/many, backlog/few\n"
    )


def test_an_endpoint_that_is_away_is_status_1(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(monkeypatch, "load", scenario) == 1
    assert capsys.readouterr().err == (
        "tidegate: cannot reach http://127.0.0.1:1: connection_refused\n"
    )


def test_without_an_endpoint_it_says_which_option_is_missing(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIDEGATE_ENDPOINT")
    assert failed(monkeypatch, "load", scenario) == 2
    assert "--endpoint" in capsys.readouterr().err
