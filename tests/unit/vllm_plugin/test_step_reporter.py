"""Step statistics are sent or dropped, and never waited for."""

import contextlib
import socket
from pathlib import Path

from tidegate.scheduling.contracts import StepStatistics, loads
from tidegate.vllm_plugin.step_reporter import MOST_KEPT, StepReporter


def tell(reporter: StepReporter, step: int) -> None:
    reporter.tell({"version": 1, "step": step, "planned": False, "decodes": [7, 8]})


def received(receiver: socket.socket) -> list[int]:
    """Numbers of the steps that are there."""
    receiver.setblocking(False)
    steps = []
    with contextlib.suppress(BlockingIOError):
        while True:
            steps.append(loads(StepStatistics, receiver.recv(1 << 16)).step)
    return steps


def test_nobody_there_nobody_reading_and_somebody_again(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    reporter = StepReporter(path)
    tell(reporter, 1)
    assert (reporter.sent, reporter.dropped) == (0, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        for step in range(2, 5_002):
            tell(reporter, step)
        assert reporter.dropped > 1_000
        assert reporter.kept <= MOST_KEPT
        assert reporter.sent + reporter.dropped + reporter.kept == 5_001
        first = loads(StepStatistics, receiver.recv(1 << 16))
        assert (first.step, first.planned, first.decodes, first.dropped_total) == (
            2,
            False,
            (7, 8),
            1,
        )
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as successor:
        successor.bind(path)
        tell(reporter, 9_001)
        told = received(successor)
        while reporter.kept:
            tell(reporter, 9_002)
            told += received(successor)
    assert told == sorted(told)
    assert {9_001, 9_002} <= set(told)
    reporter.close()


def test_a_moment_of_business_loses_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    reporter = StepReporter(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        for step in range(1, 201):
            tell(reporter, step)
        told = received(receiver)
        while reporter.kept:
            tell(reporter, 201 + len(told))
            told += received(receiver)
    assert told[:200] == list(range(1, 201))
    assert reporter.dropped == 0
    reporter.close()
