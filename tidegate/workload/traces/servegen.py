"""ServeGen's models of single clients (Xiang et al. 2025; alibaba/ServeGen @ f891d118, Apache-2.0).

A folder is one service. Client N of it has ``chunk-N-trace.csv``, a row for each 600 s from 0 on:
second, requests per second, coefficient of variation of the gaps, their distribution (Gamma or
Weibull; none where nothing was sent) and its two fitted parameters, which are not used; and
``chunk-N-dataset.json``: by the second at which each 21,600 s begin, histograms of the lengths of
prompts and outputs, {tokens: share} as text. No requests are recorded, so this is no trace: what a
client sends is drawn (``tidegate.workload.clients.servegen``).
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.workload.traces.record import Position, TraceError, open_trace

RATE_WINDOW_SECONDS = 600
LENGTH_WINDOW_SECONDS = 21_600
_COLUMNS = 6
_DISTRIBUTIONS = ("Gamma", "Weibull", "")


@dataclass(frozen=True, slots=True)
class RateWindow:
    """600 seconds of one client."""

    per_second: float
    variation: float
    """Standard deviation of the gaps over their mean."""
    weibull: bool
    """Else gamma."""


@dataclass(frozen=True, slots=True)
class ClientLengths:
    """Shares of the lengths in tokens of one client's prompts and outputs; neither is empty."""

    prompt: dict[int, float]
    output: dict[int, float]


def client_numbers(folder: Path) -> list[int]:
    """The clients that ``folder`` has rates of, rising; none where there is no such folder."""
    numbers = []
    for file in folder.glob("chunk-*-trace.csv"):
        match = re.fullmatch(r"chunk-([0-9]{1,9})-trace\.csv", file.name)
        if match is None:
            raise TraceError(f"{file}: expected chunk-NUMBER-trace.csv")
        numbers.append(int(match[1]))
    return sorted(numbers)


def read_rates(folder: Path, number: int, start_seconds: int) -> list[RateWindow]:
    """A client's windows from the one of ``start_seconds`` on, at least that one."""
    position = Position(folder / f"chunk-{number}-trace.csv")
    with open_trace(position.path) as file:
        rows = csv.reader(file, strict=True)
        try:
            windows = list(_windows(rows, position))
        except csv.Error as error:
            position.line = rows.line_num
            raise position.error(f"not CSV: {error}") from None
    first = start_seconds // RATE_WINDOW_SECONDS
    if first >= len(windows):
        raise position.error(
            f"ends after {len(windows) * RATE_WINDOW_SECONDS} s; "
            f"there is nothing from {start_seconds} s on"
        )
    return windows[first:]


def read_lengths(folder: Path, number: int, start_seconds: int) -> ClientLengths | None:
    """A client's lengths around ``start_seconds``; None: it is silent then, or has no file."""
    position = Position(folder / f"chunk-{number}-dataset.json")
    if not position.path.exists():
        return None
    with open_trace(position.path) as file:
        data = _object(file.read(), position)
    window = str(start_seconds // LENGTH_WINDOW_SECONDS * LENGTH_WINDOW_SECONDS)
    if window not in data:
        return None
    lengths = data[window]
    if not isinstance(lengths, dict):
        raise position.error(f"{window} must be an object with input_tokens and output_tokens")
    prompt, output = (
        _histogram(lengths.get(name), f"{window}.{name}", position)
        for name in ("input_tokens", "output_tokens")
    )
    if not prompt:
        return None
    if not output:
        raise position.error(f"{window}.output_tokens is empty and input_tokens is not")
    return ClientLengths(prompt, output)


def _windows(rows: Iterator[list[str]], position: Position) -> Iterator[RateWindow]:
    for index, row in enumerate(rows):
        position.line = index + 1
        if len(row) != _COLUMNS:
            raise position.error(f"expected {_COLUMNS} fields, got {len(row)}")
        second = _number(row[0], "the second", position)
        if second != index * RATE_WINDOW_SECONDS:
            raise position.error(f"expected second {index * RATE_WINDOW_SECONDS}, got {second:g}")
        if row[3] not in _DISTRIBUTIONS:
            raise position.error(f"the distribution must be Gamma or Weibull, got {row[3]!r:.40}")
        yield RateWindow(
            per_second=_number(row[1], "the rate", position),
            variation=_number(row[2], "the variation", position),
            weibull=row[3] == "Weibull",
        )


def _number(text: str, name: str, position: Position) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise position.error(f"{name} must be a number of at least 0, got {text!r:.40}")
    return value


def _object(text: str, position: Position) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        position.line = error.lineno
        raise position.error(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise position.error("not JSON that can be read") from None
    if not isinstance(data, dict):
        raise position.error("not an object of histograms by second")
    return data


def _histogram(value: Any, name: str, position: Position) -> dict[int, float]:
    try:
        shares = ast.literal_eval(value) if isinstance(value, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        shares = None
    if not isinstance(shares, dict):
        raise position.error(f"{name} must be a histogram {{tokens: share}} as text")
    for length, share in shares.items():
        position.tokens(length, f"{name}: a length")
        if type(share) not in (int, float) or not 0 <= share < math.inf:
            raise position.error(f"{name}: a share must be at least 0, got {share!r:.40}")
    if shares and sum(shares.values()) <= 0:
        raise position.error(f"{name}: all shares are 0")
    return shares
