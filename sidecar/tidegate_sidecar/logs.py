"""The sidecar's own log: lines of text, or of JSON for collectors.

Neither keys nor content: whoever logs names what happened by id, tenant and outcome. What others
log through the same handlers is held to that too: of an exception only its kind and where it arose
are shown, never its message, which may quote what it stumbled over.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from enum import StrEnum
from types import TracebackType
from typing import Any, TextIO

import orjson

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record has; the others are fields of their own."""
ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


def configure(form: LogFormat, stream: TextIO | None = None) -> None:
    """Send all logs of the process to ``stream`` (standard error), from INFO on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """What a loop reports of tasks and callbacks that failed: the kind alone, no values."""
    log = logging.getLogger("tidegate.loop")

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error(
            "an error on the event loop",
            exc_info=(type(error), error, error.__traceback__) if error is not None else None,
        )

    loop.set_exception_handler(report)


def _places(info: ExceptionInfo) -> str:
    """The kind of an exception and of its causes, and the lines of code they passed."""
    error = info[1]
    if error is None:
        return ""
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False)
    parts: list[str] = []
    seen: traceback.TracebackException | None = whole
    while seen is not None:
        kind = seen.exc_type.__name__ if seen.exc_type is not None else "error"
        frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in seen.stack]
        parts.append("\n  ".join([kind, *frames]))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\nwhile handling, or because of, ".join(parts)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatException(self, ei: Any) -> str:
        return _places(ei)


class JsonLines(logging.Formatter):
    """A line of JSON for each record; its ``extra`` members stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "kind": "log",
            "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}"
            f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["error"] = _places(record.exc_info)
        return orjson.dumps(line, default=str).decode()
