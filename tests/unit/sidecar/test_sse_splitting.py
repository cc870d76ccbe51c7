"""O2: events cut anywhere, even inside a character: same bytes, same usage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_sidecar.sse import EventStream

from tidegate.scheduling.request import Usage

TEXTS = ["你好🙂", "plain", 'a "quote" and \\', "\u2028 line", "[DONE]", '{"usage": {}}', ""]


def event(members: object, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(members, ensure_ascii=False)}{end}".encode()


def chunk(text: str, end: str = "\n\n") -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]}, end)


USAGE = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
STREAM = chunk("你好🙂") + event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


def run(pieces: list[bytes], *, hide_usage: bool) -> tuple[bytes, EventStream]:
    stream = EventStream(hide_usage=hide_usage)
    passed = b"".join(stream.feed(piece) for piece in pieces)
    return passed + stream.finish(), stream


@pytest.mark.parametrize("offset", range(len(STREAM) + 1))
def test_o2_bytes_and_usage_are_the_same_for_a_cut_at_every_byte(offset: int) -> None:
    passed, stream = run([STREAM[:offset], STREAM[offset:]], hide_usage=False)
    assert passed == STREAM
    assert stream.usage == Usage(prompt_tokens=11, output_tokens=4)
    assert stream.done


@pytest.mark.parametrize("hide_usage", [True, False])
def test_o2_one_byte_at_a_time(hide_usage: bool) -> None:
    passed, stream = run([bytes([byte]) for byte in STREAM], hide_usage=hide_usage)
    usage_event = b"" if hide_usage else event({"choices": [], "usage": USAGE})
    assert passed == chunk("你好🙂") + usage_event + b"data: [DONE]\n\n"
    assert stream.usage == Usage(prompt_tokens=11, output_tokens=4)


@given(
    texts=st.lists(st.sampled_from(TEXTS), max_size=6),
    end=st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]),
    with_usage=st.booleans(),
    hide_usage=st.booleans(),
    data=st.data(),
)
def test_o2_any_cuts_give_the_same_bytes_usage_and_count(
    texts: list[str], end: str, with_usage: bool, hide_usage: bool, data: st.DataObject
) -> None:
    usage = event({"choices": [], "usage": USAGE}, end) if with_usage else b""
    chunks = b"".join(chunk(text, end) for text in texts)
    done = f"data: [DONE]{end}".encode()
    whole = chunks + usage + done
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    passed, stream = run(pieces, hide_usage=hide_usage)
    assert passed == (chunks + done if hide_usage else whole)
    assert stream.done
    assert (stream.usage is not None) == with_usage
    assert stream.events == len(texts), "usage alone is no token"


def test_an_unfinished_event_is_held_back() -> None:
    stream = EventStream(hide_usage=False)
    assert stream.feed(chunk("a") + b'data: {"cho') == chunk("a")
    assert stream.rest() == b'data: {"cho'


def test_usage_beside_choices_is_read_and_stays() -> None:
    both = event({"choices": [{"index": 0, "delta": {}}], "usage": USAGE})
    passed, stream = run([both], hide_usage=True)
    assert passed == both
    assert stream.usage == Usage(prompt_tokens=11, output_tokens=4)


def test_an_error_inside_the_stream_is_noticed() -> None:
    passed, stream = run([event({"error": {"message": "x"}})], hide_usage=True)
    assert passed
    assert stream.error_seen


@pytest.mark.parametrize(
    "usage", [None, 5, {"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": True}, {}]
)
def test_a_usage_that_is_none_is_not_believed(usage: object) -> None:
    _, stream = run([event({"choices": [], "usage": usage})], hide_usage=False)
    assert stream.usage is None


def test_comments_and_blank_lines_pass() -> None:
    raw = b": keep-alive\n\n\n\nevent: x\ndata: 1\n\n"
    passed, _ = run([raw], hide_usage=True)
    assert passed == raw


@pytest.mark.parametrize("typed", [False, True])
def test_a_line_end_too_many_is_no_event(typed: bool) -> None:
    stream = EventStream(hide_usage=True, typed=typed)
    assert stream.feed(b"data: [DONE]\n\n\n") == b"data: [DONE]\n\n\n"
    assert stream.done or typed


TYPED = (
    b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n'
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"a \\"usage\\" .delta\\""}\n\n'
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"b"}\n\n'
    b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":11,"output_tokens":2,'
    b'"input_tokens_details":{"cached_tokens":8}}},"type":"response.completed"}\n\n'
)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_typed_stream_says_tokens_usage_and_end_however_it_is_cut(end: bytes) -> None:
    whole = TYPED.replace(b"\n", end)
    for offset in range(len(whole) + 1):
        stream = EventStream(hide_usage=True, typed=True)
        passed = stream.feed(whole[:offset]) + stream.feed(whole[offset:]) + stream.finish()
        assert passed == whole
        assert (stream.events, stream.done, stream.error_seen) == (2, True, False)
        assert stream.usage == Usage(11, 2, cached_tokens=8)
