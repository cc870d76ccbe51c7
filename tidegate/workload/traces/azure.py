"""The Azure LLM inference traces of 2023 (AzurePublicDataset, CC-BY 4.0; Splitwise, ISCA 2024).

CSV with a header: ``TIMESTAMP,ContextTokens,GeneratedTokens``, timestamps like
``2023-11-16 18:15:46.6805900`` (100 ns), no tenants.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tidegate.workload.traces.record import Position, TraceRecord, open_trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure_csv(path: Path) -> Iterator[TraceRecord]:
    """The requests of one file."""
    position = Position(path)
    with open_trace(path) as file:
        rows = csv.reader(file, strict=True)
        try:
            yield from _records(rows, position)
        except csv.Error as error:
            position.line = rows.line_num
            raise position.error(f"not CSV: {error}") from None


def _records(rows: Iterator[list[str]], position: Position) -> Iterator[TraceRecord]:
    header = next(rows, [])
    if missing := [name for name in COLUMNS if name not in header]:
        raise position.error(f"the header lacks {missing[0]}; expected {','.join(COLUMNS)}")
    at, context, generated = (header.index(name) for name in COLUMNS)
    first: float | None = None
    for line, row in enumerate(rows, start=2):
        position.line = line
        if len(row) != len(header):
            raise position.error(f"expected {len(header)} fields, got {len(row)}")
        seconds = position.seconds(_epoch_seconds(row[at], position), "TIMESTAMP")
        first = seconds if first is None else first
        yield TraceRecord(
            at_seconds=seconds - first,
            prompt_tokens=_integer(row[context], "ContextTokens", position),
            output_tokens=_integer(row[generated], "GeneratedTokens", position),
        )
    if first is None:
        raise position.error("no request in the file")


def _epoch_seconds(text: str, position: Position) -> float:
    # datetime resolves 1 us and the trace 100 ns, so the fraction is read by itself.
    whole, _, rest = text.partition(".")
    fraction, zone = rest, ""
    for sign in "+-":
        if sign in rest:
            fraction, zone = rest.split(sign, 1)
            zone = sign + zone
    try:
        if fraction and not fraction.isdecimal():
            raise ValueError(fraction)
        moment = datetime.fromisoformat(whole + zone)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except (ValueError, OverflowError):
        raise position.error(f"TIMESTAMP {text!r:.40} is not a time") from None


def _integer(text: str, name: str, position: Position) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise position.error(f"{name} must be an integer, got {text!r:.40}")
    return position.tokens(int(text), name)
