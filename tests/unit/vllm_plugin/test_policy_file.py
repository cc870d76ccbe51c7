"""The policy as the engine process reads it: hot, first shard only, the last good one kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.vllm_plugin.mixin import PluginRefused, paths
from tidegate.vllm_plugin.policy_file import POLL_SECONDS, PolicyFile

EXAMPLES = Path(__file__).resolve().parents[2] / "contracts"


def document(generation: int, **more: Any) -> str:
    return json.dumps(
        {"version": 1, "generation": generation, "pool": "a/b", "model": {"name": "m"}, **more}
    )


def write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_it_is_read_when_it_changes_and_looked_at_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write(path, document(1))
    file = PolicyFile(path)
    first = file.changed(10.0)
    assert first is not None
    assert first.generation == 1
    write(path, document(2))
    assert file.changed(10.0 + POLL_SECONDS / 2) is None
    second = file.changed(10.0 + POLL_SECONDS)
    assert second is not None
    assert second.generation == 2
    assert file.changed(12.0 + POLL_SECONDS) is None
    assert file.errors == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2}', "[" * 100_000])
def test_an_unreadable_one_is_counted_once_and_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.json"
    write(path, document(1))
    file = PolicyFile(path)
    assert file.changed(0.0) is not None
    write(path, text)
    for now in (2.0, 4.0, 6.0):
        assert file.changed(now) is None
    assert (file.errors, file.generation) == (1, 1)
    write(path, document(3))
    assert file.changed(8.0) is not None


def test_one_that_is_missing_is_counted_once_and_taken_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    file = PolicyFile(path)
    for now in (0.0, 2.0, 4.0):
        assert file.changed(now) is None
    assert file.errors == 1
    write(path, document(1))
    assert file.changed(6.0) is not None


def test_a_folder_of_shards_is_read_by_its_first_without_its_tenants(tmp_path: Path) -> None:
    first = json.loads((EXAMPLES / "policy-shard-0.json").read_text())
    first["tenants"] = "not even a list"
    data = tmp_path / "..2026"
    data.mkdir()
    (data / "policy-0.json").write_text(json.dumps(first))
    (data / "policy-1.json").write_text("not read")
    (tmp_path / "..data").symlink_to(data.name)
    policy = PolicyFile(tmp_path).changed(0.0)
    assert policy is not None
    assert policy.generation == first["generation"]
    assert policy.tenants == ()


def test_an_empty_folder_is_an_error_and_no_more(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path)
    assert file.changed(0.0) is None
    assert file.errors == 1


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"tidegate": "x"},
        {"tidegate": {"policy": ""}},
        {"tidegate": {"policy": "/p", "statistics": 3}},
    ],
)
def test_a_start_without_a_path_is_refused(config: object) -> None:
    with pytest.raises(PluginRefused, match="additional-config"):
        paths(config)
    assert paths({"tidegate": {"policy": "/p"}}) == (Path("/p"), None)
