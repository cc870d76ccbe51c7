"""Status writes: each object by itself, every kind its turn, and no failure for ever."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Any

import pytest
from support.custom_resources import pool, tenant, tier
from tidegate_operator import status_writer
from tidegate_operator.kinds import SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Conflict, Forbidden, Json, Unavailable
from tidegate_operator.metrics import Metrics
from tidegate_operator.status_writer import StatusWriter
from tidegate_operator.world import Key, key_of


class Here:
    """World, API server and source of states in one; ``failing`` keys fail in some way."""

    def __init__(self, *objects: tuple[Kind, Json]) -> None:
        self.kinds: dict[Kind, dict[Key, Json]] = {SERVING_POOL: {}, TENANT_TIER: {}, TENANT: {}}
        for kind, obj in objects:
            self.kinds[kind][key_of(obj)] = copy.deepcopy(obj)
        self.failing: dict[Key, Exception] = {}
        self.broken: set[Key] = set()
        self.written: list[Key] = []
        self.tried: list[Key] = []
        self.values: dict[Key, int] = {}
        self.news: list[str] = []
        """Names of the events that the source tells of."""
        self.created: list[str] = []

    def objects(self, kind: Kind) -> dict[Key, Json]:
        return self.kinds[kind]

    def put(self, kind: Kind, obj: Json) -> None:
        self.kinds[kind][key_of(obj)] = obj

    def mark(self, kind: Kind) -> None:
        raise AssertionError

    def state(self, kind: Kind, key: Key, obj: Json) -> Json | None:
        if key in self.broken:
            raise StopIteration
        return {"observedGeneration": self.values.get(key, 1)}

    def figures(self, kind: Kind, key: Key) -> Json | None:
        return None

    def events(self, kind: Kind, key: Key, obj: Json) -> list[Json]:
        return [{"metadata": {"name": name}} for name in self.news]

    async def create(self, kind: Kind, body: Json) -> Json:
        name = body["metadata"]["name"]
        if name in self.created:
            raise Conflict("it is there")
        self.created.append(name)
        return body

    async def patch_status(self, kind: Kind, owner: Json, status: Json) -> Json | None:
        await asyncio.sleep(0)
        self.tried.append(key_of(owner))
        if error := self.failing.get(key_of(owner)):
            raise error
        self.written.append(key_of(owner))
        return {**owner, "status": status}


def writer(here: Here, writes_per_second: float = 1e6) -> StatusWriter:
    return StatusWriter(
        here,  # type: ignore[arg-type]
        here,  # type: ignore[arg-type]
        here,
        Metrics(),
        writes_per_second=writes_per_second,
        figures_seconds={SERVING_POOL: 1.0, TENANT_TIER: 1.0, TENANT: 1.0},
    )


async def becomes(check: Any, what: str, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "RETRY_SECONDS", 0.02)


@pytest.mark.parametrize("error", [Forbidden("no right"), Unavailable("webhook is down")])
async def test_an_object_that_cannot_be_written_holds_up_no_other(error: Exception) -> None:
    """A pool in a namespace where the RoleBinding is missing."""
    here = Here((SERVING_POOL, pool()), (TENANT_TIER, tier("t0")), (TENANT, tenant("a")))
    here.failing["acme", "chat"] = error
    writing = writer(here)
    for kind, objects in here.kinds.items():
        for key in objects:
            writing.mark(kind, key)
    task = asyncio.create_task(writing.run())
    await becomes(lambda: {("", "t0"), ("acme", "a")} <= {*here.written}, "the others")
    here.failing.clear()
    await becomes(lambda: ("acme", "chat") in here.written, "tried again")
    task.cancel()


async def test_a_state_that_cannot_be_worked_out_ends_nothing() -> None:
    here = Here((SERVING_POOL, pool()), (TENANT, tenant("a")))
    here.broken.add(("acme", "chat"))
    writing = writer(here)
    writing.mark(SERVING_POOL, ("acme", "chat"))
    writing.mark(TENANT, ("acme", "a"))
    task = asyncio.create_task(writing.run())
    await becomes(lambda: ("acme", "a") in here.written, "the other")
    here.broken.clear()
    await becomes(lambda: ("acme", "chat") in here.written, "tried again")
    assert not task.done()
    task.cancel()


async def test_pools_that_always_have_news_leave_room_for_tenants() -> None:
    """More pools with figures than the operator may write a second."""
    pools = [(SERVING_POOL, pool(f"p{n}")) for n in range(4)]
    here = Here(*pools, (TENANT_TIER, tier("t0")), (TENANT, tenant("a")))
    writing = writer(here, writes_per_second=1000)
    task = asyncio.create_task(writing.run())

    def churn() -> bool:
        for kind, obj in pools:
            key = key_of(obj)
            here.values[key] = here.values.get(key, 1) + 1
            writing.mark(kind, key)
        return {("", "t0"), ("acme", "a")} <= {*here.written}

    writing.mark(TENANT_TIER, ("", "t0"))
    writing.mark(TENANT, ("acme", "a"))
    await becomes(churn, "the tier and the tenant")
    task.cancel()


async def test_what_no_status_tells_is_announced_once() -> None:
    """By one operator, and by the one that comes after it."""
    here = Here((SERVING_POOL, pool()), (TENANT, tenant("a")))
    key = key_of(pool())

    async def looks_again(writing: StatusWriter) -> None:
        """It has looked at the pool, once the tenant that was marked later is written."""
        here.values["acme", "a"] = here.values.get(("acme", "a"), 1) + 1
        here.written.clear()
        writing.mark(SERVING_POOL, key)
        writing.mark(TENANT, ("acme", "a"))
        await becomes(lambda: ("acme", "a") in here.written, "looked at")

    for _ in range(2):
        writing = writer(here)
        task = asyncio.create_task(writing.run())
        here.news = ["one"]
        await looks_again(writing)
        await looks_again(writing)
        here.news = ["one", "two"]
        await looks_again(writing)
        task.cancel()
        assert here.created == ["one", "two"]
    assert (here.kinds[SERVING_POOL][key]["status"], here.tried.count(key)) == (
        {"observedGeneration": 1},
        1,
    )
