"""Samples of the traffic from around the moments when a tier's first tokens became slow.

When :mod:`.latency_baseline` says so, what ended in the minute before and in the minute after, and
what then still runs, becomes a sample: usage records, so lengths, tenants, timings and outcomes,
and no content. ``tidegate load`` and ``tidegate simulate`` replay it (trace format UsageJSONL).

Tenants stand in it by name, or as hashes under a key that is made at the start and kept nowhere:
one tenant is one hash in all samples of a process. The last samples are kept in memory and, where a
folder is set, as files there, the oldest of which go. One sample is taken at a time; a tier that
becomes slow meanwhile is in the traffic that is being sampled.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import orjson

from tidegate.scheduling.contracts import UsageRecord

log = logging.getLogger("tidegate.sidecar")

BEFORE_SECONDS = 60.0
AFTER_SECONDS = 60.0
MAX_ROWS = 50_000
MAX_SAMPLES = 8
_NAME = re.compile(r"traffic-\d{8}T\d{6}Z-[a-z0-9.-]{1,63}-\d+\.jsonl\Z")


class TenantNames(StrEnum):
    """How tenants stand in a sample."""

    NAMED = "named"
    HASHED = "hashed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its name, why it was taken, and its lines."""

    name: str
    tier: str
    at: float
    """Wall clock of the moment at which the tier was found slow."""
    p99_over_baseline: float
    """At that moment."""
    rows: int
    truncated: bool
    """More requests ended than a sample holds."""
    content: bytes


class TrafficProfile:
    """Keeps the last minute at hand, and the samples made of it."""

    def __init__(self, names: TenantNames = TenantNames.HASHED, folder: Path | None = None) -> None:
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.samples_total: dict[str, int] = {}
        """By tier."""
        self._names = names
        self._folder = folder
        self._key = secrets.token_bytes(32)
        self._last: deque[UsageRecord] = deque(maxlen=MAX_ROWS)
        self._tier = ""
        self._began_at: float | None = None
        self._began_wall = 0.0
        self._ratio = 0.0
        self._ended = 0
        """Requests that ended since the beginning of the minute before."""

    def ended(self, record: UsageRecord) -> None:
        """A request has ended."""
        last = self._last
        last.append(record)
        if self._began_at is None:
            oldest = _ended_at(record) - BEFORE_SECONDS
            while last and _ended_at(last[0]) < oldest:
                last.popleft()
        else:
            self._ended += 1

    def begin(self, tier: str, ratio: float, now: float, wall: float) -> None:
        """A tier has become slow: sample the traffic, unless that is being done."""
        if self._began_at is not None:
            return
        self._tier, self._began_at, self._began_wall, self._ratio = tier, now, wall, ratio
        self._ended = len(self._last)
        log.warning(
            "first tokens are slow: the traffic is being sampled",
            extra={"event": "profile_sample", "tier": tier, "p99_over_baseline": round(ratio, 2)},
        )

    def due(self, now: float) -> bool:
        """Whether the sample that is being taken is complete."""
        return self._began_at is not None and now - self._began_at >= AFTER_SECONDS

    def finish(self, running: Iterable[UsageRecord]) -> Sample:
        """The sample, with what still runs; the memory begins anew."""
        rows = sorted([*self._last, *running], key=lambda record: record.arrived_at)
        self.samples_total[self._tier] = number = self.samples_total.get(self._tier, 0) + 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._began_wall))
        sample = Sample(
            name=f"traffic-{stamp}-{self._tier}-{number}.jsonl",
            tier=self._tier,
            at=self._began_wall,
            p99_over_baseline=self._ratio,
            rows=len(rows),
            truncated=self._ended > MAX_ROWS,
            content=b"".join(orjson.dumps(self._shown(row)) + b"\n" for row in rows),
        )
        self._began_at = None
        self.samples.append(sample)
        return sample

    def store(self, sample: Sample) -> None:
        """Write it to the folder, where there is one; blocks. A failure is logged."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f".{sample.name}"
            scratch.write_bytes(sample.content)
            os.replace(scratch, self._folder / sample.name)
            stored = sorted(
                (path for path in self._folder.iterdir() if _NAME.match(path.name)),
                key=lambda path: path.stat().st_mtime,
            )
            for path in stored[:-MAX_SAMPLES]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.error("a traffic sample was not stored: %s", error.strerror)

    def _shown(self, record: UsageRecord) -> UsageRecord:
        if self._names is TenantNames.NAMED or not record.tenant:
            return record
        digest = hmac.new(self._key, record.tenant.encode(), hashlib.sha256).hexdigest()
        return replace(record, tenant=f"tenant-{digest[:12]}")


def _ended_at(record: UsageRecord) -> float:
    return record.arrived_at + record.duration_seconds
