"""Step statistics are sent or dropped, and never waited for."""

import socket
from pathlib import Path

from tidegate.scheduling.contracts import StepStatistics, loads
from tidegate.vllm_plugin.step_reporter import StepReporter


def tell(reporter: StepReporter, step: int) -> None:
    reporter.tell({"version": 1, "step": step, "planned": False, "decodes": [7, 8]})


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
        assert reporter.sent + reporter.dropped == 5_001
        first = loads(StepStatistics, receiver.recv(1 << 16))
        assert (first.step, first.planned, first.decodes, first.dropped_total) == (2, False, (7, 8), 1)
        tell(reporter, 9_000)
        assert reporter.sent + reporter.dropped == 5_002
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as successor:
        successor.bind(path)
        tell(reporter, 9_001)
        successor.settimeout(5)
        last = loads(StepStatistics, successor.recv(1 << 16))
    assert last.step == 9_001
    assert last.dropped_total == reporter.dropped
    reporter.close()
