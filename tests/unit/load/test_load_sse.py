"""Events are read alike however the bytes are cut."""

import json

import pytest

from tidegate.load.sse import AnswerReader, EventParser


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def chat(text: str, finish: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
DONE = event(b"[DONE]")
ROLE = event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None})
STREAM = ROLE + chat("你好") + chat("🙂") + chat("c") + chat("", "stop") + USAGE + DONE


def read(*chunks: bytes) -> AnswerReader:
    parser, answer = EventParser(), AnswerReader()
    for chunk in chunks:
        for data in parser.feed(chunk):
            answer.read(data)
    return answer


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_every_cut_gives_the_same(ends: bytes) -> None:
    stream = STREAM.replace(b"\n", ends)
    for cut in range(len(stream)):
        answer = read(stream[:cut], stream[cut:])
        assert (answer.usage, answer.token_events) == ((12, 3), 3)
        assert (answer.done, answer.error) == (True, None)


def test_an_event_before_the_first_text_is_not_the_first_token() -> None:
    parser, answer = EventParser(), AnswerReader()
    seen = [answer.read(data) for data in parser.feed(ROLE + chat("a"))]
    assert seen == [False, True]


def test_completions_tools_and_comments_are_read() -> None:
    tool = event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})
    answer = read(b": keep-alive\n\n", event({"choices": [{"text": "x"}]}), tool)
    assert answer.token_events == 2
    assert not answer.done


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"error": {"code": "engine_failed", "type": "server_error"}}, "engine_failed"),
        ({"error": {"code": 500, "type": "server_error"}}, "server_error"),
        ({"error": "oops"}, "error_event"),
    ],
)
@pytest.mark.parametrize("before", [b"", chat("a")], ids=["first", "later"])
def test_an_error_in_a_stream_is_seen(before: bytes, data: object, error: str) -> None:
    assert read(before, event(data)).error == error


@pytest.mark.parametrize("data", [b"{", b"[1]"])
def test_an_event_that_is_no_object_is_an_error(data: bytes) -> None:
    assert read(event(data)).error == "malformed_event"


def test_null_error_and_null_usage_are_none() -> None:
    answer = read(event({"choices": [], "error": None, "usage": None}), DONE)
    assert (answer.error, answer.usage, answer.done) == (None, None, True)
