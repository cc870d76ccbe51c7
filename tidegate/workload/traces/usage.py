"""A sidecar's usage records as a trace: its charge-back file, or a sample of slow traffic.

One JSON object a line (contract: usage record), in the order of the ends; requests are replayed at
their arrivals. Of a request that was not served what it would have produced is not known: it gets
the mean output of its tenant's requests that were (else of all), and at most what it asked for.
Requests that ended before they were measured (a wrong key, a broken body) are not replayed, nor are
the lines of the sidecar's log, where both went to one stream.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from tidegate.scheduling.contracts import ContractError, RecordKind, UsageRecord, decode
from tidegate.workload.traces.record import Position, TraceRecord, open_trace


def read_usage_jsonl(path: Path) -> Iterator[TraceRecord]:
    """The requests of one file, by arrival; read whole, as its order asks."""
    position = Position(path)
    records = sorted(_records(position), key=lambda record: record.arrived_at)
    if not records:
        raise position.error("no request in the file")
    outputs = _Outputs(records)
    for record in records:
        served = record.prompt_tokens > 0
        yield TraceRecord(
            at_seconds=record.arrived_at - records[0].arrived_at,
            prompt_tokens=position.tokens(
                record.prompt_tokens if served else record.estimated_prompt_tokens, "prompt_tokens"
            ),
            output_tokens=position.tokens(
                record.output_tokens if served else outputs.expected(record), "output_tokens"
            ),
            tenant=record.tenant or None,
        )


def _records(position: Position) -> Iterator[UsageRecord]:
    with open_trace(position.path) as file:
        for line, text in enumerate(file, start=1):
            position.line = line
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                raise position.error("not a JSON object") from None
            if isinstance(row, dict) and row.get("kind") not in (None, RecordKind.USAGE):
                continue
            try:
                record = decode(UsageRecord, row, "record")
            except ContractError as error:
                raise position.error(str(error)) from None
            if record.prompt_tokens or record.estimated_prompt_tokens:
                yield record


class _Outputs:
    """Mean outputs of served requests, by tenant and of all."""

    def __init__(self, records: Sequence[UsageRecord]) -> None:
        served: dict[str, list[int]] = defaultdict(list)
        for record in records:
            if record.prompt_tokens and record.max_output_tokens:
                served[record.tenant].append(record.output_tokens)
        self._means = {tenant: fmean(outputs) for tenant, outputs in served.items()}
        every = [output for outputs in served.values() for output in outputs]
        self._mean = fmean(every) if every else 1.0

    def expected(self, record: UsageRecord) -> int:
        """What a request that was not served would have produced."""
        mean = self._means.get(record.tenant, self._mean)
        return min(max(round(mean), 1), record.max_output_tokens)
