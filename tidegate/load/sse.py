"""Server-sent events from bytes cut anywhere, and what the generator reads from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from tidegate.load.errors import LoadError

MAX_LINE_BYTES = 16 * 1024 * 1024
_TEXT_MEMBERS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")


class EventParser:
    """Yields the data of each event; lines end with LF or CRLF, as OpenAI's servers send them."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of the events that this chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise LoadError("the server sent an endless line in a stream")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if not line:
                if self._data:
                    yield b"\n".join(self._data)
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))


_MARKERS = re.compile(rb'"usage": ?\{|"error": ?[^n]|"finish_reason": ?"')


class AnswerReader:
    """What one stream has shown so far.

    A generator that parses each of a hundred thousand events a second measures itself, so after
    the first output only events that can hold usage, an error or the end are parsed, and the events
    between count as one token each until the usage replaces the count.
    """

    def __init__(self) -> None:
        self.done = False
        self.error: str | None = None
        """Code of an error event."""
        self.usage: tuple[int, int] | None = None
        """Prompt and output tokens, as the server counted them."""
        self.token_events = 0
        """Events that carried output: the lower bound of tokens where no usage came."""

    def read(self, data: bytes) -> bool:
        """Take one event; whether it carried output. Malformed events are errors of the stream."""
        if data == b"[DONE]":
            self.done = True
            return False
        if self.token_events and not _MARKERS.search(data):
            self.token_events += 1
            return True
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            self.error = self.error or "malformed_event"
            return False
        if (error := event.get("error")) is not None:
            self.error = self.error or error_code(error) or "error_event"
        self.usage = usage_of(event) or self.usage
        if _carries_output(event.get("choices")):
            self.token_events += 1
            return True
        return False


def usage_of(answer: dict[str, Any]) -> tuple[int, int] | None:
    """Prompt and output tokens from an answer's ``usage``; None where it has none."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    return (prompt, output) if isinstance(prompt, int) and isinstance(output, int) else None


def error_code(error: Any) -> str | None:
    """The machine-readable name in an OpenAI-shaped error."""
    if not isinstance(error, dict):
        return None
    for member in ("code", "type"):
        value = error.get(member)
        if isinstance(value, str) and value:
            return value[:64]
    return None


def _carries_output(choices: Any) -> bool:
    if not isinstance(choices, list):
        return False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if choice.get("text") or (
            isinstance(delta, dict) and any(delta.get(member) for member in _TEXT_MEMBERS)
        ):
            return True
    return False
