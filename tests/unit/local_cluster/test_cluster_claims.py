"""What two commands at once, and what a command that was cut short left, do to a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.local_cluster.binaries import Binaries
from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.processes import spawn_detached


def _cluster(name: str, cache: Path) -> LocalCluster:
    cluster = LocalCluster(name, Binaries(cache / "bin"), cache)
    cluster.state.mkdir(parents=True)
    return cluster


def _index(cluster: LocalCluster) -> int:
    return int(json.loads((cluster.state / "cluster.json").read_text())["index"])


def test_clusters_that_come_up_at_once_take_different_addresses(tmp_path: Path) -> None:
    here, beside = _cluster("a", tmp_path), _cluster("b", tmp_path)
    elsewhere = _cluster("a", tmp_path / "another-cache")
    with here._chosen_range(None), beside._chosen_range(None), elsewhere._chosen_range(None):
        assert len({_index(here), _index(beside), _index(elsewhere)}) == 3


def test_a_stopped_cluster_keeps_its_addresses(tmp_path: Path) -> None:
    stopped, fresh = _cluster("a", tmp_path), _cluster("b", tmp_path)
    with stopped._chosen_range(None):
        pass
    with fresh._chosen_range(None):
        assert _index(fresh) != _index(stopped)


def test_addresses_that_another_cluster_took_meanwhile_are_said_to_be(tmp_path: Path) -> None:
    stopped = _cluster("a", tmp_path)
    with stopped._chosen_range(None):
        pass
    elsewhere = _cluster("a", tmp_path / "another-cache")
    (elsewhere.state / "cluster.json").write_text((stopped.state / "cluster.json").read_text())
    with (
        elsewhere._chosen_range(None),
        pytest.raises(LocalClusterError, match="are in use by another one"),
        stopped._chosen_range(None),
    ):
        pass


def test_a_second_command_is_refused_and_a_purged_lock_is_no_lock(tmp_path: Path) -> None:
    cluster, again = _cluster("a", tmp_path), LocalCluster("a", Binaries(tmp_path), tmp_path)
    with cluster.locked():
        with pytest.raises(LocalClusterError, match="another command"), again.locked():
            pass
        cluster.purge()
        with again.locked():
            assert list((tmp_path / "clusters").iterdir()) == [again._lock]


@pytest.mark.parametrize("content", [None, "", '{"index": '], ids=["missing", "empty", "cut"])
def test_a_half_made_cluster_can_be_purged(content: str | None, tmp_path: Path) -> None:
    cluster = _cluster("a", tmp_path)
    if content is not None:
        (cluster.state / "cluster.json").write_text(content)
        with pytest.raises(LocalClusterError, match=r"cluster\.json is damaged"):
            cluster.states()
    cluster.purge()
    assert list((tmp_path / "clusters").iterdir()) == []


def test_a_detached_process_does_not_import_from_where_one_stood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    _, process = spawn_detached([sys.executable, "-m", "json.tool", os.devnull], tmp_path / "log")
    assert process.wait(30) != 7


def test_all_that_is_missing_is_printed_without_any_dependency(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tidegate.local_cluster.preflight"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={"PATH": os.environ["PATH"], "TIDEGATE_CACHE": str(file / "cache")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"a folder to keep files in: {file} can't be written" in done.stdout
