"""Server-sent events of an engine: the bytes pass on, what is read is usage and progress.

Theory of operation: bytes are cut only at event boundaries (a blank line, in any of the three line
ends of the format); the tail of an unfinished event is held back until it is complete, so that a
stream that breaks can be ended with a whole error event. No byte is decoded or rebuilt: what
``feed`` returns, joined, is the input without the one event that only exists because we asked for
usage. Events are parsed as JSON only where their bytes hold a marker (``"usage"``, ``"error"``,
``[DONE]``), which all but the last few do not; the same markers inside generated text are escaped
by JSON or cost one parse.

The Responses API's events are typed and say their usage without being asked: a token is an event
whose type ends in ``.delta``, the last one is ``response.completed`` (``incomplete``, ``failed``).

Invariant: for any way to cut the input, the joined output and the usage are the same.
"""

from __future__ import annotations

import re
from typing import Any, TypeGuard

import orjson

from tidegate.scheduling.request import Usage

_BOUNDARY = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r(?=.))", re.DOTALL)
"""A blank line. A last ``\\r`` may be half of a ``\\r\\n``: it waits for the byte after it."""
MAX_HELD_BYTES = 1 << 20
"""An event larger than this passes on unparsed."""
DELTA = b'.delta"'
"""In each typed event with a token; inside a string the quote would be escaped."""
_LAST_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed"})


class EventStream:
    """Reads one stream. ``hide_usage``: drop the event that holds nothing but usage.

    ``typed``: its events are the Responses API's.
    """

    __slots__ = ("_held", "_hide_usage", "_typed", "done", "error_seen", "events", "usage")

    def __init__(self, *, hide_usage: bool, typed: bool = False) -> None:
        self._hide_usage = hide_usage
        self._typed = typed
        self._held = b""
        self.events = 0
        """Complete events so far, hidden ones and ``[DONE]`` not counted; if typed, tokens."""
        self.usage: Usage | None = None
        self.done = False
        """``[DONE]`` was seen, or the last event of a typed stream."""
        self.error_seen = False
        """The engine reported an error inside the stream."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to pass on."""
        data = self._held + chunk if self._held else chunk
        if data.find(b"\r") >= 0:
            return self._feed_any_line_end(data)
        boundary = data.rfind(b"\n\n")
        end = 0 if boundary < 0 else boundary + 2
        self._held = data[end:]
        if self._held:
            data = data[:end]
            if len(self._held) > MAX_HELD_BYTES:
                return data + self.rest()
        marked = _first_marker(data)
        if marked >= 0:
            return self._feed_marked(data, marked)
        if self.events or data.find(b"data:") >= 0:
            self.events += data.count(DELTA if self._typed else b"\n\n")
        return data

    def finish(self) -> bytes:
        """The stream has ended: the last bytes to pass on.

        What is left of an event that never ended is no event to any client, and is dropped.
        """
        held = self.rest()
        return held if held.endswith(b"\r\r") and self._passes(held) else b""

    def rest(self) -> bytes:
        """Take out what is held back of an unfinished event."""
        held, self._held = self._held, b""
        return held

    def _feed_marked(self, data: bytes, marked: int) -> bytes:
        """Whole events, looked at one by one from the one that holds the first marker."""
        before = data.rfind(b"\n\n", 0, marked)
        start = 0 if before < 0 else before + 2
        self.events += data.count(DELTA if self._typed else b"\n\n", 0, start)
        passed = [data[:start]]
        while start < len(data):
            boundary = data.find(b"\n\n", start)
            end = len(data) if boundary < 0 else boundary + 2  # a third line end begins no event
            event = data[start:end]
            if self._passes(event):
                passed.append(event)
            start = end
        return b"".join(passed)

    def _feed_any_line_end(self, data: bytes) -> bytes:
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
        if _first_marker(event) < 0:
            self.events += event.count(DELTA) if self._typed else 1
            return True
        data = event_data(event)
        if data == b"[DONE]":
            self.done = True
            return True
        members = json_members(data)
        if self._typed:
            self._take_typed(members)
            self.events += event.count(DELTA)
            return True
        if isinstance(members.get("error"), dict) or members.get("object") == "error":
            self.error_seen = True
        usage = usage_of(members)
        if usage is not None:
            self.usage = usage
            if not members.get("choices"):  # no token of an answer, and no step of the engine
                return not self._hide_usage
        self.events += 1
        return True

    def _take_typed(self, members: dict[str, Any]) -> None:
        kind, answer = members.get("type"), members.get("response")
        if kind in _LAST_TYPES and isinstance(answer, dict):
            self.done = True
            self.usage = usage_of(answer)
        if kind in ("error", "response.failed") or isinstance(members.get("error"), dict):
            self.error_seen = True


def last_answer(members: dict[str, Any]) -> dict[str, Any] | None:
    """The whole answer that the last event of a typed stream holds; None: it is not the last."""
    answer = members.get("response")
    if members.get("type") not in ("response.completed", "response.incomplete"):
        return None
    return answer if isinstance(answer, dict) else None


def _first_marker(data: bytes) -> int:
    """Where it begins; negative: there is none."""
    # Three searches for a constant are many times faster than one for a pattern, and `find` is than
    # `in`, which tries its operand as a number first.
    usage, error, done = data.find(b'"usage"'), data.find(b'"error"'), data.find(b"[DONE]")
    if usage < 0 and error < 0 and done < 0:
        return -1
    return min(at for at in (usage, error, done) if at >= 0)


def is_comment(data: bytes) -> bool:
    """Whether it holds comments alone, which are for those on the way and no event to a client."""
    return data.startswith(b":") and all(
        line.startswith(b":") for line in data.splitlines() if line
    )


def split_events(stream: bytes) -> list[bytes]:
    """The events of a whole stream."""
    if b"\r" in stream:
        stream = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return stream.split(b"\n\n")


def event_data(event: bytes) -> bytes:
    """The ``data`` of one event, its lines joined as the format says."""
    event = event.rstrip(b"\r\n")
    if event.startswith(b"data: ") and event.find(b"\n") < 0 and event.find(b"\r") < 0:
        return event[6:]  # one line, as engines write it
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def json_members(data: bytes) -> dict[str, Any]:
    """The members of an event's JSON object; none where it is no such."""
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
    chunks = "prompt_tokens" in usage
    prompt = usage.get("prompt_tokens" if chunks else "input_tokens")
    output = usage.get("completion_tokens" if chunks else "output_tokens")
    if output is None:
        output = 0
    if not (_is_count(prompt) and _is_count(output)):
        return None
    details = usage.get("prompt_tokens_details" if chunks else "input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, output, min(cached, prompt) if _is_count(cached) else None)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0
