"""What all trace formats come down to, and how their errors read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tidegate.workload.requests import SharedPrefix

TRACES_ENVIRONMENT = "TIDEGATE_TRACES"
"""The variable that names the folder of traces."""

MAX_TOKENS = 10_000_000
"""A length above it is taken for a damaged file."""

_MAX_SECONDS = 1e15
"""Any epoch in milliseconds is below it."""


class TraceError(ValueError):
    """A trace file that can't be read; the message begins with ``file:line``."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One recorded request."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int
    tenant: str | None = None
    prefix: SharedPrefix | None = None


@dataclass(slots=True)
class Position:
    """Where a reader is, for its error messages; checks what it reads there."""

    path: Path
    line: int = 1
    _last_seconds: float = -math.inf

    def error(self, message: str) -> TraceError:
        return TraceError(f"{self.path}:{self.line}: {message}")

    def tokens(self, value: Any, name: str) -> int:
        """A token count: an integer of at least 0."""
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            raise self.error(f"{name} must be an integer from 0 to {MAX_TOKENS}, got {value!r:.40}")
        return value

    def seconds(self, value: Any, name: str) -> float:
        """A time that does not go back."""
        if type(value) not in (int, float) or not abs(value) <= _MAX_SECONDS:
            raise self.error(f"{name} must be a number, got {value!r:.40}")
        if value < self._last_seconds:
            raise self.error(f"{name} goes back; a trace must be in time order")
        self._last_seconds = float(value)
        return float(value)


@contextmanager
def open_trace(path: Path) -> Iterator[TextIO]:
    """The file as text; a missing or binary one is a :class:`TraceError`."""
    if "\0" in str(path):
        raise TraceError(f"{path!s:.80}: no file has such a name")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8 text") from None
