"""A stream of chunks joined into the answer that the engine would have given without streaming.

The engine is asked for a stream even where the client wants none, since only a stream tells when a
request started and how far it is; this module makes the client's body of it. Chunks are deltas:
strings under the same key concatenate, ``tool_calls`` merge by their ``index``, ``logprobs`` lists
append, everything else is last-one-wins. Members of the chunks' envelope (``id``, ``created``,
``model``, ``system_fingerprint``, ``service_tier`` and an engine's own) are kept as they came.

What cannot be joined faithfully is not joined but asked for plainly (:func:`joinable`): ``best_of``
(the engine picks at the end), ``echo`` (its prompt log-probabilities are laid out differently in
chunks) and audio output. The Responses API's streams: :mod:`.join_response`.
"""

from __future__ import annotations

from typing import Any

import orjson

from tidegate_sidecar.bodies import Body
from tidegate_sidecar.endpoints import CHAT, StreamKind
from tidegate_sidecar.join_response import JoinError, ResponseJoiner, StreamJoiner
from tidegate_sidecar.sse import event_data, usage_of

JOIN_MIN_OUTPUT_TOKENS = 17
"""Shorter answers are over within a few steps: their end tells the gate as much as their start."""


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


class Joiner(StreamJoiner):
    """Of chat and completions."""

    def __init__(self, *, chat: bool) -> None:
        super().__init__()
        self._chat = chat
        self._envelope: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def _look(self, chunk: bytes) -> None:
        self.done = chunk.rstrip().endswith(b"[DONE]")
        tokenless = chunk.count(b"[DONE]") + chunk.count(b'"choices":[]')
        self.events += max(0, chunk.count(b"data:") - tokenless)

    def answer(self) -> bytes:
        """The joined body, as JSON; :class:`JoinError` when the stream was not a whole one."""
        done = False
        try:
            for event in self._events():
                data = event_data(event)
                if data == b"[DONE]":
                    done = True
                elif data:
                    self._take(data)
            choices = [self._choices[index].whole() for index in sorted(self._choices)]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise JoinError("a chunk has not the shape of one") from None
        if not done:
            raise JoinError("the stream ended before its end")
        answer = dict(self._envelope)
        answer["object"] = "chat.completion" if self._chat else "text_completion"
        answer["choices"] = choices
        answer["usage"] = answer.pop("usage", None)
        return orjson.dumps(answer)

    def _take(self, data: bytes) -> None:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise JoinError("a chunk is not JSON") from None
        choices = chunk.pop("choices", None) if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            raise JoinError("the engine reported an error")
        if chunk.get("usage") is not None:
            self.usage = usage_of(chunk) or self.usage
        if chunk != self._envelope:
            for key, value in chunk.items():
                if value is not None or key not in self._envelope:
                    self._envelope[key] = value
        for delta in choices:
            choice = self._choices.get(delta["index"])
            if choice is None:
                choice = self._choices[delta["index"]] = _Choice(delta["index"], chat=self._chat)
            choice.add(delta)


class _Choice:
    """One choice while its deltas come."""

    def __init__(self, index: int, *, chat: bool) -> None:
        self._chat = chat
        self._members: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
        self._message: dict[str, Any] = {"role": "assistant", "content": None} if chat else {}
        self._strings: dict[str, list[str]] = {}
        """Concatenated at the end: adding up as they come costs the square of the length."""

    def add(self, chunk: dict[str, Any]) -> None:
        """Merge one delta."""
        for key, value in chunk.items():
            if value is None or key == "index":
                self._members.setdefault(key, None)
            elif key == "delta" and self._chat:
                self._merge_message(value)
            elif key == "text" and not self._chat:
                self._strings.setdefault("text", []).append(value)
            elif key == "logprobs":
                self._members[key] = _merge_logprobs(self._members[key], value)
            else:
                self._members[key] = value

    def _merge_message(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if isinstance(value, str) and key != "role":
                self._strings.setdefault(key, []).append(value)
            elif value is None:
                self._message.setdefault(key, None)
            elif key == "tool_calls":
                calls = self._message.get(key) or []
                self._message[key] = calls
                for call in value:
                    _merge_tool_call(calls, call)
            elif key == "function_call":
                self._message[key] = self._message.get(key) or {}
                _merge_strings(self._message[key], value)
            elif isinstance(value, list):
                self._message[key] = (self._message.get(key) or []) + value
            else:
                self._message[key] = value

    def whole(self) -> dict[str, Any]:
        """The choice as an answer has it."""
        strings = {key: "".join(parts) for key, parts in self._strings.items()}
        whole: dict[str, Any] = {"index": self._members.pop("index")}
        if self._chat:
            message = {**self._message, **strings}
            calls = message.get("tool_calls")
            if calls and not message["content"]:
                message["content"] = None
            for call in calls or ():
                call.pop("index", None)
            whole["message"] = message
        else:
            whole["text"] = strings.get("text", "")
        return {**whole, **self._members}


def new_joiner(body: Body) -> StreamJoiner:
    """The joiner for a body's endpoint."""
    if body.endpoint.stream is StreamKind.TYPED:
        return ResponseJoiner()
    return Joiner(chat=body.endpoint is CHAT)


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
