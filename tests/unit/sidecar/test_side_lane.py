"""Turns beside the scheduler: bounded, fair between tenants, none lost."""

from __future__ import annotations

import asyncio

import pytest
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.side_lane import MOST_AT_ONCE, MOST_WAITING, SideLane


async def hold(lane: SideLane, tenant: str, order: list[str], until: asyncio.Event) -> None:
    async with lane.turn(tenant):
        order.append(tenant)
        await until.wait()


async def test_tenants_take_turns_and_a_cancelled_turn_is_passed_on() -> None:
    lane, order, done = SideLane(), list[str](), asyncio.Event()
    first = [asyncio.create_task(hold(lane, "a", order, done)) for _ in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    rest = [asyncio.create_task(hold(lane, tenant, order, done)) for tenant in "aaabbc"]
    await asyncio.sleep(0)
    assert lane.in_hand == MOST_AT_ONCE + 6
    first[0].cancel()
    first[1].cancel()
    await asyncio.sleep(0)  # their turns are given away, and the first taker leaves at once
    rest[0].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order[MOST_AT_ONCE:] == ["b", "c"]
    done.set()
    await asyncio.gather(*first, *rest, return_exceptions=True)
    assert order[MOST_AT_ONCE:] == ["b", "c", "a", "b", "a"]
    assert lane.in_hand == 0


async def test_a_tenant_with_too_many_is_refused_and_others_are_not() -> None:
    lane, order, done = SideLane(), list[str](), asyncio.Event()
    tasks = [
        asyncio.create_task(hold(lane, "a", order, done))
        for _ in range(MOST_AT_ONCE + MOST_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        await lane.turn("a").__aenter__()
    other = asyncio.create_task(hold(lane, "b", order, done))
    await asyncio.sleep(0)
    assert lane.in_hand == MOST_AT_ONCE + MOST_WAITING + 1
    for task in (*tasks, other):
        task.cancel()
    await asyncio.gather(*tasks, other, return_exceptions=True)
    assert lane.in_hand == 0
