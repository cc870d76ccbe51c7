"""Server-sent events of an engine: the bytes pass on, what is read is usage and progress.

Theory of operation: bytes are cut only at event boundaries (a blank line, in any of the three line
ends of the format); the tail of an unfinished event is held back until it is complete, so that a
stream that breaks can be ended with a whole error event. No byte is decoded or rebuilt: what
``feed`` returns, joined, is the input without the one event that only exists because we asked for
usage. Events are parsed as JSON only where their bytes hold a marker (``"usage"``, ``"error"``,
``[DONE]``), which all but the last few do not; the same markers inside generated text are escaped
by JSON or cost one parse.

Invariant: for any way to cut the input, the joined output and the usage are the same.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from tidegate.scheduling.request import Usage

_BOUNDARY = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
MAX_HELD_BYTES = 1 << 20
"""An event larger than this passes on unparsed."""


class EventStream:
    """Reads one stream. ``hide_usage``: drop the event that holds nothing but usage."""

    __slots__ = ("_held", "_hide_usage", "done", "error_seen", "events", "usage")

    def __init__(self, *, hide_usage: bool) -> None:
        self._hide_usage = hide_usage
        self._held = b""
        self.events = 0
        """Complete events so far, hidden ones and ``[DONE]`` not counted."""
        self.usage: Usage | None = None
        self.done = False
        """``[DONE]`` was seen."""
        self.error_seen = False
        """The engine reported an error inside the stream."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to pass on."""
        if (
            not self._held
            and chunk.endswith(b"\n\n")
            and b'"usage"' not in chunk
            and b"[DONE]" not in chunk
            and b'"error"' not in chunk
            and b"\r" not in chunk
        ):
            self.events += chunk.count(b"\n\n")
            return chunk
        return self._feed_slowly(self._held + chunk)

    def rest(self) -> bytes:
        """What is held back of an event that never ended; it is no event to any client."""
        held, self._held = self._held, b""
        return held

    def _feed_slowly(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        start = 0
        for match in _BOUNDARY.finditer(data):
            event = data[start : match.end()]
            start = match.end()
            if self._passes(event):
                passed.append(event)
        self._held = data[start:]
        if len(self._held) > MAX_HELD_BYTES:
            passed.append(self.rest())
        return b"".join(passed)

    def _passes(self, event: bytes) -> bool:
        if b'"usage"' not in event and b"[DONE]" not in event and b'"error"' not in event:
            self.events += 1
            return True
        data = event_data(event)
        if data == b"[DONE]":
            self.done = True
            return True
        members = _members(data)
        if isinstance(members.get("error"), dict) or members.get("object") == "error":
            self.error_seen = True
        usage = usage_of(members)
        if usage is not None:
            self.usage = usage
            if self._hide_usage and not members.get("choices"):
                return False
        self.events += 1
        return True


def split_events(data: bytes) -> tuple[list[bytes], bytes]:
    """The complete events of ``data`` and its unfinished rest."""
    events = []
    start = 0
    for match in _BOUNDARY.finditer(data):
        events.append(data[start : match.end()])
        start = match.end()
    return events, data[start:]


def event_data(event: bytes) -> bytes:
    """The ``data`` of one event, its lines joined as the format says."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def _members(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def usage_of(answer: dict[str, Any]) -> Usage | None:
    """The usage that an answer or event reports, if it does so in whole, non-negative numbers."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens")
    output = usage.get("completion_tokens")
    if output is None:
        output = 0
    if type(prompt) is not int or type(output) is not int or prompt < 0 or output < 0:
        return None
    return Usage(prompt_tokens=prompt, output_tokens=output)
