"""The elector against an API server that fails in every way."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from tidegate_operator.kinds import Kind
from tidegate_operator.kube import Conflict, Json, Unavailable
from tidegate_operator.lease import Elector, LeadershipLost, LeaseTiming

TIMING = LeaseTiming(duration=10.0, renew_deadline=6.0, retry=0.001)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Leases:
    """One Lease, guarded by resourceVersion as the API server does it."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.error: BaseException | None = None
        self.hang = False
        self.requests = 0

    async def _step(self) -> None:
        self.requests += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.error:
            raise self.error

    async def get(self, kind: Kind, name: str, namespace: str) -> Json | None:
        await self._step()
        return copy.deepcopy(self.lease)

    async def create(self, kind: Kind, body: Json) -> Json:
        await self._step()
        if self.lease is not None:
            raise Conflict("exists")
        return self._store(body)

    async def replace(self, kind: Kind, body: Json) -> Json:
        await self._step()
        if body["metadata"].get("resourceVersion") != str(self.version):
            raise Conflict("stale")
        return self._store(body)

    def _store(self, body: Json) -> Json:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def elector(leases: Any, identity: str, clock: Clock) -> Elector:
    return Elector(leases, "operator", "system", identity, TIMING, clock)


async def within(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 10)


async def passes(check: Any) -> None:
    async with asyncio.timeout(10):
        while True:
            if check():
                return
            await asyncio.sleep(0.001)


async def test_the_second_waits_until_the_first_was_silent_for_the_duration() -> None:
    leases, clock = Leases(), Clock()
    first, second = elector(leases, "a", clock), elector(leases, "b", clock)
    await within(first.acquire())
    waiting = asyncio.create_task(second.acquire())
    await passes(lambda: leases.requests > 5)
    clock.now += 9.9
    seen = leases.requests
    await passes(lambda: leases.requests > seen + 3)
    assert not waiting.done()
    assert leases.holder == "a"
    clock.now += 0.2
    await within(waiting)
    assert leases.holder == "b"
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1


async def test_a_renewal_starts_the_wait_anew() -> None:
    leases, clock = Leases(), Clock()
    first, second = elector(leases, "a", clock), elector(leases, "b", clock)
    await within(first.acquire())
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    for _ in range(10):
        clock.now += 5.0
        seen = leases.version
        await passes(lambda seen=seen: leases.version > seen + 2)
    assert not waiting.done()
    for task in (holding, waiting):
        task.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


@pytest.mark.parametrize("error", [Unavailable("down"), RuntimeError("bug"), ValueError("odd")])
async def test_any_failure_is_a_failed_renewal_until_the_deadline(error: Exception) -> None:
    leases, clock = Leases(), Clock()
    holder = elector(leases, "a", clock)
    await within(holder.acquire())
    holding = asyncio.create_task(holder.hold())
    await passes(lambda: leases.version > 3)
    leases.error = error
    seen = leases.requests
    await passes(lambda: leases.requests > seen + 3)
    assert not holding.done()
    clock.now += 6.1
    with pytest.raises(LeadershipLost):
        await within(holding)


async def test_a_server_that_never_answers_is_a_failed_renewal() -> None:
    leases, clock = Leases(), Clock()
    holder = elector(leases, "a", clock)
    await within(holder.acquire())
    leases.hang = True
    holding = asyncio.create_task(holder.hold())
    await passes(lambda: leases.requests > 2)
    clock.now += 6.1
    with pytest.raises(LeadershipLost):
        await within(holding)


def test_a_slow_server_loses_nobody_the_lease_and_a_silent_one_leaves_time_to_ask_again() -> None:
    timing = LeaseTiming(duration=15.0, renew_deadline=10.0, retry=2.0)
    assert timing.attempt > 2 * timing.retry
    assert 2 * timing.attempt <= timing.renew_deadline


async def test_a_holder_that_sees_another_name_stops_at_once() -> None:
    leases, clock = Leases(), Clock()
    holder, thief = elector(leases, "a", clock), elector(leases, "b", clock)
    await within(holder.acquire())
    taking = asyncio.create_task(thief.acquire())
    await passes(lambda: leases.requests > 4)
    clock.now += 11
    await within(taking)
    with pytest.raises(LeadershipLost, match="another"):
        await within(holder.hold())


async def test_a_released_lease_is_free_at_once() -> None:
    leases, clock = Leases(), Clock()
    first, second = elector(leases, "a", clock), elector(leases, "b", clock)
    await within(first.acquire())
    await first.release()
    assert leases.holder == ""
    await within(second.acquire())
    assert leases.holder == "b"


async def test_a_holder_knows_that_it_lost_before_another_may_take_over() -> None:
    """At the worst: the last renewal took its time, and then the server answers no more."""
    leases = Leases()
    timing = LeaseTiming(duration=1.0, renew_deadline=0.5, retry=0.2)
    holder = Elector(leases, "operator", "system", "a", timing)  # type: ignore[arg-type]
    await within(holder.acquire())
    loop = asyncio.get_running_loop()
    renewed_at = loop.time()
    leases.hang = True
    with pytest.raises(LeadershipLost):
        await within(holder.hold())
    # An attempt may take a second by itself.
    assert loop.time() - renewed_at < 0.9


async def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    """Another sees the write before the holder has the answer."""
    leases, clock = Leases(), Clock()
    holder = elector(leases, "a", clock)
    await within(holder.acquire())
    store = leases._store

    def slow(body: Json) -> Json:
        stored = store(body)
        clock.now += 5.9
        leases.error = Unavailable("down from now on")
        return stored

    leases._store = slow  # type: ignore[method-assign]
    holding = asyncio.create_task(holder.hold())
    await passes(lambda: leases.error)
    clock.now += 0.2
    with pytest.raises(LeadershipLost):
        await within(holding)
