"""A stream of chunks joined into the answer that the engine would have given without streaming.

The engine is asked for a stream even where the client wants none, since only a stream tells when a
request started and how far it is; this module makes the client's body of it. Chunks are deltas:
strings under the same key concatenate, ``tool_calls`` merge by their ``index``, ``logprobs`` lists
append, everything else is last-one-wins. Members of the chunks' envelope (``id``, ``created``,
``model``, ``system_fingerprint``, ``service_tier`` and an engine's own) are kept as they came.

What cannot be joined faithfully is not joined but asked for plainly (:func:`joinable`): ``best_of``
(the engine picks at the end), ``echo`` (its prompt log-probabilities are laid out differently in
chunks) and audio output.
"""

from __future__ import annotations

from typing import Any

import orjson

from tidegate.scheduling.request import Usage
from tidegate_sidecar.bodies import Body
from tidegate_sidecar.fields import CHAT
from tidegate_sidecar.sse import event_data, split_events, usage_of

JOIN_MIN_OUTPUT_TOKENS = 17
"""Shorter answers are over within a few steps: their end tells the gate as much as their start."""

_CHOICE_KEYS = {"index", "delta", "text", "logprobs", "finish_reason"}


class JoinError(Exception):
    """The stream is not one of chunks, or the engine reported an error in it."""


def joinable(body: Body) -> bool:
    """Whether a stream of this body's answer can be joined into it."""
    members = body.members
    best_of, choices = members.get("best_of"), members.get("n") or 1
    return (
        body.endpoint.generates
        and not members.get("echo")
        and (best_of is None or best_of == choices)
        and not members.get("audio")
    )


class Joiner:
    """Collects the chunks of one stream."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._held = b""
        self._envelope: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self.events = 0
        self.usage: Usage | None = None
        self.done = False
        self.size_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take in bytes of the stream; :class:`JoinError` when it is none of chunks."""
        self.size_bytes += len(chunk)
        events, self._held = split_events(self._held + chunk)
        for event in events:
            data = event_data(event)
            if data == b"[DONE]":
                self.done = True
            elif data:
                self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise JoinError("a chunk is not JSON") from None
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            raise JoinError("the engine reported an error")
        self.events += 1
        self.usage = usage_of(chunk) or self.usage
        for key, value in chunk.items():
            if key != "choices" and (value is not None or key not in self._envelope):
                self._envelope[key] = value
        for choice in choices:
            self._merge_choice(choice)

    def _merge_choice(self, chunk: dict[str, Any]) -> None:
        choice = self._choices.setdefault(chunk["index"], {"index": chunk["index"]})
        if self._chat:
            message = choice.setdefault("message", {"role": "assistant", "content": None})
            _merge_delta(message, chunk.get("delta") or {})
        else:
            choice["text"] = choice.get("text", "") + (chunk.get("text") or "")
        choice["logprobs"] = _merge_logprobs(choice.get("logprobs"), chunk.get("logprobs"))
        finish_reason = chunk.get("finish_reason")
        choice["finish_reason"] = finish_reason or choice.get("finish_reason")
        for key, value in chunk.items():
            if key not in _CHOICE_KEYS and (value is not None or key not in choice):
                choice[key] = value

    def answer(self) -> bytes:
        """The joined body, as JSON."""
        answer = dict(self._envelope)
        answer["object"] = "chat.completion" if self._chat else "text_completion"
        answer["choices"] = [self._choices[index] for index in sorted(self._choices)]
        for choice in answer["choices"]:
            _strip_indices(choice.get("message", {}))
        answer["usage"] = answer.pop("usage", None)
        return orjson.dumps(answer)


def new_joiner(body: Body) -> Joiner:
    """The joiner for a body's endpoint."""
    return Joiner(chat=body.endpoint is CHAT)


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if value is None:
            message.setdefault(key, None)
        elif key == "tool_calls":
            calls = message.get("tool_calls") or []
            message["tool_calls"] = calls
            for call in value:
                _merge_tool_call(calls, call)
        elif key == "function_call":
            message[key] = message.get(key) or {}
            _merge_strings(message[key], value)
        elif isinstance(value, str) and key != "role":
            message[key] = (message.get(key) or "") + value
        elif isinstance(value, list):
            message[key] = (message.get(key) or []) + value
        else:
            message[key] = value


def _merge_tool_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    index = delta.get("index", len(calls))
    call = next((known for known in calls if known["index"] == index), None)
    if call is None:
        call = {"index": index}
        calls.append(call)
        calls.sort(key=lambda known: int(known["index"]))
    for key, value in delta.items():
        if key == "function" and value:
            call["function"] = call.get("function") or {}
            _merge_strings(call["function"], value)
        elif value is not None and key != "index":
            call[key] = value  # id and type come once, or repeated in whole


def _merge_strings(target: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "arguments":
            target[key] = (target.get(key) or "") + (value or "")
        elif value is not None:
            target[key] = value


def _merge_logprobs(known: Any, delta: Any) -> Any:
    if not isinstance(delta, dict) or known is None:
        return delta if known is None else known
    merged = dict(known)
    for key, value in delta.items():
        if isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = merged[key] + value
        elif value is not None:
            merged[key] = value
    return merged


def _strip_indices(message: dict[str, Any]) -> None:
    for call in message.get("tool_calls") or []:
        call.pop("index", None)
