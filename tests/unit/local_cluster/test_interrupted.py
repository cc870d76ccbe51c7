"""A signal at the worst moment leaves no process that nobody knows of."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tidegate.local_cluster import binaries, cluster, control_plane
from tidegate.local_cluster.binaries import Binaries
from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.control_plane import ETCD, ControlPlane
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.processes import spawn_detached, start_ticks, uninterrupted


class Interrupted(Exception):
    """What the handler of these tests raises."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    done = []

    def signal_and_go_on() -> None:
        with uninterrupted():
            os.kill(os.getpid(), number)
            done.append(True)

    with pytest.raises(Interrupted):
        signal_and_go_on()
    assert done
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), number)


def _interrupting(*arguments: Any, **options: Any) -> Any:
    started = spawn_detached(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return started


def _sleeping(path: Path) -> None:
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    path.chmod(0o755)


def test_a_component_started_when_the_signal_comes_is_known_and_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _sleeping(tmp_path / "etcd")
    monkeypatch.setattr(control_plane, "spawn_detached", _interrupting)
    plane = ControlPlane(tmp_path / "state", Binaries(tmp_path))
    plane.prepare()
    with pytest.raises(Interrupted):
        plane.start_component(ETCD)
    (etcd, *_) = plane.states()
    assert etcd.running
    plane.stop()
    assert etcd.pid is not None
    assert start_ticks(etcd.pid) is None


def test_a_full_disk_does_not_keep_a_cluster_from_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _sleeping(tmp_path / "etcd")
    plane = ControlPlane(tmp_path / "state", Binaries(tmp_path))
    plane.prepare()
    with pytest.raises(LocalClusterError, match="did not become healthy"):
        plane.start_component(ETCD, timeout_seconds=0.0)
    (etcd, *_) = plane.states()
    monkeypatch.setattr(control_plane, "write_json", full)
    plane.stop()
    assert etcd.pid is not None
    assert start_ticks(etcd.pid) is None
    assert plane.states()[0].pid is None


def test_a_kubelet_started_when_the_signal_comes_is_known_and_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupting(command: list[str], *arguments: Any, **options: Any) -> Any:
        return _interrupting(["sleep", "1000"], *arguments, **options)

    monkeypatch.setattr(cluster, "spawn_detached", interrupting)
    local = LocalCluster("interrupted", Binaries(tmp_path), tmp_path)
    with pytest.raises(Interrupted), local._chosen_range(None):
        local.start_kubelet()
    kubelet = local.states()[-1]
    assert kubelet.running
    local.purge()
    assert kubelet.pid is not None
    assert start_ticks(kubelet.pid) is None


def test_an_interrupted_build_ends_the_compilers_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    go, compiler = tmp_path / "go", tmp_path / "compiler.pid"
    go.write_text(
        '#!/bin/sh\nif [ "$1" = list ]; then echo a; exit; fi\n'
        f"sleep 1000 & echo $! > {compiler}; echo a >&2; wait\n"
    )
    go.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda cache: go)

    steps: list[str] = []

    def interrupt(progress: binaries.BuildProgress) -> None:
        steps.append(progress.step)
        if progress.done:
            raise Interrupted

    cache = tmp_path / "cache"
    with pytest.raises(Interrupted):
        binaries.ensure_binaries(cache, interrupt)
    assert steps[-1] == "interrupted; cleaning up"
    assert sorted(entry.name for entry in cache.iterdir()) == ["build.lock"]
    deadline = time.monotonic() + 10
    while start_ticks(int(compiler.read_text())) is not None:
        assert time.monotonic() < deadline, "the compiler runs on"
        time.sleep(0.01)
