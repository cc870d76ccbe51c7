"""What tests ask of a sidecar and of the engine behind it, and what it has billed."""

from __future__ import annotations

import json

from support.sidecar import ALICE, Json, SidecarUnderTest


async def post(
    sidecar: SidecarUnderTest, path: str, body: Json, tenant: str = ALICE
) -> tuple[int, Json]:
    """Status and JSON of an answer."""
    async with sidecar.request(path, body, tenant=tenant) as answer:
        return answer.status, await answer.json()


async def plain(sidecar: SidecarUnderTest, path: str, body: Json) -> Json:
    """What the engine itself answers, asked all at once."""
    exchange = await sidecar.runtime.engine.post(path, {}, json.dumps(body).encode())
    try:
        answer: Json = json.loads(await exchange.read_all(1 << 26))
        return answer
    finally:
        exchange.close()


def served_tokens(sidecar: SidecarUnderTest) -> int:
    """Of all tenants of its one tier."""
    scheduler = sidecar.runtime.dispatcher.scheduler
    assert scheduler is not None
    (tier,) = scheduler.tier_snapshots()
    return tier.service_tokens_total
