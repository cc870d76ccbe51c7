"""Usage records reach their file whole, once each, or are counted as lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tidegate_sidecar.usage_records import UsageRecords, _Output

from tidegate.scheduling.contracts import RecordKind, UsageRecord, loads


def record(number: int) -> UsageRecord:
    return UsageRecord(
        version=1,
        kind=RecordKind.USAGE,
        id=f"r{number}",
        outcome="completed",
        arrived_at=1.0,
        duration_seconds=0.5,
    )


def ids(path: Path) -> list[str]:
    return [loads(UsageRecord, line).id for line in path.read_bytes().splitlines() if line]


def test_each_record_is_one_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    records = UsageRecords(str(path))
    for number in range(1_200):  # more than two batches
        records.put(record(number))
    records.close()
    assert ids(path) == [f"r{number}" for number in range(1_200)]
    assert (records.written, records.dropped_total) == (1_200, 0)


def test_what_the_queue_cannot_take_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # it reads nothing yet
    records = UsageRecords(str(fifo), max_queued=3_000)
    for number in range(20_000):
        records.put(record(number))
    assert records.dropped > 0
    assert "usage records are lost" in caplog.text
    os.set_blocking(reader, True)
    received = bytearray()
    collecting = threading.Thread(target=_collect, args=(reader, received))
    collecting.start()
    records.close()
    collecting.join(10)
    os.close(reader)
    lines = bytes(received).splitlines()
    assert len({loads(UsageRecord, line).id for line in lines}) == len(lines) == records.written
    assert records.written + records.dropped_total == 20_000


def _collect(reader: int, received: bytearray) -> None:
    while data := os.read(reader, 65_536):
        received += data


def test_a_line_cut_by_a_crash_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"version":1,"kind":"usa')
    records = UsageRecords(str(path))
    records.put(record(1))
    records.close()
    assert path.read_bytes().splitlines()[0] == b'{"version":1,"kind":"usa'
    assert loads(UsageRecord, path.read_bytes().splitlines()[1]).id == "r1"


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    out = _Output(path)
    out.open()
    assert out.write([b"one\n"]) == 1
    path.rename(tmp_path / "usage.1")
    assert out.write([b"two\n", b"three\n"]) == 2
    out.close()
    assert (tmp_path / "usage.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\nthree\n"


def test_a_full_disk_loses_whole_lines_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    out = _Output(Path("/dev/full"))
    out.open()
    assert out.write([b"one\n", b"two\n"]) == 0
    assert out.error == "No space left on device"
    out.close()
    taken = iter([6, OSError(28, "No space left on device")])
    written = bytearray()

    def write(_: int, data: memoryview) -> int:
        size = next(taken, len(data))
        if isinstance(size, OSError):
            raise size
        written.extend(data[:size])
        return size

    read, end = os.pipe()
    cut = _Output(None)
    cut._file = end
    monkeypatch.setattr("tidegate_sidecar.usage_records.os.write", write)
    assert cut.write([b"one\n", b"two\n"]) == 1
    assert cut.write([b"three\n"]) == 1
    monkeypatch.undo()
    os.close(read)
    os.close(end)
    assert bytes(written) == b"one\ntw\nthree\n"


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        UsageRecords(str(tmp_path / "nowhere" / "usage.jsonl"))
