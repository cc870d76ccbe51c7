"""A stream joined gives the body that the engine gives without streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidegate_sidecar.bodies import parse_body
from tidegate_sidecar.endpoints import CHAT, COMPLETIONS, EMBEDDINGS
from tidegate_sidecar.join import Joiner, joinable
from tidegate_sidecar.join_response import JoinError

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
ENVELOPE = {"id": "x-1", "created": 5, "model": "m", "system_fingerprint": "fp"}


def joined(choices: list[list[dict[str, Any]]], *, chat: bool = True) -> dict[str, Any]:
    joiner = Joiner(chat=chat)
    kind = "chat.completion.chunk" if chat else "text_completion"
    events = [{**ENVELOPE, "object": kind, "choices": each} for each in choices]
    events.append({**ENVELOPE, "object": kind, "choices": [], "usage": USAGE})
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
    stream += b"data: [DONE]\n\n"
    for start in range(0, len(stream), 7):
        joiner.feed(stream[start : start + 7])
    answer: dict[str, Any] = json.loads(joiner.answer())
    assert {key: answer[key] for key in ENVELOPE} == ENVELOPE
    assert answer["usage"] == USAGE
    return answer


def delta(index: int = 0, finish: str | None = None, **members: Any) -> dict[str, Any]:
    return {"index": index, "delta": members, "logprobs": None, "finish_reason": finish}


def test_text_of_several_choices() -> None:
    answer = joined(
        [
            [delta(1, role="assistant", content="")],
            [delta(0, role="assistant", content="")],
            [delta(0, content="你"), delta(1, content="x")],
            [delta(0, content="好")],
            [delta(1, finish="length")],
            [delta(0, finish="stop", content="")],
        ]
    )
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "你好"},
            "logprobs": None,
            "finish_reason": "stop",
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": "x"},
            "logprobs": None,
            "finish_reason": "length",
        },
    ]


def test_tool_calls() -> None:
    def call(index: int, **members: Any) -> list[dict[str, Any]]:
        return [delta(tool_calls=[{"index": index, **members}])]

    answer = joined(
        [
            [delta(role="assistant")],
            call(0, id="a", type="function", function={"name": "f", "arguments": ""}),
            call(0, function={"arguments": '{"x"'}),
            call(1, id="b", type="function", function={"name": "g", "arguments": "{}"}),
            call(0, function={"arguments": ":1}"}),
            [delta(finish="tool_calls")],
        ]
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_chat_logprobs() -> None:
    def piece(token: str) -> dict[str, Any]:
        content = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []}]
        return {**delta(content=token), "logprobs": {"content": content, "refusal": None}}

    (choice,) = joined([[piece("a")], [piece("b")], [delta(finish="stop")]])["choices"]
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["a", "b"]
    assert choice["message"]["content"] == "ab"


def test_refusal_and_reasoning_concatenate() -> None:
    pieces = [[delta(reasoning="th")], [delta(reasoning="ink")], [delta(refusal="no")]]
    (choice,) = joined([*pieces, [delta(finish="stop")]])["choices"]
    assert choice["message"]["reasoning"] == "think"
    assert choice["message"]["refusal"] == "no"


def test_completions_with_logprobs() -> None:
    def piece(text: str, offset: int, finish: str | None = None) -> list[dict[str, Any]]:
        logprobs = {
            "tokens": [text],
            "token_logprobs": [-1.0],
            "top_logprobs": [{text: -1.0}],
            "text_offset": [offset],
        }
        return [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}]

    answer = joined([piece("a", 0), piece("b", 1, "length")], chat=False)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": {
                "tokens": ["a", "b"],
                "token_logprobs": [-1.0, -1.0],
                "top_logprobs": [{"a": -1.0}, {"b": -1.0}],
                "text_offset": [0, 1],
            },
            "finish_reason": "length",
        }
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"data: no\n\n",
        b'data: {"error": {}}\n\n',
        b"data: []\n\n",
        b'data: {"choices": [1]}\n\n',
        b'data: {"choices": [{"delta": {}}]}\n\n',
        b'data: {"choices": [{"index": [], "delta": {}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {}}, {"index": "1", "delta": {}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": "a"}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": 5}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": "a"}]}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"function_call": {"arguments": 5}}}]}\n\n',
    ],
)
def test_what_is_no_chunk_is_no_answer(data: bytes) -> None:
    joiner = Joiner(chat=True)
    joiner.feed(data + b"data: [DONE]\n\n")
    with pytest.raises(JoinError):
        joiner.answer()


def test_a_stream_without_its_end_is_no_answer() -> None:
    joiner = Joiner(chat=True)
    joiner.feed(b'data: {"choices": []}\n\n')
    with pytest.raises(JoinError):
        joiner.answer()


@pytest.mark.parametrize(
    ("extra", "whether"),
    [({}, True), ({"n": 2}, True), ({"best_of": 2}, False), ({"echo": True}, False)],
)
def test_what_cannot_be_joined_is_not(extra: dict[str, Any], whether: bool) -> None:
    raw = json.dumps({"model": "m", "prompt": "a", **extra}).encode()
    assert joinable(parse_body(COMPLETIONS, raw)) is whether


def test_embeddings_are_whole_and_chat_is_joined() -> None:
    assert not joinable(parse_body(EMBEDDINGS, b'{"model": "m", "input": "a"}'))
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}'
    assert joinable(parse_body(CHAT, raw))
