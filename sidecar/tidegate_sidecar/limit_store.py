"""The rate limits' counters on disk, so that a limit of a month survives every restart.

Theory of operation. While counters change they are written every :data:`SAVE_SECONDS`, and once
more at the end; read once, before the first request is taken. After a kill at any moment the file
is at most ``SAVE_SECONDS`` and one write old, and whole: it is written beside the old one and
renamed over it. The counters are read on the event loop, a few at a time, each at one moment; the
disk is waited for by a thread.

The file: a line with its version and pool, then lines of JSON lists of
:class:`~tidegate.scheduling.limit_state.WindowState`. One that cannot be read counts for nothing
and is told; so is one of another pool.

Bound: what a window lost by a kill is what was taken of it since the last write.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from tidegate.scheduling.contracts import LimitWindow
from tidegate.scheduling.limit_state import SliceState, WindowState, restore_state, window_state
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.rate_limit import RateLimiter

log = logging.getLogger("tidegate.sidecar")

SAVE_SECONDS = 1.0
FILE = "limits.jsonl"
VERSION = 1
_BATCH = 64
"""Windows read without a pause of the loop; of an hour's each has up to 61 numbers."""


class LimitStore:
    """Of one sidecar. ``changes``: a number that rises with every change of a counter."""

    def __init__(self, folder: Path, changes: Callable[[], int]) -> None:
        self._path = folder / FILE
        self._changes = changes
        self._saved = -1
        self._limiter: RateLimiter | None = None
        self._pool = ""
        self.failures = 0
        """Writes that failed."""

    def attach(self, limiter: RateLimiter, pool: str, clocks: Clocks) -> None:
        """Count on from the file; before anything was reserved. Blocks for one read."""
        self._limiter, self._pool = limiter, pool
        try:
            states = read_states(self._path.read_bytes(), pool)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("rate limits begin anew: %s: %s", self._path, error)
            return
        restore_state(limiter, states, clocks)

    async def save(self) -> None:
        """Write what has changed since the last time."""
        limiter, changes = self._limiter, self._changes()
        if limiter is None or changes == self._saved:
            return
        now = asyncio.get_running_loop().time
        lines = [orjson.dumps({"version": VERSION, "pool": self._pool})]
        keys = list(limiter.windows)
        for start in range(0, len(keys), _BATCH):
            clocks = Clocks(now(), time.time())
            batch = [
                window_state(key, window, clocks)
                for key in keys[start : start + _BATCH]
                if (window := limiter.windows.get(key)) is not None
            ]
            lines.append(orjson.dumps(batch))
            await asyncio.sleep(0)
        try:
            await asyncio.to_thread(_write, self._path, b"\n".join(lines))
        except OSError as error:
            if not self.failures:
                log.warning("the rate limits' counters are not saved: %s", error)
            self.failures += 1
            return
        self._saved = changes

    async def follow(self) -> None:
        """Save again and again."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self.save()
            except Exception:
                log.exception("saving the rate limits' counters failed")


def read_states(content: bytes, pool: str) -> list[WindowState]:
    """The counters of a file; ValueError where it is none, or another pool's."""
    head, *lines = content.split(b"\n")
    header = orjson.loads(head)
    if not isinstance(header, dict) or header.get("version") != VERSION:
        raise ValueError("not a file of this version")
    if header.get("pool") != pool:
        raise ValueError("it belongs to another pool")
    try:
        return [_state(member) for line in lines for member in orjson.loads(line)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a counter: {error}") from None


def _state(member: dict[str, Any]) -> WindowState:
    slices = tuple(
        SliceState(float(part["begin_utc"]), int(part["requests"]), int(part["tokens"]))
        for part in member["slices"]
    )
    return WindowState(
        str(member["tenant"]), str(member["limit"]), LimitWindow(member["per"]), slices
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
