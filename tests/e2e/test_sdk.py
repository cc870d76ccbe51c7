"""The `openai` SDK, unchanged, against the quickstart's pools."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from testbed.e2e_cluster import Cluster

pytestmark = pytest.mark.e2e


@pytest.fixture
def chat(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with _client(cluster, "chat") as client:
        yield client


@pytest.fixture
def embeddings(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with _client(cluster, "embeddings") as client:
        yield client


def _client(cluster: Cluster, pool: str) -> openai.OpenAI:
    url = cluster.endpoint("quickstart", pool) + "/v1"
    return openai.OpenAI(base_url=url, api_key="demo-paid", max_retries=0)


def test_chat(chat: openai.OpenAI) -> None:
    model = chat.models.list().data[0].id
    answer = chat.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=7
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 7


def test_chat_stream(chat: openai.OpenAI) -> None:
    model = chat.models.list().data[0].id
    with chat.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=7, stream=True
    ) as stream:
        events = list(stream)
    assert "".join(e.choices[0].delta.content or "" for e in events)
    assert events[-1].choices[0].finish_reason in ("stop", "length")
    assert all(event.usage is None for event in events)


def test_completions_and_their_stream(chat: openai.OpenAI) -> None:
    model = chat.models.list().data[0].id
    whole = chat.completions.create(model=model, prompt="Once", max_tokens=5)
    with chat.completions.create(model=model, prompt="Once", max_tokens=5, stream=True) as stream:
        text = "".join(event.choices[0].text for event in stream)
    assert text == whole.choices[0].text


def test_embeddings(embeddings: openai.OpenAI) -> None:
    model = embeddings.models.list().data[0].id
    answer = embeddings.embeddings.create(model=model, input=["one", "two"])
    assert [row.index for row in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens > 0


def test_a_wrong_key_is_the_sdks_authentication_error(chat: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        chat.with_options(api_key="demo-nobody").models.list()


def test_an_unknown_model_is_the_sdks_not_found(chat: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        chat.completions.create(model="no-such-model", prompt="x")
