"""O7 and O15: refusals under contention, with a Retry-After that holds; bounds of the queue."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import FaultyEngine, answer_well
from support.faulty_upstream import Connection, answer, stall
from support.sidecar import (
    ALICE,
    BOB,
    SidecarUnderTest,
    chat_body,
    policy_document,
)

from tidegate.scheduling.contracts import Policy, loads
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.scheduler import Scheduler

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


class Hold:
    """Answers well, once let go."""

    def __init__(self, engine: FaultyEngine) -> None:
        self.go = asyncio.Event()
        self._engine = engine

    async def __call__(self, connection: Connection) -> None:
        request = self._engine.requests[-1]
        await self.go.wait()
        await answer_well(request)(connection)


def tier(**queue: Any) -> dict[str, Any]:
    return policy_document(tier={"max_in_flight": 1, "queue": queue})


async def send(sidecar: SidecarUnderTest, size: int = 0, **options: Any) -> asyncio.Task[int]:
    """Start a request; returns when the sidecar has it or has refused it."""
    dispatcher = sidecar.runtime.dispatcher
    before, ended = dispatcher.in_hand, sum(sidecar.outcomes().values())

    async def status() -> int:
        body = chat_body(user="u" * size)
        async with sidecar.request(body=body, **options) as response:
            await response.read()
            return int(response.status)

    task = asyncio.create_task(status())
    await until(lambda: dispatcher.in_hand > before or sum(sidecar.outcomes().values()) > ended)
    return task


async def test_o7_and_o15_the_queue_holds_so_many_requests(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_requests=10))
    hold = engine.script = Hold(engine)
    accepted = [await send(sidecar) for _ in range(11)]  # one in the engine, ten queued
    async with sidecar.chat() as response:
        assert response.status == 429
        error = (await response.json())["error"]
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert response.headers["Retry-After"].isdecimal()
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["x-tidegate-dropped-reason"] == "rejected-queue-full"
    async with asyncio.timeout(5):
        other = await send(sidecar, tenant=BOB)
    hold.go.set()
    assert await asyncio.gather(*accepted, other) == [200] * 12
    assert sidecar.outcomes(ALICE) == {"completed": 11, "queue_full": 1}


async def test_o7_a_retry_after_it_succeeds(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_requests=1))

    async def slowly(connection: Connection) -> None:
        request = engine.requests[-1]
        await asyncio.sleep(0.3)
        await answer_well(request)(connection)

    engine.script = slowly
    for _ in range(3):  # the rate at which its queue drains is measured
        assert await (await send(sidecar)) == 200
    hold = engine.script = Hold(engine)
    accepted = [await send(sidecar), await send(sidecar)]
    async with sidecar.chat() as response:
        assert response.status == 429
        retry_after = int(response.headers["Retry-After"])
    assert retry_after <= 3
    hold.go.set()
    await asyncio.sleep(retry_after)
    assert await (await send(sidecar)) == 200
    assert await asyncio.gather(*accepted) == [200, 200]


@pytest.mark.parametrize(
    ("status", "value", "expected", "code"),
    [
        (429, "7", "7", "engine_overloaded"),
        (429, None, "1", "engine_overloaded"),
        (429, "0", "1", "engine_overloaded"),
        (429, "-5", "1", "engine_overloaded"),
        (503, "1.5", "1", "no_engine"),
        (503, "soon", "1", "no_engine"),
        (
            429,
            "Wed, 21 Oct 2026 07:28:00 GMT",
            "Wed, 21 Oct 2026 07:28:00 GMT",
            "engine_overloaded",
        ),
        (503, "9", "9", "no_engine"),
    ],
)
async def test_o7_the_engines_own_refusal_is_passed_on(
    sidecar: SidecarUnderTest,
    engine: FaultyEngine,
    status: int,
    value: str | None,
    expected: str,
    code: str,
) -> None:
    headers = {} if value is None else {"Retry-After": value}
    engine.script = answer(status, {"error": {"message": "busy"}}, headers)
    async with sidecar.chat() as response:
        assert response.status == status
        assert response.headers["Retry-After"] == expected
        assert (await response.json())["error"]["code"] == code


async def test_o15_bytes_are_bounded_and_given_back(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_bytes=1_000_000))
    hold = engine.script = Hold(engine)
    running = await send(sidecar)
    queued = [await send(sidecar, 400_000), await send(sidecar, 400_000)]
    assert await (await send(sidecar, 400_000)) == 429
    assert queued_bytes(sidecar) > 800_000
    queued[0].cancel()
    await asyncio.gather(queued[0], return_exceptions=True)
    await until(lambda: queued_bytes(sidecar) < 500_000)
    again = await send(sidecar, 400_000)
    assert await (await send(sidecar, 400_000)) == 429
    other = await send(sidecar, 400_000, tenant=BOB)
    hold.go.set()
    assert await asyncio.gather(running, queued[1], again, other) == [200] * 4
    await sidecar.settled()  # bytes are 0 again


async def test_a_body_larger_than_the_whole_queue_is_413(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_bytes=1_000))
    assert await (await send(sidecar, 2_000)) == 413


async def test_the_longest_wait_ends_with_504(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_wait_seconds=0.2))
    hold = engine.script = Hold(engine)
    first = await send(sidecar)
    async with sidecar.chat() as response:
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "queue_wait_exceeded"
        assert response.headers["x-tidegate-dropped-reason"] == "rejected-queue-wait"
    hold.go.set()
    assert await first == 200


async def test_a_shorter_wait_holds_for_who_waits_already(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier(max_wait_seconds=600))
    hold = engine.script = Hold(engine)
    first, second = await send(sidecar), await send(sidecar)
    runtime = sidecar.runtime
    assert runtime.in_force is not None
    bundle = runtime.in_force.bundle
    shorter = loads(Policy, json.dumps(tier(max_wait_seconds=0.2) | {"generation": 2}))
    keys = replace(bundle.keys, generation=2)
    assert runtime.apply(replace(bundle, policy=shorter, keys=keys))
    assert await asyncio.wait_for(second, 10) == 504
    hold.go.set()
    assert await first == 200


async def test_a_deadline_that_passes_in_the_queue_ends_with_504(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier())
    hold = engine.script = Hold(engine)
    first = await send(sidecar)
    async with sidecar.chat(headers={"x-tidegate-deadline-ms": "150"}) as response:
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "deadline_exceeded"
    hold.go.set()
    assert await first == 200


async def test_each_leaves_the_queue_once_with_the_time_that_it_waited(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier())
    hold = engine.script = Hold(engine)
    first, gone = await send(sidecar), await send(sidecar)
    row = sidecar.runtime.tally.tiers["standard"]
    gone.cancel()
    await until(lambda: sidecar.outcomes(ALICE) == {"client_closed": 1})
    late = await send(sidecar, headers={"x-tidegate-deadline-ms": "150"})
    assert await late == 504
    drained = await send(sidecar)
    assert sidecar.runtime.dispatcher.refuse_queued(Outcome.DRAINING) == 1
    assert await drained == 503
    hold.go.set()
    assert await first == 200
    counts = {end: sum(counter.counts) for end, counter in row.waits_ended.items()}
    assert counts == {
        Outcome.QUEUE_WAIT_EXCEEDED: 0,
        Outcome.DEADLINE_EXCEEDED: 1,
        Outcome.CLIENT_CLOSED: 1,
        None: 1,
    }
    assert sum(row.queue.counts) == 1
    assert 0.1 < row.waits_ended[Outcome.DEADLINE_EXCEEDED].sum < 10


async def test_own_priority_orders_ones_own_requests(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=tier())
    hold = engine.script = Hold(engine)
    tasks = [await send(sidecar, 1)]
    for size, priority in ((2, "0"), (3, "5"), (4, "-5")):
        tasks.append(await send(sidecar, size, headers={"x-tidegate-priority": priority}))
    hold.go.set()
    assert await asyncio.gather(*tasks) == [200] * 4
    assert [len(request.json()["user"]) for request in engine.requests] == [1, 3, 2, 4]


@pytest.mark.parametrize("name", ["x-tidegate-priority", "x-tidegate-deadline-ms"])
@pytest.mark.parametrize("value", ["", "x", "1.5", "99999999999999999999"])
async def test_a_header_that_is_no_number_is_named(
    sidecar: SidecarUnderTest, name: str, value: str
) -> None:
    async with sidecar.chat(headers={name: value}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == name


async def test_a_held_tenant_and_one_that_is_not_served(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    tenants = [{"name": BOB, "tier": "standard", "stop": "Hold"}]
    sidecar = await start_sidecar(policy=policy_document(tenants=tenants), check_other=False)
    async with sidecar.chat(tenant=BOB) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
    async with sidecar.chat(tenant=ALICE) as response:
        assert response.status == 403


async def test_embeddings_wait_for_tokens_in_flight(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    model = {"name": "test-model", "task": "Embed"}
    limits = {"max_num_batched_tokens": 100}
    sidecar = await start_sidecar(policy=policy_document(model=model, engine=limits))
    engine.script = stall
    body = {"model": "test-model", "input": [1] * 150}
    tasks = [asyncio.create_task(_embed(sidecar, body)) for _ in range(3)]
    await until(lambda: sidecar.runtime.dispatcher.in_hand == 3 and engine.busy == 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await sidecar.settled()
    engine.script = None
    assert await _embed(sidecar, body) == 200


async def _embed(sidecar: SidecarUnderTest, body: dict[str, Any]) -> int:
    async with sidecar.request("/v1/embeddings", body) as response:
        await response.read()
        return int(response.status)


def queued_bytes(sidecar: SidecarUnderTest) -> int:
    dispatcher = sidecar.runtime.dispatcher
    assert dispatcher.scheduler is not None
    snapshots = dispatcher.scheduler.tenant_snapshots(dispatcher.loop.time())
    return next(each.queued_bytes for each in snapshots if each.name == ALICE)


async def test_r5_an_expiry_that_is_due_at_once_bears_another(
    sidecar: SidecarUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due within half a millisecond has no timer of uvloop's, but a handle that knows no
    time: who came next was answered with 500, and stood in the queue with nobody to end it."""
    dispatcher = sidecar.runtime.dispatcher
    with monkeypatch.context() as due:
        due.setattr(Scheduler, "next_expiry", lambda _: dispatcher.loop.time())
        for _ in "12":
            dispatcher._arm_expiry()
    assert await _status(sidecar) == 200


async def test_what_fails_as_it_is_queued_leaves_nothing_behind(
    start_sidecar: StartSidecar, engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of ours costs one request an answer, not the pod a place for good."""
    sidecar = await start_sidecar()
    dispatcher = sidecar.runtime.dispatcher
    with monkeypatch.context() as broken:
        broken.setattr(dispatcher.recent, "dispatched", lambda *_: 1 / 0)
        assert await _status(sidecar) == 500
    await until(lambda: dispatcher.in_hand == 0)
    assert dispatcher.scheduler is not None
    assert (dispatcher.scheduler.queued(), dispatcher.scheduler.in_flight()) == (0, 0)
    assert await _status(sidecar) == 200


async def _status(sidecar: SidecarUnderTest, **options: Any) -> int:
    async with sidecar.chat(**options) as answer:
        await answer.read()
        return int(answer.status)
