"""Responses, rerank, score, tokenize over HTTP before the fake engine; a tenant's own models.

O1 and O4 of /v1/responses, R2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from support.fake_engine import StartEngine, until
from support.faulty_engine import FaultyEngine, typed_event
from support.faulty_upstream import event_stream, reset, stall
from support.sidecar import (
    ALICE,
    BOB,
    KEYS,
    Json,
    SidecarUnderTest,
    policy_document,
    sidecar_under_test,
)
from support.sidecar_calls import plain, post, served_tokens

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

MODEL = "test-model"
RESPONSE = {"model": MODEL, "input": "hi", "max_output_tokens": 3}


@pytest.fixture
async def served(start_engine: StartEngine, tmp_path: Path) -> AsyncIterator[SidecarUnderTest]:
    """Before a fake engine that generates."""
    engine = await start_engine()
    async with sidecar_under_test(tmp_path, engine) as sidecar:
        yield sidecar


@pytest.fixture
async def pooling(start_engine: StartEngine, tmp_path: Path) -> AsyncIterator[SidecarUnderTest]:
    """Before a fake engine that pools."""
    engine = await start_engine("--runner", "pooling", "--fake-embedding-dimensions", "4")
    policy = policy_document(model={"name": MODEL, "task": "Embed"})
    async with sidecar_under_test(tmp_path, engine, policy=policy) as sidecar:
        yield sidecar


@pytest.mark.parametrize("tokens", [3, 40])
async def test_the_sdk_creates_responses(served: SidecarUnderTest, tokens: int) -> None:
    async with openai.AsyncOpenAI(
        api_key=KEYS[ALICE], base_url=served.url + "/v1", max_retries=0
    ) as client:
        whole = await client.responses.create(
            model=MODEL, input="Tell me a story.", max_output_tokens=tokens
        )
        stream = await client.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": "Tell me a story."}],
            max_output_tokens=tokens,
            stream=True,
        )
        events = [event async for event in stream]
    assert whole.usage is not None
    assert whole.usage.output_tokens == tokens
    assert whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert served.outcomes(ALICE) == {"completed": 2}
    assert served_tokens(served) == whole.usage.total_tokens + last.response.usage.total_tokens


async def test_a_joined_response_is_the_engines_own(served: SidecarUnderTest) -> None:
    """Asked for 40 tokens it is taken from a stream; the engine itself is asked plainly."""
    body = {**RESPONSE, "max_output_tokens": 40}
    status, ours = await post(served, "/v1/responses", body)
    own = await plain(served, "/v1/responses", body)
    for answer in (ours, own):
        for part in (answer, *answer["output"]):
            del part["id"]
        answer.pop("created_at")
    assert status == 200
    assert ours == own


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "mcp", "server_url": "http://a/"}]}, "tools[0]"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"priority": -9}, "priority"),
    ],
)
async def test_what_is_not_stateless_is_refused_by_its_name(
    sidecar: SidecarUnderTest, engine: FaultyEngine, members: Json, param: str
) -> None:
    status, answer = await post(sidecar, "/v1/responses", {**RESPONSE, **members})
    assert (status, answer["error"]["param"]) == (400, param)
    assert not engine.requests


async def test_the_engine_is_told_to_store_nothing(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream([typed_event("response.completed", response={"usage": None})])
    await post(sidecar, "/v1/responses", {"model": MODEL, "input": "hi"})
    sent = engine.requests[0].json()
    assert (sent["store"], sent["stream"], sent["max_output_tokens"]) == (False, True, 1024)
    assert "stream_options" not in sent


async def test_a_prompt_that_the_engine_could_not_cut_is_refused(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    limits = {
        "prompt_limit": {"max_tokens": 50, "on_exceed": "Truncate"},
        "rate_limits": [{"name": "minute", "per": "Minute", "requests": 1}],
    }
    sidecar = await start_sidecar(policy=policy_document(tier=limits))
    status, refused = await post(sidecar, "/v1/responses", {**RESPONSE, "input": "x" * 400})
    assert (status, refused["error"]["code"]) == (413, "prompt_too_long")
    async with sidecar.chat(messages=[{"role": "user", "content": "x" * 400}]) as answer:
        assert answer.status == 200  # and the refused one took nothing of the limit
    assert engine.requests[-1].json()["truncate_prompt_tokens"] == 50


CREATED = typed_event("response.created", response={"id": "resp_1", "usage": None})
DELTA = typed_event("response.output_text.delta", delta="Hel")


async def test_o4_a_response_that_breaks_off_ends_with_an_error_event(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream([CREATED, DELTA, DELTA], then=reset)
    async with openai.AsyncOpenAI(
        api_key=KEYS[ALICE], base_url=sidecar.url + "/v1", max_retries=0
    ) as client:
        seen: list[str] = []

        async def follow() -> None:
            async for each in await client.responses.create(model=MODEL, input="hi", stream=True):
                seen.append(each.type)

        with pytest.raises(openai.APIError):
            await follow()
    assert seen == ["response.created", *["response.output_text.delta"] * 2]
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"engine_failed": 1}
    assert served_tokens(sidecar) > 2  # what was seen of it, and its prompt


async def test_o1_a_response_hung_up_on_lets_the_engine_go(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = event_stream([CREATED, DELTA], then=stall)
    async with sidecar.request("/v1/responses", {**RESPONSE, "stream": True}) as answer:
        await answer.content.readuntil(b"Hel")
    await until(lambda: not engine.busy, 5.0)
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"client_closed": 1}


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_reranks_are_the_engines_and_billed(pooling: SidecarUnderTest, path: str) -> None:
    body = {"model": MODEL, "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    status, ours = await post(pooling, path, body)
    own = await plain(pooling, path, body)
    assert status == 200
    assert (ours["results"], ours["usage"]) == (own["results"], own["usage"])
    assert served_tokens(pooling) == own["usage"]["total_tokens"]
    assert pooling.outcomes(ALICE) == {"completed": 1}


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("sides", [("text_1", "text_2"), ("queries", "documents")])
async def test_scores_are_the_engines_and_billed(
    pooling: SidecarUnderTest, path: str, sides: tuple[str, str]
) -> None:
    body = {"model": MODEL, sides[0]: "q", sides[1]: ["a", "b", "c"]}
    status, ours = await post(pooling, path, body)
    own = await plain(pooling, path, body)
    assert status == 200
    assert (ours["data"], ours["usage"]) == (own["data"], own["usage"])
    assert served_tokens(pooling) == own["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("path", "members", "param"),
    [
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": ["q"], "documents": ["a", "b"]}, "query"),
        ("/rerank", {"query": "q", "documents": []}, "documents"),
        ("/rerank", {"query": "q", "documents": [5]}, "documents[0]"),
        ("/rerank", {"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/score", {"text_1": "a"}, "queries"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "b", "activation": 1}, "activation"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ x }}"}, "chat_template"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
async def test_what_is_malformed_is_refused_by_its_name(
    sidecar: SidecarUnderTest, engine: FaultyEngine, path: str, members: Json, param: str
) -> None:
    status, answer = await post(sidecar, path, {"model": MODEL, **members})
    assert (status, answer["error"]["param"]) == (400, param)
    assert not engine.requests


async def test_tokenize_asks_the_engine_and_bills_nothing(served: SidecarUnderTest) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    assert await post(served, "/tokenize", body) == (200, await plain(served, "/tokenize", body))
    tokens = {"model": MODEL, "tokens": [1, 2]}
    assert (await post(served, "/detokenize", tokens))[0] == 200
    assert served.outcomes(ALICE) == {"completed": 2}
    assert served_tokens(served) == 0
    assert served.runtime.side_lane.in_hand == 0


async def test_one_tenants_flood_of_tokenize_does_not_hold_up_anothers(
    sidecar: SidecarUnderTest, engine: FaultyEngine
) -> None:
    engine.script = stall
    flood = [
        asyncio.create_task(post(sidecar, "/tokenize", {"model": MODEL, "prompt": f"{n}"}))
        for n in range(20)
    ]
    await until(lambda: engine.busy == 4 and sidecar.runtime.side_lane.in_hand == 20)
    one = asyncio.create_task(post(sidecar, "/tokenize", {"model": MODEL, "prompt": "b"}, BOB))
    await until(lambda: sidecar.runtime.side_lane.in_hand == 21)
    # Whoever came first of those that were sent at once.
    first, second, *_ = (int(json.loads(request.body)["prompt"]) for request in engine.requests)
    flood[first].cancel()  # its place becomes free: the next is Alice's, then Bob's
    flood[second].cancel()
    await until(lambda: any(b'"b"' in request.body for request in engine.requests))
    assert len(engine.requests) == 6
    for task in (*flood, one):
        task.cancel()
    await asyncio.gather(*flood, one, return_exceptions=True)
    await until(lambda: sidecar.runtime.side_lane.in_hand == 0, 5.0)


async def test_r2_a_tenant_sees_and_calls_its_models_only(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    policy = policy_document()
    policy["tenants"][0]["models"] = ["another-model"]
    policy["tenants"][1]["models"] = [MODEL]
    sidecar = await start_sidecar(policy=policy)
    for tenant, usable in ((ALICE, []), (BOB, [MODEL])):
        async with sidecar.request("/v1/models", method="GET", tenant=tenant) as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == usable
        status = 200 if usable else 404
        async with sidecar.request(f"/v1/models/{MODEL}", method="GET", tenant=tenant) as answer:
            assert answer.status == status
        async with sidecar.chat(tenant=tenant) as answer:
            body = await answer.json()
        assert answer.status == status
    assert sidecar.outcomes(ALICE) == {"completed": 1, "model_not_found": 2}
    assert len(engine.requests) == 1
    async with sidecar.chat(tenant=ALICE, model="another-model") as answer:
        body = await answer.json()
    assert (answer.status, body["error"]["code"]) == (404, "model_not_found")
    assert body["error"]["param"] == "model"
