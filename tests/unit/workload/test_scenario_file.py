"""Scenario files: what is refused, and that the message names the place and never a key."""

from pathlib import Path

import pytest

from tidegate.workload import ScenarioError, read_scenario

ROOT = Path(__file__).parents[3]
GOOD = """
version: 1
name: test
model: m
duration_seconds: 10
tenants:
- name: a
  arrival: {process: Constant, rate_per_second: 2}
  prompt_tokens: {distribution: Constant, value: 8}
  output_tokens: {distribution: Constant, value: 4}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


def test_a_scenario_is_read(tmp_path: Path) -> None:
    scenario = read_scenario(written(tmp_path, GOOD)).scenario
    assert scenario.tenants[0].arrival.rate_per_second == 2.0


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "load").glob("*.yaml")), ids=str)
def test_the_examples_are_read(path: Path) -> None:
    assert read_scenario(path).scenario.tenants


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "scenario.version: must be at most 1"),
        ("model: m", "modle: m", "unknown field 'modle'"),
        ("duration_seconds: 10", "", "scenario.duration_seconds: required"),
        ("duration_seconds: 10", "duration_seconds: .inf", "duration_seconds: expected a finite"),
        ("process: Constant", "process: Sometimes", "tenants[0].arrival.process: expected one of"),
        (", rate_per_second: 2", "", "arrival: rate_per_second: required for Constant"),
        ("rate_per_second: 2", "rate_per_second: 2, concurrency: 1", "means nothing for Constant"),
        ("rate_per_second: 2", "rate_per_second: yes", "expected a finite number, got true"),
        ("rate_per_second: 2", "rate_per_second: 0", "must be at least 0.0001"),
        ("Constant, rate_per_second: 2", "Burst", "tenants[0]: requests: required for Burst"),
        ("Constant, rate_per_second: 2", "Trace", "tenants[0]: trace: required for Trace"),
        ("value: 8", "value: 0", "prompt_tokens.value: must be at least 1"),
        ("value: 8", "low: 8", "value: required for Constant"),
        ("Constant, value: 8", "Uniform, low: 9, high: 8", "low: 9 is above high: 8"),
        ("- name: a", "- name: a\n  endpoint: embeddings", "output_tokens: embeddings have no"),
        ("- name: a", "- name: a\n  prompt_as_token_ids: true", "chat takes text only"),
        ("- name: a", "- name: a\n  endpoint: rerank", "endpoint: must be one of"),
        ("- name: a", "- name: a\n  key: k\n  key_env: K", "set it or key_env, not both"),
        ("- name: a", "- name: a\n  name: b", "scenario.yaml:8:3: 'name' is given twice"),
        ("- name: a", "- name: a\n  1: b", "scenario.yaml:8:3: a key must be a string"),
        ("- name: a", "- name: [", "scenario.yaml:9:3: expected"),
        ("Constant, rate_per_second: 2", "BuiltIn", "arrival: workload: required for BuiltIn"),
        ("rate_per_second: 2", "rate_per_second: 2, workload: poison", "nothing for Constant"),
        ("Constant, rate_per_second: 2", "BuiltIn, workload: x", "workload: expected one of"),
        (GOOD, "", "scenario: expected an object, got null"),
        ("version: 1", 'version: !!int ""', "not YAML"),
        ("version: 1", "version: !!bool maybe", "not YAML"),
        ("version: 1", "version: !!timestamp now", "not YAML"),
        ("version: 1", "version: !!set [1]", "not YAML"),
    ],
)
def test_a_bad_scenario_is_told_where(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ScenarioError) as raised:
        read_scenario(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


BUILT_IN = """
version: 1
name: test
model: m
duration_seconds: 10
tenants:
- name: node/t0-00
  arrival: {process: BuiltIn, workload: mixed-node}
- name: node/t0-01
  arrival: {process: BuiltIn, workload: mixed-node}
"""


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("  requests: 3", "requests: means nothing for BuiltIn"),
        ("  start_seconds: 3", "start_seconds: means nothing for BuiltIn"),
        ("  endpoint: embeddings", "endpoint: a built-in workload has outputs"),
        ("  prompt_tokens: {distribution: Constant, value: 8}", "prompt_tokens: means nothing"),
        ("  output_tokens: {distribution: Constant, value: 8}", "output_tokens: means nothing"),
        ("- name: b\n  arrival: {process: BuiltIn, workload: poison}", "only one built-in work"),
    ],
)
def test_a_built_in_workload_says_all_that_is_sent(
    added: str, message: str, tmp_path: Path
) -> None:
    assert len(read_scenario(written(tmp_path, BUILT_IN)).scenario.tenants) == 2
    with pytest.raises(ScenarioError, match=message):
        read_scenario(written(tmp_path, f"{BUILT_IN}{added}\n"))


def test_tenants_have_names_of_their_own(tmp_path: Path) -> None:
    text = GOOD + GOOD[GOOD.index("- name") :]
    with pytest.raises(ScenarioError, match="'a' is listed twice"):
        read_scenario(written(tmp_path, text))


def test_no_message_and_no_repr_shows_a_key(tmp_path: Path) -> None:
    secret = "sk-very-secret"
    path = written(tmp_path, GOOD.replace("- name: a", f"- name: a\n  key: {secret}"))
    assert secret not in repr(read_scenario(path).scenario)
    broken = written(tmp_path, GOOD.replace("- name: a", f"- name: a\n  priority: {secret}"))
    with pytest.raises(ScenarioError) as raised:
        read_scenario(broken)
    assert secret not in str(raised.value)


@pytest.mark.parametrize("text", [b"\xff\xfe", None], ids=["binary", "missing"])
def test_an_unreadable_file_is_an_error_that_names_it(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ScenarioError, match=r"scenario\.yaml: "):
        read_scenario(path)


def test_a_file_without_a_size_is_not_read_to_its_end() -> None:
    """A device says that it holds 0 bytes, and never ends."""
    with pytest.raises(ScenarioError, match="larger than"):
        read_scenario(Path("/dev/zero"))
