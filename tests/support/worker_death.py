"""pytest plug-in: says how a worker of ``-n`` ended that did not end by itself.

xdist says only that it "crashed", which is a fault of ours (SIGSEGV), the machine's lack of memory
(SIGKILL, and the kernel counted one) or somebody else's signal; on a machine of CI nobody can look.
The scheduler runs what the worker had left, that test first, in a new one. After a SIGKILL, which
no code of a worker can cause in itself by accident, the second run is the test's result; any other
death, and a second one in the same test, is a failure.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest

UNLIMITED = resource.RLIM_INFINITY


def _numbers(path: str) -> dict[str, int]:
    """The lines ``name number`` or ``name: number kB`` of a file of /proc."""
    lines = (line.replace(":", " ").split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines}


def _killed_for_memory() -> int:
    return _numbers("/proc/vmstat").get("oom_kill", 0)


class WorkerDeath:
    """Least memory seen while the tests ran, and a line for each worker that died."""

    def __init__(self) -> None:
        self._killed_before = _killed_for_memory()
        self._least_available_kb = _numbers("/proc/meminfo")["MemAvailable"]
        self._deaths: list[str] = []
        self._last_status: int | None = None
        self._killed_in: set[str] = set()

    def pytest_runtest_logreport(self) -> None:
        available_kb = _numbers("/proc/meminfo")["MemAvailable"]
        self._least_available_kb = min(self._least_available_kb, available_kb)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._last_status = node.gateway._io.wait()
            self._deaths.append(f"{node.gateway.id} {_ended(self._last_status)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        if self._last_status == -signal.SIGKILL and crashitem not in self._killed_in:
            self._killed_in.add(crashitem)
            report.outcome = "skipped"
            report.longrepr = (crashitem, 0, "its process was killed from outside; it is run again")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for death in self._deaths:
            terminalreporter.write_line(
                f"{death}; killed for want of memory on this machine meanwhile: "
                f"{_killed_for_memory() - self._killed_before}, least memory available: "
                f"{self._least_available_kb >> 10} MiB, processor time allowed: "
                f"{_processor_seconds_allowed()}",
                red=True,
            )


def _ended(status: int | None) -> str:
    if status is None or status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def _processor_seconds_allowed() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    return "unlimited" if soft == hard == UNLIMITED else f"{soft} s, at most {hard} s"


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(WorkerDeath(), "worker-death-watch")
