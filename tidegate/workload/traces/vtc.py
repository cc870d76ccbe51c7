"""Result files of the VTC paper's artifact (Ying1123/VTC-artifact, fair_bench; Apache-2.0).

A file is one JSON object (on one line): ``config`` and ``result.responses``, a list of
{``adapter_dir`` = the tenant, ``req_time`` s, ``prompt_len``, ``output_len``, and the latencies
that the recorded scheduler gave}. The requests, aborted ones too, are the workload; the recorded
outcomes are ignored here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.workload.traces.record import Position, TraceRecord, open_trace


def read_vtc_artifact(path: Path) -> Iterator[TraceRecord]:
    """The requests of one file, by time; read whole, as the format asks."""
    position = Position(path)
    with open_trace(path) as file:
        responses = _responses(file.read(), position)
    first: float | None = None
    for index in sorted(range(len(responses)), key=lambda i: _sort_key(responses[i])):
        row, where = responses[index], f"responses[{index}]"
        if not isinstance(row, dict):
            raise position.error(f"{where} is not an object")
        seconds = position.seconds(row.get("req_time"), f"{where}.req_time")
        first = seconds if first is None else first
        tenant = row.get("adapter_dir")
        if not isinstance(tenant, str) or not tenant:
            raise position.error(f"{where}.adapter_dir must be a name")
        yield TraceRecord(
            at_seconds=seconds - first,
            prompt_tokens=position.tokens(row.get("prompt_len"), f"{where}.prompt_len"),
            output_tokens=position.tokens(row.get("output_len"), f"{where}.output_len"),
            tenant=tenant,
        )


def _responses(text: str, position: Position) -> list[Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        position.line = error.lineno
        raise position.error(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:  # an integer of thousands of digits
        raise position.error("not JSON that can be read: a number is too long") from None
    except RecursionError:
        raise position.error("not a result file: nested too deeply") from None
    result = data.get("result") if isinstance(data, dict) else None
    responses = result.get("responses") if isinstance(result, dict) else None
    if not isinstance(responses, list) or not responses:
        raise position.error("not a result file: result.responses is missing or empty")
    return responses


def _sort_key(row: Any) -> float:
    """Rows without a usable time come first, where reading them is an error."""
    time = row.get("req_time") if isinstance(row, dict) else None
    return time if isinstance(time, int | float) else float("-inf")
