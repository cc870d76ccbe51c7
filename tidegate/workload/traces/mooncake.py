"""Mooncake's FAST'25 traces (kvcache-ai/Mooncake, Apache-2.0).

One JSON object a line: ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``,
one id per 512-token block of the prompt; equal ids are equal blocks, from which prompts with the
recorded sharing of prefixes are made. No tenants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.workload.requests import SharedPrefix
from tidegate.workload.traces.record import Position, TraceRecord, open_trace

BLOCK_TOKENS = 512


def read_mooncake_jsonl(path: Path) -> Iterator[TraceRecord]:
    """The requests of one file."""
    position = Position(path)
    first: float | None = None
    with open_trace(path) as file:
        for line, text in enumerate(file, start=1):
            position.line = line
            if not text.strip():
                continue
            row = _row(text, position)
            seconds = position.seconds(row["timestamp"], "timestamp") / 1000.0
            first = seconds if first is None else first
            yield TraceRecord(
                at_seconds=seconds - first,
                prompt_tokens=position.tokens(row["input_length"], "input_length"),
                output_tokens=position.tokens(row["output_length"], "output_length"),
                prefix=SharedPrefix(_hash_ids(row["hash_ids"], position), BLOCK_TOKENS),
            )
    if first is None:
        raise position.error("no request in the file")


def _row(text: str, position: Position) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise position.error("not a JSON object") from None
    if not isinstance(row, dict):
        raise position.error("not a JSON object")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in row:
            raise position.error(f"{name} is missing")
    return row


def _hash_ids(value: Any, position: Position) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise position.error("hash_ids must be a list of integers")
    return tuple(value)
