"""Bodies: what passes, what is refused and with which ``param``, what the engine is sent.

O8 (token limits), O10 (shapes of prompt), O13 (priority), O11 and R15 where no socket is needed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_sidecar.bodies import OutputBound, engine_body, output_bound, parse_body
from tidegate_sidecar.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Endpoint
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.json_body import MAX_DEPTH, parse_object, splice

from tidegate.scheduling.contracts import OutputLimits

MESSAGES = [{"role": "user", "content": "abc"}]
ABSENT = object()


def chat(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **members}).encode()


def refusal(endpoint: Endpoint, raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(endpoint, raw)
    assert caught.value.status == 400
    return caught.value


# --- O8


@pytest.mark.parametrize("value", [ABSENT, None, 0, -1, "5", 1e9, True, 5, 10**9, 10**400])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_o8_one_token_limit(field: str, value: object) -> None:
    raw = chat(**({} if value is ABSENT else {field: value}))
    limits = OutputLimits(default_tokens=100)
    if value in (ABSENT, None):
        body = parse_body(CHAT, raw)
        bound = output_bound(body, limits, 4096, Estimator())
        assert bound == OutputBound(100, 100)
        sent = json.loads(engine_body(body, bound=bound, engine_priority=0, ask_stream=False))
        assert sent[field if value is None else "max_tokens"] == 100
    elif value == 5 and not isinstance(value, str):
        body = parse_body(CHAT, raw)
        bound = output_bound(body, limits, 4096, Estimator())
        assert bound == OutputBound(5, None)
        assert engine_body(body, bound=bound, engine_priority=0, ask_stream=False) == raw
    elif isinstance(value, int) and value > 5:
        body = parse_body(CHAT, raw) if value < 10**300 else None
        if body is None:
            return
        with pytest.raises(ApiError) as caught:
            output_bound(body, limits, 4096, Estimator())
        assert (caught.value.status, caught.value.param) == (400, field)
    else:
        assert refusal(CHAT, raw).param == field


@pytest.mark.parametrize("value", [ABSENT, None, 5, 0, -1, "5", 1e9, True])
def test_o8_of_a_response(value: object) -> None:
    members = {} if value is ABSENT else {"max_output_tokens": value}
    raw = json.dumps({"model": "m", "input": "hi", "store": None, **members}).encode()
    if value not in (ABSENT, None, 5):
        assert refusal(RESPONSES, raw).param == "max_output_tokens"
        return
    body = parse_body(RESPONSES, raw)
    bound = output_bound(body, OutputLimits(default_tokens=100), 4096, Estimator())
    sent = json.loads(engine_body(body, bound=bound, engine_priority=0, ask_stream=False))
    assert (sent["max_output_tokens"], sent["store"]) == (5 if value == 5 else 100, False)


def test_o8_the_newer_name_wins_and_both_pass_unchanged() -> None:
    raw = chat(max_tokens=7, max_completion_tokens=9)
    body = parse_body(CHAT, raw)
    bound = output_bound(body, OutputLimits(), 4096, Estimator())
    assert bound == OutputBound(9, None)
    assert engine_body(body, bound=bound, engine_priority=0, ask_stream=False) == raw


def test_o8_null_and_a_number_is_the_number() -> None:
    body = parse_body(CHAT, chat(max_tokens=7, max_completion_tokens=None))
    assert output_bound(body, OutputLimits(), 4096, Estimator()) == OutputBound(7, None)


def test_o8_more_than_the_tier_allows_names_the_field() -> None:
    body = parse_body(CHAT, chat(max_tokens=70))
    with pytest.raises(ApiError) as caught:
        output_bound(body, OutputLimits(max_tokens=50), None, Estimator())
    assert caught.value.param == "max_tokens"


def test_o8_a_default_is_within_what_the_context_leaves() -> None:
    body = parse_body(CHAT, chat(messages=[{"role": "user", "content": "a" * 360}]))
    bound = output_bound(body, OutputLimits(default_tokens=50), 100, Estimator())
    assert bound.tokens == 100 - 94
    assert bound.sent is None  # the engine takes what is left, and refuses nothing


# --- O10


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        ("abc" * 40, 1, 30),
        (["a" * 40, "b" * 40], 2, 20),
        ([1, 2, 3], 1, 3),
        ([[1, 2], [3, 4]], 2, 4),
        ("", 1, 1),
    ],
)
@pytest.mark.parametrize(("endpoint", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_o10_shapes_of_a_prompt(
    endpoint: Endpoint, field: str, prompt: Any, prompts: int, tokens: int
) -> None:
    raw = json.dumps({"model": "m", field: prompt}).encode()
    body = parse_body(endpoint, raw)
    assert body.sequences == prompts
    assert Estimator().tokens(body.size) == tokens
    assert body.raw == raw


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["a", 1], [1, "a"], [1.5], None, ABSENT, 5, {}, [[1], "a"], [[1], []], [True], [-1]],
)
@pytest.mark.parametrize(("endpoint", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_o10_malformed_prompts_are_refused(endpoint: Endpoint, field: str, prompt: Any) -> None:
    members = {"model": "m"} if prompt is ABSENT else {"model": "m", field: prompt}
    assert refusal(endpoint, json.dumps(members).encode()).param == field


def test_choices_multiply_sequences() -> None:
    raw = json.dumps({"model": "m", "prompt": ["a", "b"], "n": 3, "best_of": 4}).encode()
    assert parse_body(COMPLETIONS, raw).sequences == 8


# --- O13


@pytest.mark.parametrize(
    "field", ["priority", "cache_salt", "vllm_xargs", "session_id", "kv_transfer_params", "top_k"]
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_o13_what_only_the_engine_knows_is_refused(endpoint: Endpoint, field: str) -> None:
    raw = json.dumps({"model": "m", endpoint.prompt_field: MESSAGES, field: -1000}).encode()
    assert refusal(endpoint, raw).param == field


def test_o13_a_duplicate_does_not_hide_it() -> None:
    raw = chat()[:-1] + b',"pri\\u006frity":-1000,"priority":-1000}'
    assert refusal(CHAT, raw).param == "priority"
    escaped = chat()[:-1] + b',"pri\\u006frity":-1000}'
    assert refusal(CHAT, escaped).param == "priority"


def test_o13_the_engine_gets_the_priority_of_the_tier() -> None:
    body = parse_body(CHAT, chat(max_tokens=3))
    sent = engine_body(body, bound=OutputBound(3, None), engine_priority=-7, ask_stream=False)
    assert json.loads(sent)["priority"] == -7


# --- R15


def test_choices_times_prompts_are_bounded() -> None:
    """131,072 sequences in one request would hold the engine, for all, until they are done."""
    raw = json.dumps({"model": "m", "prompt": ["a"] * 1024, "n": 128}).encode()
    assert refusal(COMPLETIONS, raw).param == "prompt"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model": "m", "messages": [',
        b"[]",
        b'"x"',
        b"null",
        b"NaN",
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": Infinity}',
        b'{"model": "m", "model": "m"}',
        '{"model": "m"}'.encode("utf-16"),
        b'{"model": "\xff"}',
        b"",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": ' + b"1" * 5000 + b"}",
    ],
    ids=[
        "truncated", "list", "string", "null", "NaN", "NaN member", "Infinity", "duplicate",
        "UTF-16", "not UTF-8", "empty", "BOM", "deep list", "deep object", "huge integer",
    ],
)  # fmt: skip
def test_r15_what_is_no_json_object(raw: bytes) -> None:
    refusal(CHAT, raw)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "u", "content": [{"type": "?"}]}]}, "messages[0].content[0]"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": 10**9}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(members: dict[str, Any], param: str) -> None:
    assert refusal(CHAT, chat(**members)).param == param


def test_remote_media_is_refused_and_data_urls_are_not() -> None:
    def with_image(url: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": url}}
        return chat(messages=[{"role": "user", "content": [part]}])

    assert parse_body(CHAT, with_image("data:image/png;base64,AAAA")).sequences == 1
    for url in ("http://169.254.169.254/", "https://a/", "file:///etc/passwd"):
        assert refusal(CHAT, with_image(url)).param == "messages[0].content[0]"


# --- O11: members that are not ours stay byte by byte

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    members=st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=6),
    new=st.dictionaries(
        st.sampled_from(["stream", "priority", "a", ""]), st.integers(), max_size=3
    ),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_o11_splicing_is_setting_and_leaves_the_rest(
    members: dict[str, Any], new: dict[str, int], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(members, indent=indent, ensure_ascii=ascii_only)
    raw = text.encode("utf-8", "surrogatepass")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return
    parsed = parse_object(raw)
    spliced = splice(raw, parsed, {key: str(value).encode() for key, value in new.items()})
    assert parse_object(spliced) == {**parsed, **new}
    for key, value in members.items():
        if key not in new:
            assert (
                json.dumps(value, ensure_ascii=ascii_only).encode() in spliced or indent is not None
            )


@pytest.mark.parametrize("before", [b'{"a":', b'{"a":[0,'], ids=["objects", "both"])
def test_json_is_nested_so_deep_and_no_deeper(before: bytes) -> None:
    after = b"]}" if b"[" in before else b"}"
    times = MAX_DEPTH // len(after)
    parse_object(before * times + b"1" + after * times)
    for inner in (b"[]", b"{}", b'[1, "[", {"b": 2}]'):
        with pytest.raises(ApiError, match="malformed") as caught:
            parse_object(before * times + inner + after * times)
        assert f"deeper than {MAX_DEPTH} levels" in caught.value.message
    shallow = b'{"a":[' + b",".join([b"[[]]"] * MAX_DEPTH) + b',"' + b"[" * 200 + b'"]}'
    assert len(parse_object(shallow)["a"]) == MAX_DEPTH + 1


def test_o11_odd_spelling_survives() -> None:
    messages = b'[{"role":"user","content":"\\u0041\\/\xe4\xbd\xa0"}]'
    raw = b'{ "model":"m" ,\n"messages":%b,"temperature":1.0e0 }' % messages
    body = parse_body(CHAT, raw)
    sent = engine_body(body, bound=OutputBound(9, 9), engine_priority=0, ask_stream=True)
    assert sent.startswith(raw[:-2])
    assert json.loads(sent)["stream_options"] == {"include_usage": True}
