"""Usage records on their way out: a line of JSON each, to standard output or a file.

Theory of operation: the event loop puts records into a bounded queue and never waits; a thread of
its own encodes and writes them, many at once, each batch with whole lines only. What the queue
cannot take, or the disk refuses, is counted as dropped, told in the log, and shown as
``tidegate_usage_records_dropped_total``: nothing is lost silently. ``close`` writes what is left,
for some seconds at most, and counts the rest.

A file is appended to, and begun anew by its name where it was moved away (log rotation). A line
that an earlier process left cut is ended before the first of ours, so that each line is one record
or can be told apart.

Invariant: every record put is counted once, as written or as dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import orjson

from tidegate.scheduling.contracts import UsageRecord

log = logging.getLogger("tidegate.sidecar")

STDOUT = "stdout"
MAX_QUEUED = 20_000
_BATCH = 500
_PAUSE_SECONDS = 0.2
"""Between two batches of a quiet sidecar: records arrive together, one write each would not."""
_CLOSE_SECONDS = 10.0


class UsageRecords:
    """The queue and the thread behind it; ``target`` is :data:`STDOUT` or a file's path."""

    def __init__(self, target: str, max_queued: int = MAX_QUEUED) -> None:
        self._out = _Output(None if target == STDOUT else Path(target))
        self._out.open()
        self._queue: deque[UsageRecord] = deque()
        self._max_queued = max_queued
        self._closing = threading.Event()
        self._said_at = -float("inf")
        self.written = 0
        self.dropped = 0
        """Refused by the queue."""
        self.failed = 0
        """Refused by the disk; counted by the thread alone."""
        self._thread = threading.Thread(target=self._run, name="usage-records", daemon=True)
        self._thread.start()

    @property
    def dropped_total(self) -> int:
        """Records that were lost."""
        return self.dropped + self.failed

    def put(self, record: UsageRecord) -> None:
        """Have it written; never waits."""
        if len(self._queue) >= self._max_queued or self._closing.is_set():
            self.dropped += 1
            self._say("the queue is full")
            return
        self._queue.append(record)

    def close(self) -> None:
        """Write what is left; blocks for some seconds at most. What was not written is dropped."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)
        left = 0
        with contextlib.suppress(IndexError):
            while True:
                self._queue.popleft()
                left += 1
        if left:
            self.dropped += left
            log.error("usage records: %d were not written in time and are lost", left)
        if not self._thread.is_alive():
            self._out.close()

    def _run(self) -> None:
        while True:
            if batch := self._take():
                self._write(batch)
            elif self._closing.is_set():
                return
            else:
                self._closing.wait(_PAUSE_SECONDS)

    def _take(self) -> list[UsageRecord]:
        batch: list[UsageRecord] = []
        with contextlib.suppress(IndexError):  # also where a close gave up on the rest meanwhile
            while len(batch) < _BATCH:
                batch.append(self._queue.popleft())
        return batch

    def _write(self, batch: Sequence[UsageRecord]) -> None:
        lines = [orjson.dumps(record) + b"\n" for record in batch]
        done = self._out.write(lines)
        self.written += done
        if done < len(lines):
            self.failed += len(lines) - done
            self._say(self._out.error)

    def _say(self, why: str) -> None:
        """In the log, once a minute at most."""
        now = time.monotonic()
        if now - self._said_at >= 60.0:
            self._said_at = now
            log.error("usage records are lost, %d by now: %s", self.dropped_total, why)


class _Output:
    """Where lines go."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = -1
        self._inode = -1
        self._cut = False
        """The last write ended within a line."""
        self.error = ""

    def open(self) -> None:
        """Raises OSError where the file cannot be written."""
        if self._path is None:
            self._file = 1
            return
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        status = os.fstat(self._file)
        self._inode = status.st_ino
        if status.st_size:
            try:
                self._cut = os.pread(self._file, 1, status.st_size - 1) != b"\n"
            except OSError:
                self._cut = False  # a pipe or a device has no end to look at

    def write(self, lines: Sequence[bytes]) -> int:
        """How many whole lines were written; ``error`` says why not all."""
        try:
            self._follow()
            data = (b"\n" if self._cut else b"") + b"".join(lines)
            sent = self._send(data)
        except OSError as error:
            self.error = error.strerror or type(error).__name__
            return 0
        if sent == len(data):
            self._cut = False
            return len(lines)
        left = sent - self._cut
        done = 0
        for line in lines:
            if left < len(line):
                break
            left -= len(line)
            done += 1
        self._cut = left > 0 or (sent == 0 and self._cut)
        return done

    def _send(self, data: bytes) -> int:
        """How many bytes were written."""
        view, sent = memoryview(data), 0
        while sent < len(data):
            try:
                sent += os.write(self._file, view[sent:])
            except OSError as error:
                self.error = error.strerror or type(error).__name__
                break
        return sent

    def _follow(self) -> None:
        """Open the file anew where it was moved away."""
        if self._path is None:
            return
        try:
            if os.stat(self._path).st_ino == self._inode:
                return
        except FileNotFoundError:
            pass
        self.close()
        self._cut = False
        self.open()

    def close(self) -> None:
        if self._path is not None and self._file >= 0:
            os.close(self._file)
            self._file = -1
