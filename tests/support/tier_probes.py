"""What a tenant can find out about its tier from its own requests: each probe sends a few, and
returns what became of them.

A tenant ``plain`` of a tier without limits takes the engine's seats where a probe needs them taken;
``high`` is of a tier above that of the tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.pool_calls import PoolCalls

SEATS = 4
"""Of the engine."""
ENGINE: dict[str, Any] = {
    "engine_args": [f"--max-num-seqs={SEATS}", "--num-gpu-blocks-override=4096"],
    "engine_env": {"TIDEGATE_FAKE_IGNORE_EOS": "1", "TIDEGATE_FAKE_TIME_SCALE": "8"},
}
"""Of the scenes that are asked: 4,095 blocks of 16 tokens, and answers as long as they are asked
for, in slow steps."""
Probe = Callable[[PoolCalls, str], Awaitable[Any]]
"""Of the tenant of that name."""
Size = tuple[int, int]
"""Tokens of prompt and output."""


def codes(*sizes: Size) -> Probe:
    """The error of each of these requests, one after the other; None: it was served."""

    async def probe(calls: PoolCalls, tenant: str) -> list[str | None]:
        return await calls.codes(tenant, *sizes)

    return probe


def codes_at_once(count: int, *size: int) -> Probe:
    """The errors of so many requests at once, each error once; None: some were served."""

    async def probe(calls: PoolCalls, tenant: str) -> set[str | None]:
        return {sent.code for sent in await calls.burst(tenant, count, *size)}

    return probe


def most_in_engine(*size: int) -> Probe:
    """How many are in the engine at once, of as many as it has seats."""

    async def probe(calls: PoolCalls, tenant: str) -> int:
        sent = await calls.burst(tenant, SEATS, *size)
        assert all(one.complete for one in sent)
        running = most = 0
        for event in await calls.events({one.request_id for one in sent}, "arrived", "finished"):
            running += 1 if event["event"] == "arrived" else -1
            most = max(most, running)
        return most

    return probe


async def unnamed_output_tokens(calls: PoolCalls, tenant: str) -> int:
    """Asked of the engine for a request that names no number."""
    await calls.one(tenant, 8, 1)  # which no other's wait is to be told by
    async with (await calls.client(tenant)).streaming(8, None) as answer:
        (event,) = await calls.events([answer.headers["x-request-id"]], "arrived")
    return int(event["output_tokens_target"])


async def times_taken_off(calls: PoolCalls, tenant: str) -> int:
    """How often the one request that can make room does, where two of a higher tier come."""
    before = await calls.preemptions(tenant)
    async with calls.occupied("plain", SEATS - 1):
        task = asyncio.create_task(calls.one(tenant, 20, 120))
        await calls.until_load(lambda _, running: running == SEATS)
        await calls.codes("high", (20, 2), (20, 2))
        await task
    return await calls.preemptions(tenant) - before


async def long_one_is_last(calls: PoolCalls, tenant: str) -> bool:
    """Whether two short prompts go before a long one that came first; one may be in flight."""
    async with calls.occupied(tenant, 1):
        tasks = [asyncio.create_task(calls.one(tenant, 100, 1))]
        await calls.until_in_hand(2)
        tasks += [asyncio.create_task(calls.one(tenant, 8, 1)) for _ in range(2)]
        await calls.until_in_hand(4)
    sent = await asyncio.gather(*tasks)
    return (await calls.order(sent))[-1] == sent[0].request_id


async def refused_for_seconds(calls: PoolCalls, tenant: str) -> int:
    """The Retry-After of the first of three that is refused: a day may end between two."""
    for _ in range(3):
        sent = await calls.one(tenant, 8, 1)
        if sent.retry_after_seconds is not None:
            return sent.retry_after_seconds
    raise AssertionError("none was refused")


async def who_goes_first(calls: PoolCalls, early: str, late: str) -> str:
    """Of two tenants that both wait, of whom one came before the other."""
    each = 2 * SEATS
    tasks = []
    async with calls.occupied("plain", SEATS):
        for name in (early, late):
            tasks += [asyncio.create_task(calls.one(name, 8, 2)) for _ in range(each)]
            await calls.until_in_hand(SEATS + len(tasks))
    sent = await asyncio.gather(*tasks)
    order = await calls.order(sent)
    places = [order.index(str(one.request_id)) for one in sent]
    return early if sum(places[:each]) < sum(places[each:]) else late
