"""Asking a Prometheus: any server may stand at the address that a pool names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tidegate_operator.autoscale.prometheus import Told, ask
from tidegate_operator.prometheus_query import MAX_ANSWER_BYTES

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

PAID = TierPolicy("paid", slo_objectives=(SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.0),))
NOW = 1000.0


def answer(*samples: Any) -> bytes:
    return json.dumps({"data": {"resultType": "vector", "result": samples}}).encode()


def sample(query: str, value: Any = "0.02") -> Any:
    labels = {"tier": "paid", "objective": "TimeToFirstToken"}
    return {"metric": labels, "value": [NOW, NOW if query.startswith("timestamp(") else value]}


async def told(pieces: Any) -> Told:
    """What is made of an answer that comes in these pieces; ``pieces`` is given the query."""

    async def respond(request: web.Request) -> web.StreamResponse:
        assert request.path == "/base/api/v1/query"
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces(request.query["query"]):
            await response.write(piece)
            await asyncio.sleep(0.01)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            return await ask(session, f"http://{host}:{port}/base/", "acme/chat", [PAID], NOW)
    finally:
        await runner.cleanup()


async def test_an_answer_that_comes_in_pieces_is_read_whole() -> None:
    def pieces(query: str) -> list[bytes]:
        whole = answer() if query.startswith("ALERTS") else answer(sample(query))
        return [whole[:20], whole[20:60], whole[60:]]

    found = await told(pieces)
    assert not isinstance(found.burns, str), found.burns
    assert found.burns[0].short == pytest.approx(2.0)
    assert found.alerts == []


async def test_an_address_that_is_none_is_said_too() -> None:
    async with aiohttp.ClientSession() as session:
        found = await ask(session, f"http://{'a' * 300}:9090", "acme/chat", [PAID], NOW)
    assert "does not answer" in str(found.burns)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([b"[" * 100_000], "not its API's JSON"),
        ([answer({"metric": {"tier": "paid"}, "value": [NOW, "many"]})], "not its API's JSON"),
        ([answer({"metric": {}, "value": [NOW, 10**400]})], "not its API's JSON"),
        ([answer({"metric": {}, "value": []})], "not its API's JSON"),
        ([answer({"metric": ["tier"], "value": [NOW, "1"]})], "not its API's JSON"),
        ([answer({"metric": {"tier": {}}, "value": [NOW, "1"]})], "has no series"),
        ([b" " * 65_536] * (MAX_ANSWER_BYTES // 65_536 + 1), "too much"),
    ],
    ids=["deep", "no number", "no float", "no value", "no labels", "odd labels", "large"],
)
async def test_what_is_no_answer_is_said_and_never_raised(pieces: list[bytes], why: str) -> None:
    found = await told(lambda _: pieces)
    assert isinstance(found.burns, str)
    assert why in found.burns
    assert found.alerts == found.burns
