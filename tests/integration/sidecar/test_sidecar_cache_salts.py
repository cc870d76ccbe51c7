"""Cache salts: who shares an engine's prefix cache is the policy's to say, and no client's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faulty_engine import FaultyEngine
from support.sidecar import ALICE, BOB, SidecarUnderTest, chat_body, policy_document
from tidegate_sidecar.cache_salts import CacheSalts
from tidegate_sidecar.settings import SettingsError

from .conftest import StartSidecar

pytestmark = pytest.mark.integration

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"model": "test-model", "prompt": "Say hello."},
    "/v1/embeddings": {"model": "test-model", "input": "Say hello."},
}


def policy(**scopes: str | None) -> dict[str, Any]:
    rows = [
        {"name": name, "tier": "standard", "cache_scope": scopes.get(name.split("/")[1])}
        for name in (ALICE, BOB)
    ]
    return policy_document(version=2, tenants=rows)


async def salt(sidecar: SidecarUnderTest, engine: FaultyEngine, tenant: str, path: str) -> Any:
    async with sidecar.request(path, BODIES[path], tenant=tenant) as answer:
        assert answer.status == 200
    return engine.requests[-1].json().get("cache_salt")


@pytest.mark.parametrize("path", BODIES)
async def test_tenants_of_other_scopes_share_nothing(
    start_sidecar: StartSidecar, engine: FaultyEngine, path: str
) -> None:
    sidecar = await start_sidecar(policy=policy(alice="tenant/1", bob="tenant/2"))
    hers = await salt(sidecar, engine, ALICE, path)
    assert hers == await salt(sidecar, engine, ALICE, path)
    assert len(hers) >= 43
    assert "tenant" not in hers
    assert await salt(sidecar, engine, BOB, path) not in (hers, None)


async def test_a_group_shares_and_no_scope_sends_none(
    start_sidecar: StartSidecar, engine: FaultyEngine
) -> None:
    path = "/v1/chat/completions"
    sidecar = await start_sidecar(policy=policy(alice="group/x", bob="group/x"))
    assert await salt(sidecar, engine, ALICE, path) == await salt(sidecar, engine, BOB, path)
    sidecar = await start_sidecar()
    assert await salt(sidecar, engine, ALICE, path) is None


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_cannot_send_one(
    start_sidecar: StartSidecar, engine: FaultyEngine, path: str
) -> None:
    sidecar = await start_sidecar(policy=policy(alice="tenant/1", bob="tenant/2"))
    for forged in (BODIES[path] | {"cache_salt": "of-bob"}, b'{"cache_salt":"a","cache_salt":"b"}'):
        async with sidecar.request(path, forged) as answer:
            assert answer.status == 400
    assert not engine.requests


async def test_the_key_outlives_restarts_where_it_stands_in_a_file(
    start_sidecar: StartSidecar, engine: FaultyEngine, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 43)
    path, scopes = "/v1/chat/completions", policy(alice="tenant/1")
    salts = []
    for _ in range(2):
        sidecar = await start_sidecar(policy=scopes, cache_salt_key_file=key)
        salts.append(await salt(sidecar, engine, ALICE, path))
    assert salts[0] == salts[1]
    assert CacheSalts().salt("tenant/1") != CacheSalts().salt("tenant/1")


def test_a_key_that_is_too_short_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("short\n")
    with pytest.raises(SettingsError, match="cache_salt_key_file"):
        CacheSalts(key)
