"""Lists of documents in parts: joined in order, one bill, one outcome, others in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import StartEngine, until
from support.faulty_engine import FaultyEngine
from support.faulty_upstream import answer as answered
from support.faulty_upstream import head, raw, stall
from support.sidecar import (
    ALICE,
    BOB,
    Json,
    SidecarUnderTest,
    keys_document,
    policy_document,
    sidecar_under_test,
)
from support.sidecar_calls import plain, post, served_tokens

from tidegate.scheduling.contracts import Bundle, loads
from tidegate.scheduling.outcomes import Outcome

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

MODEL = "test-model"
ENGINE = {"max_num_batched_tokens": 64, "max_num_seqs": 8}


def embedding_policy(**members: Any) -> Json:
    return policy_document(
        **{"model": {"name": MODEL, "task": "Embed"}, "engine": ENGINE, **members}
    )


@pytest.fixture
async def pooling(start_engine: StartEngine, tmp_path: Path) -> AsyncIterator[SidecarUnderTest]:
    """Before a fake engine that pools 64 tokens a step."""
    engine = await start_engine(
        "--runner", "pooling", "--fake-embedding-dimensions", "2",
        "--max-num-batched-tokens", "64", "--max-num-seqs", "8",
    )  # fmt: skip
    async with sidecar_under_test(tmp_path, engine, policy=embedding_policy()) as sidecar:
        yield sidecar


DOCUMENTS = [f"document {'x' * (n % 37)} {n}" for n in range(50)]


@pytest.mark.parametrize(
    ("path", "members", "list_name"),
    [
        ("/v1/embeddings", {"input": DOCUMENTS}, "data"),
        ("/v1/embeddings", {"input": DOCUMENTS, "encoding_format": "base64"}, "data"),
        ("/v1/embeddings", {"input": [[n, n + 1, 7] for n in range(50)]}, "data"),
        ("/v1/rerank", {"query": "what?", "documents": DOCUMENTS}, "results"),
        ("/v1/rerank", {"query": "what?", "documents": DOCUMENTS, "top_n": 7}, "results"),
        ("/v1/score", {"text_1": "what?", "text_2": DOCUMENTS}, "data"),
        ("/v1/score", {"queries": DOCUMENTS[::-1], "documents": DOCUMENTS}, "data"),
    ],
    ids=["texts", "base64", "tokens", "rerank", "top n", "score", "pairs"],
)
async def test_the_joined_answer_is_the_engines_own(
    pooling: SidecarUnderTest, path: str, members: Json, list_name: str
) -> None:
    body = {"model": MODEL, "user": "ü", **members}
    status, ours = await post(pooling, path, body)
    own = await plain(pooling, path, {"model": MODEL, **members})
    assert status == 200
    assert ours[list_name] == own[list_name]
    assert ours["usage"] == own["usage"]
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in own.items()
    }
    await pooling.settled()
    assert pooling.outcomes(ALICE) == {"completed": 1}
    assert served_tokens(pooling) == own["usage"]["total_tokens"]


async def test_singles_do_not_wait_for_another_tenants_10000_documents(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    """A part is a batch: a single text goes after those in the engine, not after 10,000."""
    engine = await start_engine(
        "--runner", "pooling", "--fake-embedding-dimensions", "1",
        "--max-num-batched-tokens", "256", "--max-num-seqs", "64",
    )  # fmt: skip
    limits = {"max_num_batched_tokens": 256, "max_num_seqs": 64}
    documents = [f"text number {n:05}" for n in range(10_000)]
    body = {"model": MODEL, "input": documents}
    async with sidecar_under_test(
        tmp_path, engine, policy=embedding_policy(engine=limits)
    ) as sidecar:
        scheduler = sidecar.runtime.dispatcher.scheduler
        assert scheduler is not None
        array = asyncio.create_task(post(sidecar, "/v1/embeddings", body))
        await until(lambda: scheduler.queued() > 100, 30.0)
        passed = []
        for n in range(5):
            before = scheduler.queued()
            single = {"model": MODEL, "input": f"single {n}"}
            assert (await post(sidecar, "/v1/embeddings", single, BOB))[0] == 200
            passed.append(before - scheduler.queued())
        assert not array.done()
        # Parts that went meanwhile: what was in the engine, two batches at most, and what followed.
        assert max(passed) <= 8, passed
        status, ours = await array
        assert status == 200
        assert [row["index"] for row in ours["data"]] == list(range(10_000))
        await sidecar.settled()
        assert sidecar.outcomes() == {"completed": 6}


def part_answer(request_body: Json, tokens: int = 5) -> Json:
    rows = [
        {"object": "embedding", "index": index, "embedding": [0.5]}
        for index in range(len(request_body["input"]))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": rows, "model": MODEL, "usage": usage}


@pytest.mark.parametrize(
    ("failing", "status", "outcome"),
    [
        (answered(500, {"error": {"message": "boom"}}), 502, "engine_failed"),
        (answered(400, {"error": {"message": "too long"}}), 400, "malformed"),
        (answered(429, {}, {"Retry-After": "7"}), 429, "engine_refused"),
        (answered(503, {}), 502, "engine_failed"),
        (answered(200, {"data": []}), 502, "engine_failed"),
        (answered(200, b"no json"), 502, "engine_failed"),
        (raw(head(200, {"Content-Length": "100"}) + b"{"), 502, "engine_failed"),
    ],
    ids=["500", "400", "429", "503", "entries missing", "no json", "broken"],
)
async def test_a_part_that_fails_fails_the_whole_and_only_what_was_done_is_billed(
    start_sidecar: StartSidecar, engine: FaultyEngine, failing: Any, status: int, outcome: str
) -> None:
    sidecar = await start_sidecar(policy=embedding_policy())

    async def script(connection: Any) -> None:
        number = len(engine.requests)
        body = engine.requests[-1].json()
        await (failing if number == 3 else answered(200, part_answer(body)))(connection)

    engine.script = script
    body = {"model": MODEL, "input": DOCUMENTS}
    async with sidecar.request("/v1/embeddings", body) as answer:
        assert (answer.status, (await answer.json())["error"]["type"] != "") == (status, True)
        if status == 429:
            assert answer.headers["Retry-After"] == "7"
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {outcome: 1}
    sent = len(engine.requests)
    assert sent < 10  # the others were not sent any more
    # 5 for each part that was answered before, and nothing by estimate
    assert served_tokens(sidecar) in range(0, 5 * sent, 5)
    engine.script = None
    assert (await post(sidecar, "/v1/embeddings", {"model": MODEL, "input": "one"}, BOB))[0] == 200


async def test_a_client_that_leaves_ends_all_parts(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=embedding_policy())

    async def never(connection: Any) -> None:
        await connection.write(head(200, {"Content-Length": "10"}))
        await connection.closed_by_peer()

    engine.script = never
    body = {"model": MODEL, "input": DOCUMENTS}
    asking = asyncio.create_task(post(sidecar, "/v1/embeddings", body))
    await until(lambda: engine.busy >= 2)
    asking.cancel()
    await until(lambda: not engine.busy, 5.0)
    await sidecar.settled()
    assert sidecar.outcomes(ALICE) == {"client_closed": 1}


@pytest.mark.parametrize("ended_by", ["drained tenant", "drain of the sidecar", "its own wait"])
async def test_parts_that_lose_their_place_end_the_whole_once(
    start_sidecar: StartSidecar, engine: FaultyEngine, ended_by: str
) -> None:
    tier = {"max_in_flight": 1, "queue": {"max_wait_seconds": 0.2}}
    if ended_by != "its own wait":
        del tier["queue"]
    policy = embedding_policy(tier=tier)
    sidecar = await start_sidecar(policy=policy, drain_seconds=0.1, grace_seconds=0.5)
    engine.script = stall
    body = {"model": MODEL, "input": DOCUMENTS}
    first = asyncio.create_task(post(sidecar, "/v1/embeddings", body))
    await until(lambda: engine.busy == 1)
    second = asyncio.create_task(post(sidecar, "/v1/embeddings", body))
    in_parts = sidecar.runtime.dispatcher.in_hand
    if ended_by != "its own wait":
        await until(lambda: sidecar.runtime.dispatcher.in_hand == 2 * in_parts)
    if ended_by == "drained tenant":
        policy["tenants"][0]["stop"] = "HoldAndDrain"
        bundle = {"policy": {**policy, "generation": 2}, "keys": keys_document(2)}
        sidecar.runtime.apply(loads(Bundle, json.dumps(bundle)))
        expected = {"held": 2}  # the first, too, has parts that wait
    elif ended_by == "drain of the sidecar":
        draining = asyncio.create_task(sidecar.sidecar.drain())
        expected = {"draining": 1, "engine_failed": 1}  # the first has begun, and is cut off
    else:
        expected = {
            "queue_wait_exceeded": 1,
            "client_closed": 1,
        }  # one begun waits as long as needed
    status, told = await second
    assert status in (503, 504)
    assert told["error"]["type"] in ("server_error", "timeout_error")
    if ended_by == "its own wait":
        assert not first.done()
        first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    if ended_by == "drain of the sidecar":
        await draining
    await until(lambda: not engine.busy, 5.0)
    await sidecar.settled()
    await until(lambda: sidecar.outcomes(ALICE) == expected, 5.0)


async def test_parts_that_fail_at_once_have_one_outcome(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    policy = embedding_policy(tier={"max_in_flight": 1})
    sidecar = await start_sidecar(policy=policy)
    engine.script = stall
    asking = asyncio.create_task(
        post(sidecar, "/v1/embeddings", {"model": MODEL, "input": DOCUMENTS})
    )
    await until(lambda: engine.busy == 1)
    sidecar.runtime.dispatcher.refuse_queued(Outcome.DRAINING)
    sidecar.runtime.engine.abort_exchanges()
    assert (await asking)[0] == 503
    await sidecar.settled()  # its record, too, says the same
    assert sidecar.outcomes(ALICE) == {"draining": 1}


async def test_limits_take_a_list_as_one_request_or_refuse_all_of_it(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    limit = {"name": "minute", "per": "Minute", "requests": 2, "tokens": 500}
    policy = embedding_policy(tier={"rate_limits": [limit]})
    sidecar = await start_sidecar(policy=policy)

    async def script(connection: Any) -> None:
        body = engine.requests[-1].json()
        await answered(200, part_answer(body, tokens=10))(connection)

    engine.script = script
    body = {"model": MODEL, "input": DOCUMENTS}
    status, _ = await post(sidecar, "/v1/embeddings", body)
    parts = len(engine.requests)
    assert (status, parts > 5) == (200, True)
    async with sidecar.request("/v1/embeddings", {"model": MODEL, "input": "one"}) as answer:
        assert answer.status == 200
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    status, refused = await post(sidecar, "/v1/embeddings", body)
    assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
    assert len(engine.requests) == parts + 1
    huge = {"model": MODEL, "input": DOCUMENTS * 4}
    status, refused = await post(sidecar, "/v1/embeddings", huge, BOB)
    assert (status, refused["error"]["code"]) == (413, "request_exceeds_limit")
    assert sidecar.outcomes() == {"completed": 2, "rate_limited": 1, "request_exceeds_limit": 1}
