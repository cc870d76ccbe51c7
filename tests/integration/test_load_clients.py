"""What the clients of a built-in workload send over HTTP: also because of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidegate.load import LoadRun, SampleState
from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    BuiltInWorkload,
    Scenario,
    TenantLoad,
)
from tidegate.workload import PlannedRequest, Workload
from tidegate.workload import clients as workloads
from tidegate.workload.clients.built_in import BUILT_IN

pytestmark = pytest.mark.integration

LAST_INDEX = 7


@dataclass
class Turns:
    """A request of each tenant at once, and so many more, each when the last has ended."""

    name: str = "turns"
    tier: str = "t0"
    kind: str = "chat"
    tenants: tuple[str, ...] = ("a", "b")
    told: list[tuple[int, bool]] = field(default_factory=list)

    def arrivals(self) -> Iterator[PlannedRequest]:
        for index, tenant in enumerate(self.tenants):
            yield PlannedRequest(tenant, index, 0.0, 8, 2)

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        self.told.append((request.index, completed))
        following = request.index + len(self.tenants)
        if following > LAST_INDEX:
            return None
        return PlannedRequest(request.tenant, following, ended_at, 8 + following, 2)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """The only client of the built-in workload ``poison``."""
    client = Turns()
    work = workloads.Workload("turns", ("t0",), (client,))
    monkeypatch.setitem(BUILT_IN, BuiltInWorkload.POISON, lambda seed: work)
    return client


def run_of(url: str, *tenants: str, duration_seconds: float) -> LoadRun:
    arrival = Arrival(ArrivalProcess.BUILT_IN, workload=BuiltInWorkload.POISON)
    rows = tuple(TenantLoad(name, arrival, stream=False) for name in tenants)
    keys = {name: f"key-{name}" for name in tenants}
    scenario = Scenario(SCENARIO_VERSION, "s", "m", duration_seconds, rows, drain_seconds=30.0)
    return LoadRun(Workload(scenario), url, keys)


@asynccontextmanager
async def server(status: int, *seen: list[str]) -> AsyncIterator[str]:
    """Answers so, and notes whose key each request had."""

    async def handler(request: web.Request) -> web.Response:
        for keys in seen:
            keys.append(request.headers["Authorization"])
        usage = {"prompt_tokens": 8, "completion_tokens": 2}
        headers = {"Retry-After": "7"} if status == 429 else {}
        return web.json_response({"usage": usage}, status=status, headers=headers)

    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/")


async def test_an_answer_brings_the_next_request_of_its_client_once(turns: Turns) -> None:
    seen: list[str] = []
    async with server(200, seen) as url:
        run = run_of(url, "a", "b", duration_seconds=60.0)
        await run.run()
    assert sorted(turns.told) == [(index, True) for index in range(LAST_INDEX + 1)]
    by_index = {sample.index: sample for sample in run.samples}
    assert len(by_index) == len(run.samples) == LAST_INDEX + 1
    for index in range(LAST_INDEX - 1):
        before, after = by_index[index], by_index[index + 2]
        assert before.tenant == after.tenant == "ab"[index % 2]
        assert before.state is after.state is SampleState.OK
        assert before.ended is not None
        assert after.sent is not None
        assert after.sent >= before.ended
    assert sorted(seen) == ["Bearer key-a"] * 4 + ["Bearer key-b"] * 4


async def test_a_refused_one_waits_as_it_was_told(turns: Turns) -> None:
    async with server(429) as url:
        run = run_of(url, "a", "b", duration_seconds=5.0)
        await run.run()
    assert sorted(turns.told) == [(0, False), (1, False)]
    assert [sample.state for sample in run.samples] == [SampleState.REFUSED] * 2
    assert run.complete


async def test_a_tenant_that_is_not_listed_sends_nothing(turns: Turns) -> None:
    async with server(200) as url:
        run = run_of(url, "b", duration_seconds=60.0)
        await run.run()
    assert {sample.tenant for sample in run.samples} == {"b"}
    assert [index for index, _ in turns.told] == [1, 3, 5, 7]
