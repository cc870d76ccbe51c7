"""Answers of the Responses API from their streams: the last event holds the whole answer.

The engine would have given the same without streaming, so nothing is put together here but the
bytes. Also the base of every joiner: what a stream tells while it is collected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import orjson

from tidegate.scheduling.request import Usage
from tidegate_sidecar.sse import (
    DELTA,
    event_data,
    json_members,
    last_answer,
    split_events,
    usage_of,
)

_LAST_EVENTS = (b'"type":"response.completed"', b'"type":"response.incomplete"')


class JoinError(Exception):
    """The stream is not a whole one, or the engine reported an error in it."""


class StreamJoiner(ABC):
    """Collects a stream's bytes while it runs, and makes one answer of them at its end.

    What must be known before, the number of events, is counted in the bytes; parsing waits for
    the end, where it is one pass.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.events = 0
        self.usage: Usage | None = None
        self.size_bytes = 0
        self.done = False
        """What came last looks like the end of the stream."""

    def feed(self, chunk: bytes) -> None:
        """Take in bytes of the stream."""
        self._pieces.append(chunk)
        self.size_bytes += len(chunk)
        self._look(chunk)

    @abstractmethod
    def answer(self) -> bytes:
        """The joined body, as JSON; :class:`JoinError` when the stream was not a whole one."""

    @abstractmethod
    def _look(self, chunk: bytes) -> None:
        """Count events, see an end."""

    def _events(self) -> list[bytes]:
        return split_events(b"".join(self._pieces))


class ResponseJoiner(StreamJoiner):
    """Of the Responses API."""

    def answer(self) -> bytes:
        """The answer in the last event."""
        for event in reversed(self._events()):
            answer = last_answer(json_members(event_data(event)))
            if answer is not None:
                self.usage = usage_of(answer)
                return orjson.dumps(answer)
        raise JoinError("the stream ended before its end")

    def _look(self, chunk: bytes) -> None:
        self.events += chunk.count(DELTA)
        self.done = self.done or any(chunk.find(last) >= 0 for last in _LAST_EVENTS)
