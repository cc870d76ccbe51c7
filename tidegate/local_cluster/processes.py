"""Processes that outlive the one who started them.

A process is recorded as its pid and its start time (clock ticks since boot). A pid alone is
recycled by the kernel: signalling a recorded pid without comparing the start time may hit a
stranger. Every signal goes through `ProcessRecord.signal`, which compares first.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in parentheses and may hold anything; fields follow the last ')'.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Puts off what would interrupt the main thread: a process is started *and* recorded.

    One that runs and is recorded nowhere is one that nothing would ever end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = [(number, signal.signal(number, remember)) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        for again in caught:
            signal.raise_signal(again)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that was started once, whether it still runs or not."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRecord":
        """The record of a process just started; of one already gone, a record never alive."""
        return cls(pid, start_ticks(pid) or -1)

    def alive(self) -> bool:
        return start_ticks(self.pid) == self.started_ticks

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal if this very process still runs; says whether it did."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The descriptor pins the process: what is compared is what is signalled.
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until the process is gone; False when it still runs at the end."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive():
                return True
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            return bool(poller.poll(max(0.0, timeout_seconds) * 1000))
        finally:
            os.close(handle)

    def stop(self, grace_seconds: float) -> bool:
        """SIGTERM, then SIGKILL after `grace_seconds`; True when it went by itself."""
        if not self.signal(signal.SIGTERM):
            return True
        if self.wait(grace_seconds):
            return True
        self.signal(signal.SIGKILL)
        self.wait(5)
        return False


def spawn_detached(
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    die_with_parent: bool = False,
) -> tuple[ProcessRecord, "subprocess.Popen[bytes]"]:
    """Starts a process in a session of its own, its output appended to `log`.

    With `die_with_parent` the kernel kills it when the starting thread's process ends, however that
    ends: for tests, which must leave nothing behind.
    """
    command = list(argv)
    if die_with_parent:
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",  # keeps no folder busy, and `python -m` imports nothing from where one stood
            env=dict(environment) if environment is not None else None,
        )
    return ProcessRecord.of(process.pid), process


def tail(path: Path, lines: int) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 400 * lines))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def wait_until_gone(records: Sequence[ProcessRecord], timeout_seconds: float) -> bool:
    """Waits for all of them together; False when one still runs at the end."""
    deadline = time.monotonic() + timeout_seconds
    return all(record.wait(deadline - time.monotonic()) for record in records)
