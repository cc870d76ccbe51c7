"""R1 (keys and schemes), R2 (models), O13 (nobody raises its own priority)."""

from __future__ import annotations

from typing import Any

import pytest
from support.edge_cases import KEY, KEYS_SHOWN, PRIORITY_HEADERS
from support.faulty_engine import FaultyEngine
from support.sidecar import SidecarUnderTest, policy_document, speak

from .conftest import StartSidecar

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("lines", "status"), KEYS_SHOWN)
async def test_r1_keys(sidecar: SidecarUnderTest, lines: list[str], status: int) -> None:
    answer, headers, body = await speak(sidecar, authorization=lines)
    assert answer == status
    if status == 401:
        assert headers["www-authenticate"] == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"
        assert KEY not in str(body)
        assert sidecar.outcomes() == {"unauthenticated": 1}


async def test_r2_models_are_those_of_the_pool_with_the_engines_fields(
    sidecar: SidecarUnderTest,
) -> None:
    async with sidecar.request("/v1/models", method="GET") as response:
        body = await response.json()
    card = {"id": "test-model", "object": "model", "max_model_len": 131_072}
    assert body == {"object": "list", "data": [card]}
    async with sidecar.request("/v1/models/test-model", method="GET") as response:
        assert await response.json() == card
    async with sidecar.request("/v1/models/another-model", method="GET") as response:
        assert response.status == 404
    async with sidecar.request("/v1/models", method="GET", tenant=None) as response:
        assert response.status == 401
    async with sidecar.chat(model="another-model") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("policys", "told"), [(8192, 8192), (1_000_000, 131_072)])
async def test_a_models_length_is_the_lower_of_the_policys_and_the_engines(
    start_sidecar: StartSidecar, policys: int, told: int
) -> None:
    model = {"name": "test-model", "max_model_len_tokens": policys}
    sidecar = await start_sidecar(policy=policy_document(model=model))
    async with sidecar.request("/v1/models", method="GET") as response:
        (card,) = (await response.json())["data"]
    assert card["max_model_len"] == told
    async with sidecar.request("/v1/models/test-model", method="GET") as response:
        assert await response.json() == card


@pytest.mark.parametrize(("tier_priority", "sent"), [(100, -100), (0, None), (-(2**31), 2**31 - 1)])
async def test_o13_the_engine_gets_its_priority_from_the_tier_alone(
    start_sidecar: StartSidecar, engine: FaultyEngine, tier_priority: int, sent: int | None
) -> None:
    sidecar = await start_sidecar(policy=policy_document(tier={"priority": tier_priority}))
    async with sidecar.chat(headers=PRIORITY_HEADERS) as response:
        assert response.status == 200
        request_id = response.headers["x-request-id"]
    (request,) = engine.requests
    assert request.json().get("priority") == sent
    assert request.headers["x-request-id"] == request_id != "mine"
    assert set(request.headers) == {"host", "content-type", "content-length", "x-request-id"}


@pytest.mark.parametrize("priority", [-1000, 0, None])
async def test_o13_a_priority_in_the_body_is_refused(
    sidecar: SidecarUnderTest, engine: FaultyEngine, priority: int | None
) -> None:
    async with sidecar.chat(priority=priority) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "priority"
    assert not engine.requests


async def test_o13_first_come_first_served_sends_no_priority(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    policy: dict[str, Any] = policy_document(
        tier={"priority": 5}, scheduling_mode="FirstComeFirstServed"
    )
    sidecar = await start_sidecar(policy=policy)
    async with sidecar.chat() as response:
        assert response.status == 200
    assert "priority" not in engine.requests[0].json()
