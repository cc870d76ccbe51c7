"""The fake engine answers as the real one does: status, shape of every body and event, metrics.

Shape is what a client can rely on: keys and kinds of values, not what is said.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.fake_engine import client_session, engine_in_process

from testbed.real_vllm import MODEL

pytestmark = pytest.mark.vllm

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": MODEL, "prompt": "hi"}
FIXED: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True}
STREAM: dict[str, Any] = {**FIXED, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
INPUT = {"model": MODEL, "input": "hi", "max_output_tokens": 3, "ignore_eos": True}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture
async def fake() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a fake engine sized as the real one that these tests share."""
    flags = ("--max-model-len", "8192", "--max-num-seqs", "2", "--scheduling-policy", "priority")
    async with engine_in_process(*flags, model=MODEL) as engine, client_session(engine) as session:
        yield session


def shape(value: Any) -> Any:
    """Keys and kinds; a list by the shape of its first member."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


async def said(client: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, str, list[Any]]:
    """Status, content type and the shapes of the JSON body or of the events."""
    async with client.post(path, json=body) as response:
        text = await response.text()
        kind = response.headers["Content-Type"].replace(" ", "")
    if not kind.startswith("text/event-stream"):
        return response.status, kind, [shape(json.loads(text))]
    if text.startswith("event: "):  # typed; how text is cut into deltas depends on the model
        lines = [event.partition("\ndata: ") for event in text.removesuffix("\n\n").split("\n\n")]
        by_type = {name: shape(json.loads(data)) for name, _, data in lines}
        return response.status, kind, list(by_type.items())
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return response.status, kind, [shape(json.loads(e.removeprefix("data: "))) for e in events]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/chat/completions", {**CHAT, **FIXED}, id="chat"),
        pytest.param("/v1/chat/completions", {**CHAT, **STREAM, **USAGE}, id="chat stream"),
        pytest.param("/v1/completions", {**TEXT, **FIXED, "n": 2}, id="completion"),
        pytest.param("/v1/completions", {**TEXT, **STREAM, **CONTINUOUS}, id="completion stream"),
        pytest.param("/v1/completions", {**TEXT, "prompt": [[5, 6], [7]], **FIXED}, id="ids"),
        pytest.param("/v1/responses", INPUT, id="response"),
        pytest.param("/v1/responses", {**INPUT, "stream": True}, id="response stream"),
        pytest.param("/tokenize", {**TEXT, "return_token_strs": True}, id="tokenize"),
        pytest.param("/tokenize", CHAT, id="tokenize chat"),
        pytest.param("/detokenize", {"model": MODEL, "tokens": [5, 6]}, id="detokenize"),
    ],
)
async def test_answers_have_the_same_shape(
    client: aiohttp.ClientSession, fake: aiohttp.ClientSession, path: str, body: Any
) -> None:
    assert await said(fake, path, body) == await said(client, path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", {**TEXT, "model": "other"}, id="unknown model"),
        pytest.param("/v1/completions", {**TEXT, "prompt": [5] * 9000}, id="prompt too long"),
        pytest.param("/v1/completions", {**TEXT, "prompt": [5] * 8192}, id="no room to generate"),
        pytest.param("/v1/completions", {**TEXT, "max_tokens": 9000}, id="max_tokens too large"),
        pytest.param("/v1/completions", {**TEXT, "max_tokens": 0}, id="max_tokens 0"),
        pytest.param("/v1/completions", {**TEXT, "prompt": [999_999]}, id="token id"),
        pytest.param("/v1/completions", {**TEXT, **USAGE}, id="stream options without stream"),
        pytest.param("/v1/completions", {**TEXT, "cache_salt": ""}, id="empty salt"),
        pytest.param("/v1/chat/completions", {**CHAT, "messages": []}, id="no messages"),
        pytest.param("/v1/embeddings", {"model": MODEL, "input": "hi"}, id="no such task"),
    ],
)
async def test_refusals_are_the_same(
    client: aiohttp.ClientSession, fake: aiohttp.ClientSession, path: str, body: Any
) -> None:
    real, ours = await said(client, path, body), await said(fake, path, body)
    assert real[0] == ours[0]
    # `param` is a string or null, and vLLM is not consistent in which.
    for answer in (*real[2], *ours[2]):
        answer.get("error", {}).pop("param", None)
    assert ours == real


async def test_max_tokens_is_shortened_to_the_context(
    client: aiohttp.ClientSession, fake: aiohttp.ClientSession
) -> None:
    body = {**TEXT, "prompt": [5] * 8180, "max_tokens": 100, "ignore_eos": True}
    for engine in (client, fake):
        async with engine.post("/v1/completions", json=body) as response:
            usage = (await response.json())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (8180, 12)


async def test_every_metric_of_the_fake_is_one_of_vllm(
    client: aiohttp.ClientSession, fake: aiohttp.ClientSession
) -> None:
    """By name and labels, but of ``cache_config_info`` we have only some labels."""
    real, ours = await series(client), await series(fake)
    info = "vllm:cache_config_info"
    assert ours.pop(info) <= real.pop(info)
    assert {name: labels for name, labels in real.items() if name in ours} == ours


async def series(client: aiohttp.ClientSession) -> dict[str, frozenset[str]]:
    async with client.post("/v1/completions", json={**TEXT, **FIXED}) as response:
        await response.read()
    async with client.get("/metrics") as response:
        text = await response.text()
    found: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, _, rest = line.partition("{")
            pairs = rest.rpartition("}")[0].split('",')
            found[name] = frozenset(pair.partition("=")[0] for pair in pairs)
    return found
