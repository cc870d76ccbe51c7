"""pytest plug-in: a run fails when a marker ran fewer tests than ``--marker-floor FILE`` says.

A suite that silently skips its contract or e2e tests looks green; the floor makes that a failure.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

MARKERS = ("contract", "integration", "vllm", "e2e")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--marker-floor", metavar="FILE", help="least number of tests per marker")


def pytest_configure(config: pytest.Config) -> None:
    in_parallel = hasattr(config, "workerinput")  # xdist's controller counts for all processes
    if (path := config.getoption("--marker-floor")) and not in_parallel:
        floor = tomllib.loads(Path(path).read_text())["minimum"]
        config.pluginmanager.register(MarkerFloor(floor), "marker-floor-counter")


class MarkerFloor:
    """Counts the tests that passed, by marker (``unit`` is every test without one)."""

    def __init__(self, floor: dict[str, int]) -> None:
        self.floor = floor
        self.ran: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            marked = [marker for marker in MARKERS if marker in report.keywords]
            self.ran.update(marked or ["unit"])

    def short(self) -> list[str]:
        return [
            f"{marker}: {self.ran[marker]} of at least {least} tests passed"
            for marker, least in self.floor.items()
            if self.ran[marker] < least
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.short() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.short():
            terminalreporter.write_line(f"marker floor not reached: {line}", red=True)
