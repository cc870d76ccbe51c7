"""What the engine did with each request, as JSON lines: lengths, steps and times, no content.

Events of a sequence, in this order, each at most once: ``arrived``, ``scheduled`` (its first
tokens were computed in that step), ``first_token``, and exactly one of ``finished`` and
``aborted``. With ``steps``, each step writes one line too. A line is written after the step that
it belongs to has ended; ``time`` is Unix time in seconds, durations are in seconds. What
``x_request_id`` and ``xargs`` (``vllm_xargs``) say is what the caller sent.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import orjson

from tidegate.simulator.engine_model import StepResult
from tidegate.simulator.fake_engine.sequence import Sequence


def log_file(target: Path) -> Path:
    """The file for ``target``: itself, or in a folder one for this host and process."""
    if target.is_dir():
        return target / f"engine-{socket.gethostname()}-{os.getpid()}.jsonl"
    return target


def _open(target: Path) -> int:
    # Opened by name, a standard output that is a socket or another user's file would be refused.
    if target == Path("/dev/stdout"):
        return os.dup(1)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(log_file(target), flags, 0o644)


class RequestLog:
    """Collects lines and writes them once a step. Without a path it does nothing."""

    def __init__(self, path: Path | None, *, steps: bool = False) -> None:
        self.enabled = path is not None
        self.steps = steps and self.enabled
        self._lines: list[bytes] = []
        # The model's clock is monotonic; readers of several logs need one they share.
        self._unix_offset = time.time() - time.monotonic()
        self._fd = -1 if path is None else _open(path)

    def _write(self, event: str, at: float, step: int, fields: dict[str, Any]) -> None:
        line = {"event": event, "time": round(at + self._unix_offset, 6), "step": step, **fields}
        self._lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def arrived(self, sequence: Sequence) -> None:
        """The sequence entered the engine's queue."""
        if not self.enabled:
            return
        request = sequence.request
        self._write(
            "arrived",
            request.arrived_at,
            request.arrived_step,
            {
                **_identity(sequence),
                "prompt_tokens": request.prompt_tokens,
                "output_tokens_target": request.output_tokens_target,
                "priority": request.priority,
                "xargs": sequence.xargs,
            },
        )

    def scheduled(self, sequence: Sequence, step: StepResult, order: int) -> None:
        """The sequence was in a step for the first time; ``order`` counts these since start."""
        request = sequence.request
        self._write(
            "scheduled",
            step.started_at,
            step.number,
            {
                **_identity(sequence),
                "order": order,
                "wait_seconds": round(step.started_at - request.arrived_at, 6),
                "wait_steps": step.number - request.arrived_step,
                "cached_tokens": request.cached_tokens,
            },
        )

    def first_token(self, sequence: Sequence, step: StepResult) -> None:
        """The sequence's first token left the engine."""
        ttft = step.ends_at - sequence.request.arrived_at
        self._write(
            "first_token",
            step.ends_at,
            step.number,
            {**_identity(sequence), "ttft_seconds": round(ttft, 6)},
        )

    def ended(self, sequence: Sequence, at: float, step: int, reason: str) -> None:
        """The sequence finished (stop, length) or was aborted (disconnect, shutdown)."""
        if not self.enabled:
            return
        request = sequence.request
        started = request.first_scheduled_at
        self._write(
            "finished" if reason in ("stop", "length") else "aborted",
            at,
            step,
            {
                **_identity(sequence),
                "reason": reason,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "computed_tokens": request.computed_tokens,
                "preemptions": request.preemptions,
                "recomputed_tokens": request.recomputed_tokens,
                "priority": request.priority,
                "wait_seconds": None if started is None else round(started - request.arrived_at, 6),
                "served_seconds": 0.0 if started is None else round(at - started, 6),
            },
        )

    def step(self, step: StepResult, idle_seconds: float) -> None:
        """One step; ``idle_seconds`` is how long the engine had no work before it."""
        if not self.steps:
            return
        self._write(
            "step",
            step.started_at,
            step.number,
            {
                "seconds": round(step.duration_seconds, 6),
                "idle_seconds": round(idle_seconds, 6),
                "running": step.running,
                "waiting": step.waiting,
                "free_seats": step.free_seats,
                "free_blocks": step.free_blocks,
                "prefill_tokens": step.prefill_tokens,
                "decode_tokens": step.decode_tokens,
                "preempted": len(step.preempted),
            },
        )

    def flush(self) -> None:
        """Write what was collected."""
        if not self._lines:
            return
        data = b"".join(self._lines)
        self._lines.clear()
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Flush and close; later events are lost."""
        self.flush()
        self.enabled = self.steps = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(sequence: Sequence) -> dict[str, Any]:
    return {
        "request": sequence.request.request_id,
        "x_request_id": sequence.x_request_id,
        "choice": sequence.choice,
    }
