"""`tidegate up`, `status`, `kubectl`, `logs` and `down`, run as a person would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster_objects import until

from tidegate.local_cluster.binaries import Binaries

pytestmark = pytest.mark.e2e

_TIDEGATE = [sys.executable, "-c", "from tidegate.cli.main import main; main()"]
_PROCESSES = {
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
}


class Commands:
    """The command with a cache folder of its own, in which the programs are there already."""

    def __init__(self, cache: Path, binaries: Binaries) -> None:
        (cache / "bin").symlink_to(binaries.directory.parent)
        self.cache = cache
        self.environment = os.environ | {"TIDEGATE_CACHE": str(cache)}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*_TIDEGATE, *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=250,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*_TIDEGATE, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            # Whoever runs the tests in the background has SIGINT ignored, which is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def processes(self) -> list[int]:
        """Every living process that names the cache folder in its command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"{self.cache}/clusters".encode() in command:
                found.append(int(folder.name))
        return found

    def files(self) -> list[Path]:
        return [path for path in (self.cache / "clusters").rglob("*") if path.is_file()]


@pytest.fixture
def commands(tmp_path: Path, control_plane_binaries: Binaries) -> Iterator[Commands]:
    commands = Commands(tmp_path, control_plane_binaries)
    yield commands
    commands.run("down", "--purge")


def test_up_twice_status_down_and_purge(commands: Commands) -> None:
    first = commands.run("up", "--bare")
    assert first.returncode == 0, first.stderr
    kubeconfig = first.stdout.strip().removeprefix("export KUBECONFIG=")
    assert Path(kubeconfig).stat().st_mode & 0o077 == 0
    found = commands.status()
    assert found["state"] == "up"
    assert {item["name"] for item in found["components"]} == _PROCESSES
    pids = {item["pid"] for item in found["components"]}

    again = commands.run("up", "--bare")
    assert "is up already" in again.stderr
    assert {item["pid"] for item in commands.status()["components"]} == pids

    assert "tidegate-node" in commands.run("kubectl", "get", "nodes").stdout
    run = ("kubectl", "run", "hello", "--image=busybox", "--", "-c", "echo hello; sleep 1000")
    assert commands.run(*run).returncode == 0
    until("the pod's log", lambda: commands.run("logs", "hello").stdout == "hello\n")

    server = json.loads(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
    assert commands.run("down").returncode == 0
    assert commands.processes() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.rsplit(":", 1)[1])), timeout=5)
    assert commands.run("status").returncode == 3

    assert commands.run("up", "--bare").returncode == 0
    assert "hello" in commands.run("kubectl", "get", "pods").stdout
    assert commands.run("down", "--purge").returncode == 0
    assert commands.processes() == []
    assert commands.files() == []


def test_interrupting_up_removes_what_it_started(commands: Commands) -> None:
    started = commands.start("up", "--bare")
    until("the first process", commands.processes)
    time.sleep(0.5)
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=60) == 130
    assert commands.processes() == []
    assert commands.files() == []


def test_status_shows_the_log_of_what_failed(commands: Commands) -> None:
    assert commands.run("up", "--bare").returncode == 0
    (scheduler,) = [
        item for item in commands.status()["components"] if item["name"] == "kube-scheduler"
    ]
    os.kill(scheduler["pid"], signal.SIGKILL)
    found = until("it is noticed", lambda: commands.status()["failed"])
    assert [item["what"] for item in found] == ["kube-scheduler"]
    assert "kube-scheduler" in commands.run("status").stdout
    assert commands.run("up", "--bare").returncode == 0
    assert commands.status()["state"] == "up"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["status"], "there is no cluster 'tidegate'", id="no-cluster"),
        pytest.param(["kubectl", "get", "pods"], "there is no cluster", id="kubectl"),
        pytest.param(["up", "--name", "Not/A/Name"], "cluster name 'Not/A/Name'", id="bad-name"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    commands: Commands, arguments: list[str], message: str
) -> None:
    done = commands.run(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
