"""JSON that nobody sends by accident: bodies near to valid ones, with anything in any place."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.sampled_from([0, -1, 1, 2, 10**9, 10**400, -(2**63), 1e308, 0.5, float("nan")])
TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "\ud800",
        "\x00",
        "data:image/png;base64,AAAA",
        "https://a/",
        "user",
        "text",
        "message",
        "a" * 300,
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            TEXTS | st.sampled_from(["type", "role", "content", "text", "url", "id"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE, AUDIO]}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True},
        {"messages": [MESSAGE, {"role": "assistant", "tool_calls": [CALL]}], "tools": [CALL]},
    ],
    "/v1/completions": [
        {"prompt": "hi", "max_tokens": 3, "n": 2, "logprobs": 2, "echo": True},
        {"prompt": [[1, 2], [3]], "max_tokens": 2, "stream_options": {"include_usage": True}},
    ],
    "/v1/responses": [
        {"input": "hi", "instructions": "be brief", "max_output_tokens": 3, "stream": True},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "store": False,
        },
    ],
    "/tokenize": [{"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}],
    "/detokenize": [{"tokens": [1, 2]}],
    "/v1/embeddings": [{"input": ["a", "b"]}, {"input": [1, 2], "encoding_format": "base64"}],
    "/v1/rerank": [{"query": "q", "documents": ["a", "b"], "top_n": 1}],
    "/score": [{"text_1": "q", "text_2": ["a", "b"]}, {"queries": ["a"], "items": ["b"]}],
}
GENERATING = [path for path in BODIES if path not in ("/v1/embeddings", "/v1/rerank", "/score")]


@st.composite
def odd_bodies(draw: st.DrawFn, path: str, model: str) -> dict[str, Any]:
    """A body of that endpoint in which up to three places hold something else."""
    body: dict[str, Any] = {"model": model, **copy.deepcopy(draw(st.sampled_from(BODIES[path])))}
    for _ in range(draw(st.integers(0, 3))):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                place = inner
                continue
            if draw(st.booleans()):
                place[key] = draw(VALUES)
            elif isinstance(place, dict):
                place[draw(TEXTS)] = draw(VALUES)
            else:
                place.append(draw(VALUES))
            break
    return body
