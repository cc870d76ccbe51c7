"""Whatever comes from a client or an engine: only the refusals that are meant, nothing else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.odd_json import BODIES, VALUES, odd_bodies
from tidegate_sidecar.bodies import engine_body, output_bound, parse_body
from tidegate_sidecar.endpoints import CHAT, EMBEDDINGS, ENDPOINTS
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.join import Joiner
from tidegate_sidecar.join_response import JoinError, ResponseJoiner
from tidegate_sidecar.json_body import parse_object
from tidegate_sidecar.parts import PartError, PartsAnswer, cut
from tidegate_sidecar.sse import EventStream, usage_of
from tidegate_sidecar.upstream_errors import from_answer

from tidegate.scheduling.contracts import OutputLimits

BOUNDED = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("path", BODIES)
@BOUNDED
@given(data=st.data())
def test_a_body_is_refused_by_name_or_can_be_sent(path: str, data: st.DataObject) -> None:
    members = data.draw(odd_bodies(path, "m"))
    raw = json.dumps(members).encode()
    estimator = Estimator()
    try:
        body = parse_body(ENDPOINTS[path], raw)
        bound = output_bound(body, OutputLimits(), 4_096, estimator)
    except ApiError as error:
        told = json.loads(error.body())["error"]
        refused = (error.status, bool(told["message"]), told["type"])
        if refused != (400, True, "invalid_request_error"):
            raise
        return
    sent = engine_body(body, bound=bound, engine_priority=-3, ask_stream=False, prompt_tokens=9)
    told = parse_object(sent)
    assert told["priority"] == -3
    assert {key: told[key] for key in body.members if key not in _SET} == {
        key: value for key, value in body.members.items() if key not in _SET
    }
    assert estimator.tokens(body.size) >= 1
    parts = cut(body, estimator, budget_tokens=1, most_documents=1)
    if parts is not None:
        assert sum(part.count for part in parts.slices) == body.size.prompts
        for part in parts.slices:
            parse_body(ENDPOINTS[path], parts.raw(part))


_SET = {
    "priority", "store", "truncate_prompt_tokens", "max_tokens", "max_completion_tokens",
    "max_output_tokens",
}  # fmt: skip


@BOUNDED
@given(raw=st.binary(max_size=200), path=st.sampled_from(sorted(BODIES)))
def test_any_bytes_are_refused(raw: bytes, path: str) -> None:
    with pytest.raises(ApiError):
        parse_body(ENDPOINTS[path], raw)


FRAGMENTS = st.sampled_from(
    [
        b"data: ", b"event: x", b"\n", b"\r\n", b"\r", b"\n\n", b"[DONE]", b":", b'{"usage":',
        b'"error"', b'{"type":"response.completed","response":{"usage":{}}}', b'"usage"', b"{}",
        b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', b"\xff", b"data: [DONE]\n\n",
        b'.delta"', b'{"choices":[{"index":0,"delta":{"content":"x"}}]}', b'{"error":{}}',
    ]
)  # fmt: skip


@settings(BOUNDED, max_examples=50)
@given(
    pieces=st.lists(FRAGMENTS | st.binary(max_size=8), max_size=20),
    hide_usage=st.booleans(),
    typed=st.booleans(),
)
def test_any_stream_passes(pieces: list[bytes], hide_usage: bool, typed: bool) -> None:
    stream = EventStream(hide_usage=hide_usage, typed=typed)
    passed = b"".join([stream.feed(piece) for piece in pieces])
    whole = b"".join(pieces)
    assert len(passed + stream.finish()) <= len(whole)
    if not hide_usage:
        assert whole.startswith(passed)
    for joiner in (Joiner(chat=True), Joiner(chat=False), ResponseJoiner()):
        for piece in pieces:
            joiner.feed(piece)
        with contextlib.suppress(JoinError):
            json.loads(joiner.answer())


@settings(BOUNDED, max_examples=50)
@given(value=VALUES)
def test_any_answer_of_an_engine_is_taken_or_refused(value: Any) -> None:
    answer = {"usage": value, "data": value, "error": value, "message": value, "detail": value}
    usage_of(answer)
    members = {"model": "m", "input": ["a", "b"]}
    body = parse_body(EMBEDDINGS, json.dumps(members).encode())
    parts = cut(body, Estimator(), 1, 1)
    assert parts is not None
    for told in (answer, value, {"data": [{"index": value}], "usage": value}):
        raw = json.dumps(told).encode()
        assert from_answer(400, "7", raw).status == 400
        with contextlib.suppress(PartError):
            PartsAnswer(body, parts).take(0, raw)
    joiner = Joiner(chat=True)
    chunk = {"choices": [{"index": 0, "delta": value}], "usage": value}
    joiner.feed(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    with contextlib.suppress(JoinError):
        json.loads(joiner.answer())


def test_the_bodies_that_are_changed_are_valid() -> None:
    for path, bodies in BODIES.items():
        for body in bodies:
            members = {key: value for key, value in body.items() if key != "stream_options"}
            assert parse_body(ENDPOINTS[path], json.dumps({"model": "m", **members}).encode())
    assert ENDPOINTS[CHAT.path] is CHAT
