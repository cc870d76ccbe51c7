"""Readers of public trace formats: each yields records in time order, read as they are needed.

A record's time is seconds from the first record of its file. What does not fit the format is a
:class:`TraceError` that names file and line; nothing is skipped or guessed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.scheduling.contracts import TraceFormat
from tidegate.workload.traces.azure import read_azure_csv
from tidegate.workload.traces.mooncake import read_mooncake_jsonl
from tidegate.workload.traces.record import TraceError, TraceRecord
from tidegate.workload.traces.usage import read_usage_jsonl
from tidegate.workload.traces.vtc import read_vtc_artifact

READERS: dict[TraceFormat, Callable[[Path], Iterator[TraceRecord]]] = {
    TraceFormat.AZURE_CSV: read_azure_csv,
    TraceFormat.MOONCAKE_JSONL: read_mooncake_jsonl,
    TraceFormat.USAGE_JSONL: read_usage_jsonl,
    TraceFormat.VTC_ARTIFACT: read_vtc_artifact,
}

__all__ = [
    "READERS",
    "TraceError",
    "TraceRecord",
    "read_azure_csv",
    "read_mooncake_jsonl",
    "read_usage_jsonl",
    "read_vtc_artifact",
]
