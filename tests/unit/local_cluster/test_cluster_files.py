"""Files, processes and addresses that the local cluster keeps."""

import ipaddress
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.local_cluster import binaries, credentials
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.files import read_json, write_json
from tidegate.local_cluster.kubelet import atomic_volume
from tidegate.local_cluster.kubelet.atomic_volume import Payload
from tidegate.local_cluster.kubelet.node_context import PodAddressPool
from tidegate.local_cluster.kubelet.quantity import parse
from tidegate.local_cluster.kubelet.runtime import kill_containers
from tidegate.local_cluster.paths import cache_directory, cluster_directory
from tidegate.local_cluster.processes import ProcessRecord


def _content(folder: Path) -> dict[str, str]:
    return {
        entry.name: entry.read_text()
        for entry in folder.iterdir()
        if not entry.name.startswith("..")
    }


def test_a_volume_is_swapped_by_one_link_and_leaves_nothing_old(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    assert atomic_volume.write(folder, {"a": Payload(b"1"), "gone": Payload(b"x")})
    first = os.readlink(folder / "..data")
    with (folder / "a").open() as held:
        assert atomic_volume.write(folder, {"a": Payload(b"2"), "new": Payload(b"y", 0o600)})
        assert held.read() == "1"
    assert _content(folder) == {"a": "2", "new": "y"}
    assert (folder / "new").stat().st_mode & 0o777 == 0o600
    assert os.readlink(folder / "..data") != first
    assert len(list(folder.glob("*_generation"))) == 1


def test_an_unchanged_volume_is_not_touched(tmp_path: Path) -> None:
    files = {"a": Payload(b"1"), "b/c": Payload(b"2")}
    assert atomic_volume.write(tmp_path, files)
    link = os.readlink(tmp_path / "..data")
    assert not atomic_volume.write(tmp_path, files)
    assert os.readlink(tmp_path / "..data") == link
    assert (tmp_path / "b" / "c").read_text() == "2"


def test_a_volume_write_that_was_cut_short_is_cleaned_up(tmp_path: Path) -> None:
    atomic_volume.write(tmp_path, {"a": Payload(b"1")})
    (tmp_path / "..cut_generation").mkdir()
    (tmp_path / "..data_tmp").symlink_to("..cut_generation")
    atomic_volume.write(tmp_path, {"a": Payload(b"2")})
    assert _content(tmp_path) == {"a": "2"}
    assert not (tmp_path / "..cut_generation").exists()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_recorded_process_is_signalled(sleeper: "subprocess.Popen[bytes]") -> None:
    record = ProcessRecord.of(sleeper.pid)
    assert record.alive()
    assert not record.wait(0)
    assert record.stop(grace_seconds=20)
    assert sleeper.wait() == -signal.SIGTERM
    assert not record.alive()
    assert not record.signal(signal.SIGTERM)


def test_a_recycled_pid_is_never_signalled(sleeper: "subprocess.Popen[bytes]") -> None:
    record = ProcessRecord(sleeper.pid, ProcessRecord.of(sleeper.pid).started_ticks - 1)
    assert not record.alive()
    assert not record.signal(signal.SIGKILL)
    assert record.stop(grace_seconds=0)
    assert sleeper.poll() is None


def test_a_file_that_a_pod_wrote_is_not_taken_for_a_container(tmp_path: Path) -> None:
    attempt, volume = tmp_path / "containers" / "main" / "1", tmp_path / "volumes" / "data"
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        record = ProcessRecord.of(sleeper.pid)
        for folder in (attempt, volume):
            write_json(folder / "spec.json", {})
        write_json(attempt / "run.json", {"pid": record.pid, "ticks": record.started_ticks})
        try:
            assert kill_containers(tmp_path) == 1
        finally:
            sleeper.kill()


def test_pod_addresses_are_unique_and_come_back_last() -> None:
    pool = PodAddressPool(ipaddress.IPv4Network("127.77.0.0/29"))
    taken = [pool.take() for _ in range(5)]
    assert taken == [f"127.77.0.{number}" for number in range(2, 7)]
    with pytest.raises(RuntimeError, match="no free pod address"):
        pool.take()
    pool.release("127.77.0.4")
    assert pool.take() == "127.77.0.4"
    pool.release("127.77.0.3")
    assert pool.claim("127.77.0.3")
    assert not pool.claim("127.77.0.3")
    assert not pool.claim("10.0.0.1")


def test_tokens_and_keys_are_kept_and_private(tmp_path: Path) -> None:
    store, table = tmp_path / "tokens.json", tmp_path / "tokens.csv"
    first = credentials.ensure_tokens(store, table)
    assert credentials.ensure_tokens(store, table) == first == read_json(store)
    assert len(set(first.values())) == len(credentials.USERS)
    assert (store.stat().st_mode | table.stat().st_mode) & 0o077 == 0
    key, public = tmp_path / "sa.key", tmp_path / "sa.pub"
    credentials.ensure_service_account_key(key, public)
    content = key.read_bytes()
    credentials.ensure_service_account_key(key, public)
    assert key.read_bytes() == content
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a-", "a" * 41])
def test_an_unfit_cluster_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="cluster name"):
        cluster_directory(name, tmp_path)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("TIDEGATE_CACHE", raising=False)
    assert cache_directory() == Path("/x/tidegate")
    monkeypatch.setenv("TIDEGATE_CACHE", "/y")
    assert cache_directory() == Path("/y")


