"""Containers as processes: started below a shim, found again after the kubelet was away.

Each start of a container is an *attempt* with a folder of its own:

    spec.json   what to run (written before the start)
    run.json    pid and start time of the shim (written after it; the shim's own is shim.json)
    log         standard output and error
    exit.json   exit code and times, written by the shim when all of the container is gone

An attempt is over when its shim is. One without exit.json was killed from outside.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.local_cluster.files import read_json, write_json
from tidegate.local_cluster.kubelet import shim
from tidegate.local_cluster.kubelet.api import Object
from tidegate.local_cluster.processes import ProcessRecord

KILLED_CODE = 137
_RECORD_TRIES = 30
_SHIM = [sys.executable, "-I", "-S", shim.__file__]
_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--uts"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. Times are Unix seconds."""

    code: int
    signal: int
    started: float
    finished: float
    setup_error: str = ""


class Attempt:
    """One start of a container, running or over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = int(folder.name)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @classmethod
    def start(cls, folder: Path, spec: Object) -> "Attempt":
        """Starts a container. `spec`: argv, environment, directory, hostname, mounts, kept."""
        attempt = cls(folder)
        scratch = folder / "root"
        scratch.mkdir(parents=True)
        write_json(folder / "spec.json", {**spec, "scratch": str(scratch)})
        with attempt.log.open("ab") as output:
            attempt._child = subprocess.Popen(
                [*_NAMESPACES, *_SHIM, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = ProcessRecord.of(attempt._child.pid)
        write_json(folder / "run.json", {"pid": record.pid, "ticks": record.started_ticks})
        return attempt

    @classmethod
    def last(cls, container: Path) -> "Attempt | None":
        """The newest attempt in a container's folder."""
        if not container.is_dir():
            return None
        numbers = [int(entry.name) for entry in container.iterdir() if entry.name.isdigit()]
        return cls(container / str(max(numbers))) if numbers else None

    @property
    def started(self) -> float:
        """When the attempt started, in Unix seconds."""
        own = read_json(self.folder / "shim.json")
        if own:
            return float(own["started"])
        return (self.folder / "spec.json").stat().st_mtime

    def shim(self) -> ProcessRecord | None:
        own = read_json(self.folder / "run.json") or read_json(self.folder / "shim.json")
        return ProcessRecord(own["pid"], own["ticks"]) if own else None

    def main_process(self) -> ProcessRecord | None:
        """The container's own process, once the shim has started it."""
        own = read_json(self.folder / "shim.json")
        return ProcessRecord(own["child"], own["child_ticks"]) if own else None

    def running(self) -> bool:
        record = self.shim()
        return record is not None and record.alive()

    async def wait(self) -> Exit:
        """Waits until the whole container is gone; works on one started by another kubelet too."""
        # A kubelet killed just after a start had no time for run.json; the shim's own file follows.
        for _ in range(_RECORD_TRIES):
            if self.shim() is not None or (self.folder / "exit.json").exists():
                break
            await asyncio.sleep(0.1)
        if (record := self.shim()) is not None:
            await _gone(record)
        if self._child is not None:
            self._child.wait()
        return self.exit()

    def exit(self) -> Exit:
        """How it ended, for an attempt that does not run any more."""
        end = read_json(self.folder / "exit.json")
        if end is None:
            return Exit(KILLED_CODE, signal.SIGKILL, self.started, time.time())
        return Exit(**end)

    def terminate(self) -> None:
        """SIGTERM to the container's own process (the shim passes it on)."""
        if record := self.shim():
            record.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the shim, seeing its child gone, ends what else the container started."""
        own = self.main_process()
        if own is not None and own.signal(signal.SIGKILL):
            return
        # No child yet, or none any more: the shim itself is what hangs.
        if record := self.shim():
            record.signal(signal.SIGKILL)

    async def execute(self, argv: Sequence[str], timeout_seconds: float) -> tuple[int, str]:
        """Runs a command inside the running container: (exit code, output)."""
        record = self.main_process()
        if record is None or not record.alive():
            return 1, "the container does not run"
        spec = json.loads((self.folder / "spec.json").read_text())
        enter = ["nsenter", f"--target={record.pid}", "--user", "--mount", "--uts"]
        process = await asyncio.create_subprocess_exec(
            *enter,
            f"--wdns={spec['directory']}",
            "--preserve-credentials",
            "--",
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=spec["environment"],
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace")


async def _gone(record: ProcessRecord) -> None:
    """Waits without polling for a process that need not be a child."""
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    try:
        if not record.alive():
            return
        loop.add_reader(handle, done.set)
        await done.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def kill_containers(*pods: Path, timeout_seconds: float = 5.0) -> int:
    """Ends every container recorded in these pods' folders; how many still ran.

    For when no kubelet runs that could: after `down`, and for pods that are gone from the API.
    """
    # No deeper: a volume holds whatever the pod wrote.
    files = [file for pod in pods for file in pod.glob("containers/*/*/spec.json")]
    attempts = [Attempt(file.parent) for file in files if file.parent.name.isdigit()]
    alive = [attempt for attempt in attempts if attempt.running()]
    for attempt in alive:
        attempt.kill()
    deadline = time.monotonic() + timeout_seconds
    for attempt in alive:
        record = attempt.shim()
        if record is not None and not record.wait(deadline - time.monotonic()):
            record.signal(signal.SIGKILL)
            record.wait(1)
    return len(alive)
