"""The openai SDK, unchanged, with a tenant's key, before the fake engine over its Unix socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from support.fake_engine import StartEngine
from support.sidecar import ALICE, KEYS, SidecarUnderTest, policy_document, sidecar_under_test

pytestmark = pytest.mark.integration

MODEL = "test-model"


@pytest.fixture
async def served(
    start_engine: StartEngine, sockets: Path, tmp_path: Path
) -> AsyncIterator[SidecarUnderTest]:
    """A sidecar before the fake engine."""
    socket = sockets / "engine.sock"
    await start_engine("--uds", str(socket))
    async with sidecar_under_test(tmp_path, f"uds:{socket}") as sidecar:
        yield sidecar


@pytest.fixture
async def client(served: SidecarUnderTest) -> AsyncIterator[openai.AsyncOpenAI]:
    """The SDK with Alice's key."""
    url = served.url + "/v1"
    async with openai.AsyncOpenAI(api_key=KEYS[ALICE], base_url=url, max_retries=0) as client:
        yield client


MESSAGES = [{"role": "user", "content": "Tell me a story."}]


@pytest.mark.parametrize("max_tokens", [5, 40])
@pytest.mark.parametrize("n", [1, 2])
async def test_chat(
    client: openai.AsyncOpenAI, served: SidecarUnderTest, max_tokens: int, n: int
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=max_tokens,
        n=n,  # type: ignore[arg-type]
    )
    assert [choice.index for choice in answer.choices] == list(range(n))
    assert all(choice.message.content for choice in answer.choices)
    assert all(choice.finish_reason in ("length", "stop") for choice in answer.choices)
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= max_tokens * n
    assert served.outcomes(ALICE) == {"completed": 1}


async def test_a_joined_answer_is_the_engines_own(
    client: openai.AsyncOpenAI, served: SidecarUnderTest
) -> None:
    """Asked for 40 tokens it is joined; the same body sent to the engine itself is not."""
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "seed": 1, "temperature": 0}
    async with served.request(body=body) as response:
        joined = await response.json()
    sent = json.dumps(body).encode()
    exchange = await served.runtime.engine.post("/v1/chat/completions", {}, sent)
    try:
        plain = json.loads(await exchange.read_all(1 << 20))
    finally:
        exchange.close()
    assert openai.types.chat.ChatCompletion.model_validate(joined)
    assert joined["object"] == plain["object"]
    assert joined["usage"] == {key: plain["usage"][key] for key in joined["usage"]}
    (ours,), (own,) = joined["choices"], plain["choices"]
    assert ours["message"]["role"] == own["message"]["role"]
    assert len(ours["message"]["content"]) == len(own["message"]["content"])
    assert {key: own[key] for key in ours if key != "message"} == {
        key: ours[key] for key in ours if key != "message"
    }


async def test_streams(client: openai.AsyncOpenAI, served: SidecarUnderTest) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=20,
        stream=True,  # type: ignore[arg-type]
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = [chunk.usage async for chunk in stream][-1]
    assert usage is not None
    assert usage.completion_tokens == 20
    assert served.outcomes(ALICE) == {"completed": 2}


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=30)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = await client.completions.create(model=MODEL, prompt=[1, 2], max_tokens=5, stream=True)
    assert [chunk async for chunk in stream]


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_errors_are_the_sdks_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="x", messages=MESSAGES)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt=[])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_embeddings(start_engine: StartEngine, tmp_path: Path) -> None:
    engine = await start_engine("--runner", "pooling")
    policy = policy_document(model={"name": MODEL, "task": "Embed"})
    async with sidecar_under_test(tmp_path, engine, policy=policy) as sidecar:
        url = sidecar.url + "/v1"
        async with openai.AsyncOpenAI(api_key=KEYS[ALICE], base_url=url) as client:
            answer = await client.embeddings.create(model=MODEL, input=["one", "two"])
            assert len(answer.data) == 2
            assert answer.usage.prompt_tokens > 0