def test_assets_that_lack_a_program_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(LocalClusterError, match="lacks kube-controller-manager, kube-scheduler"):
        binaries.find_binaries(tmp_path / "cache")


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda cache: go)
    cache = tmp_path / "cache"
    (cache / "build-killed").mkdir(parents=True)
    steps: list[str] = []
    with pytest.raises(LocalClusterError, match="go list failed: no such module"):
        binaries.ensure_binaries(cache, lambda progress: steps.append(progress.step))
    assert steps[-1] == "failed; cleaning up"
    assert sorted(entry.name for entry in cache.iterdir()) == ["build.lock"]


def test_a_build_appears_whole_and_is_done_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    go = tmp_path / "go"
    go.write_text(
        '#!/bin/sh\nif [ "$1" = list ]; then printf "a\\nb\\n"; exit; fi\n'
        "echo a >&2; echo b >&2; mkdir bin; cd bin\n"
        "touch server kube-apiserver kube-controller-manager kube-scheduler kubectl\n"
    )
    go.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda cache: go)
    steps: list[tuple[int, int]] = []
    cache = tmp_path / "cache"
    built = binaries.ensure_binaries(cache, lambda step: steps.append((step.done, step.total)))
    assert all(Path(built.path(name)).exists() for name in binaries.PROGRAMS)
    assert steps == [(0, 0), (1, 2), (2, 2)]
    assert not list(cache.glob("build-*"))
    go.write_text("#!/bin/sh\nexit 1\n")
    assert binaries.ensure_binaries(cache) == built


def test_exponents_are_not_confused_with_exa() -> None:
    assert parse("1E") == 10**18
    assert parse("1E2") == 100


def test_a_cluster_remembers_programs_that_are_not_the_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    cache, assets = tmp_path / "cache", tmp_path / "assets"
    assets.mkdir()
    for name in binaries.PROGRAMS:
        (assets / name).touch()
    one, other = cluster_directory("one", cache), cluster_directory("other", cache)
    binaries.remember_binaries(one, binaries.Binaries(assets), cache)
    assert binaries.find_binaries(cache, one) == binaries.Binaries(assets)
    assert binaries.find_binaries(cache, other) is None
    built = binaries._target(cache)
    built.mkdir(parents=True)
    assert binaries.find_binaries(cache, one) == binaries.Binaries(assets)
    (assets / "kubectl").unlink()
    assert binaries.find_binaries(cache, one) == binaries.Binaries(built)
    (assets / "kubectl").touch()
    binaries.remember_binaries(one, binaries.Binaries(built), cache)
    assert binaries.find_binaries(cache, one) == binaries.Binaries(built)
