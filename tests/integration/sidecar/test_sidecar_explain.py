"""`GET /explain/...`: why a request waits, waited or was refused, as the admin port tells it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.fake_engine import until
from support.faulty_engine import FaultyEngine, answer_well
from support.faulty_upstream import Connection
from support.sidecar import ALICE, BOB, SidecarUnderTest, keys_document, policy_document, speak

from tidegate.scheduling.contracts import (
    Bundle,
    Hold,
    PromiseKept,
    RequestExplanation,
    RequestState,
    TenantExplanation,
    loads,
)

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


async def ask(sidecar: SidecarUnderTest, path: str) -> Any:
    async with sidecar.client.get(f"{sidecar.admin_url}/explain/{path}") as answer:
        if answer.status != 200:
            return answer.status
        kind = TenantExplanation if path.startswith("tenants") else RequestExplanation
        return loads(kind, await answer.read())


async def test_a_request_from_its_queue_to_its_end(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    sidecar = await start_sidecar(policy=policy_document(tier={"max_in_flight": 1}))
    release = asyncio.Event()

    async def hold(connection: Connection) -> None:
        await release.wait()
        await answer_well(engine.requests[-1])(connection)

    engine.script = hold
    first = asyncio.create_task(speak(sidecar))
    await until(lambda: engine.busy == 1)
    known = list(sidecar.runtime.reports.open)
    others = []
    for in_hand in (2, 3):  # one after the other, so that their places are known
        others.append(asyncio.create_task(speak(sidecar)))
        await until(lambda: sidecar.runtime.dispatcher.in_hand == in_hand)  # noqa: B023
        known += sidecar.runtime.reports.open - set(known)
    running, *waiting = known
    explained = await ask(sidecar, f"requests/{running.id}")
    assert (explained.state, explained.tenant) == (RequestState.RUNNING, ALICE)
    assert explained.standing is None
    last = await ask(sidecar, f"requests/{waiting[-1].id}")
    assert last.state is RequestState.WAITING
    assert last.standing.position == 2
    assert last.standing.hold is Hold.IN_FLIGHT_LIMIT
    assert last.served_instead == ()  # nothing was dispatched since it came
    assert [(row.tenant, row.tier, row.requests) for row in last.in_engine] == [
        (ALICE, "standard", 1)
    ]
    assert [(row.tenant, row.requests) for row in last.waiting_then] == [(ALICE, 1)]
    tenant = await ask(sidecar, f"tenants/{ALICE}")
    assert (tenant.queued, tenant.running, tenant.next_request) == (2, 1, waiting[0].id)
    assert tenant.in_engine_now == last.in_engine_now == last.in_engine
    assert explained.in_engine_now == ()  # it runs
    assert tenant.oldest_request == waiting[0].id
    assert tenant.oldest_wait_seconds > 0
    release.set()
    await asyncio.gather(first, *others)
    engine.script = None
    ended = await ask(sidecar, f"requests/{waiting[-1].id}")
    assert ended.state is RequestState.ENDED
    assert ended.record.outcome == "completed"
    assert [(row.tenant, row.requests) for row in ended.served_instead] == [(ALICE, 1)]
    assert (ended.in_engine, ended.waiting_then) == (last.in_engine, last.waiting_then)
    assert ended.arrival_complete
    assert ended.waited_seconds == pytest.approx(ended.record.queued_seconds, abs=0.001)
    tenant = await ask(sidecar, f"tenants/{ALICE}")
    assert tenant.requests_total == tenant.lately == {"completed": 3}
    assert tenant.slowest is not None
    assert tenant.slowest.id in {one.id for one in known}
    assert tenant.last[0].id == ended.id
    assert tenant.standing is None


async def test_a_refusal_names_its_limit(start_sidecar: StartSidecar) -> None:
    limit = {"name": "minute", "per": "Minute", "requests": 1}
    sidecar = await start_sidecar(policy=policy_document(tier={"rate_limits": [limit]}))
    assert (await speak(sidecar))[0] == 200
    status, headers, _ = await speak(sidecar)
    assert status == 429
    refused = await ask(sidecar, f"requests/{headers['x-request-id']}")
    assert refused.state is RequestState.ENDED
    assert (refused.record.outcome, refused.record.limit) == ("rate_limited", "minute")
    assert (refused.limit.name, refused.limit.requests) == ("minute", 1)
    assert refused.record.retry_after_seconds == int(headers["retry-after"])
    assert (refused.waited_seconds, refused.served_instead) == (0, ())
    tenant = await ask(sidecar, f"tenants/{ALICE}")
    (use,) = tenant.limits
    assert (use.name, use.requests_used, use.requests) == ("minute", 1, 1)


async def test_how_a_tenants_first_tokens_fared_beside_the_promise(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    async def slow(connection: Connection) -> None:
        await asyncio.sleep(0.01)
        await answer_well(engine.requests[-1])(connection)

    engine.script = slow
    objective = {"metric": "TimeToFirstToken", "target_seconds": 60.0}
    limit = {"name": "minute", "per": "Minute", "requests": 2}
    tier = {"slo_objectives": [objective], "rate_limits": [limit]}
    sidecar = await start_sidecar(policy=policy_document(tier=tier))
    for _ in range(3):
        await speak(sidecar)
    promise = (await ask(sidecar, f"tenants/{ALICE}")).promise
    assert promise == PromiseKept(60.0, requests=2)  # one at its own limit does not count
    objective["target_seconds"] = 0.001
    bundle = {"policy": policy_document(2, tier=tier), "keys": keys_document(2)}
    sidecar.runtime.apply(loads(Bundle, json.dumps(bundle)))
    promise = (await ask(sidecar, f"tenants/{ALICE}")).promise
    assert promise == PromiseKept(0.001, requests=2, late=2)


async def test_what_is_not_known(sidecar: SidecarUnderTest) -> None:
    assert await ask(sidecar, "requests/no-such") == 404
    assert await ask(sidecar, "tenants/team-a/nobody") == 404
    assert (await ask(sidecar, f"tenants/{BOB}")).last == ()


async def test_only_with_the_token(start_sidecar: StartSidecar, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token")
    sidecar = await start_sidecar(admin_token_file=token)
    for path in (f"explain/tenants/{ALICE}", "explain/requests/r", "profiles", "profiles/x"):
        async with sidecar.client.get(f"{sidecar.admin_url}/{path}") as answer:
            assert answer.status == 401
    headers = {"Authorization": "Bearer secret-token"}
    url = f"{sidecar.admin_url}/explain/tenants/{ALICE}"
    async with sidecar.client.get(url, headers=headers) as answer:
        assert answer.status == 200
