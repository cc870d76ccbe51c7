"""Keys, stops, promises, prices and the order of a pool, changed with kubectl while it runs: a
request differs, and what its status and `tidegate top`, `explain` and `rules` tell of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.pool_calls import ENDLESS_TOKENS, WAIT_SECONDS, PoolCalls
from support.tier_probes import ENGINE, who_goes_first

from testbed.e2e_cluster import Scene, condition, key_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAMESPACE = "e2e-tells"
SECRET = "api-keys"
PROMISED_CALLS = 4
PROMISES = [
    {"metric": "EndToEnd", "target": "1ms", "ratio": "50.0", "window": "2h"},
    {"metric": "InterTokenLatency", "target": "10s", "ratio": "90", "window": "3h"},
]
KEPT_PROMISES = [
    {
        "metric": "EndToEnd", "targetMs": 1, "promisedPercent": "50", "requests": PROMISED_CALLS,
        "keptPercent": 0, "refused": 0, "late": PROMISED_CALLS, "attainedPercent": "0",
        "budgetLeftPercent": -100, "measured": "SidecarStart",
    },
    {
        "metric": "InterTokenLatency", "targetMs": 10_000, "promisedPercent": "90",
        "requests": PROMISED_CALLS, "keptPercent": 100, "attainedPercent": "100",
        "budgetLeftPercent": 100, "measured": "SidecarStart",
    },
]  # fmt: skip
"""As the status has them, once each call took more than 1 ms and less than 10 s a token."""
KV_POOL = {"name": "kept", "tiers": [f"{NAMESPACE}-lender"], "percent": 50}
KEPT_BLOCKS, OTHER_BLOCKS = 2_047, 2_048
CALLS = {"name": "calls", "per": "Month", "requests": 2}
Figures = dict[str, dict[str, Any]]


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """Tiers of which nothing is promised yet, and tenants of their names."""
    tiers: dict[str, dict[str, Any]] = {
        "plain": {},
        "high": {"priority": 1_000},
        "lender": {},
        "limited": {"rateLimits": [CALLS]},
        "promised": {},
        "one-by-one": {"maxInFlight": 1},
    }
    tenants: dict[str, dict[str, Any]] = {name: {"tier": name} for name in tiers}
    tenants |= {name: {"tier": "one-by-one"} for name in ("held", "drained")}
    key = {"name": "main", "secretRef": {"name": SECRET, "key": "key"}}
    tenants["by-secret"] = {"tier": "plain", "apiKeys": [key]}
    return make_scene(
        NAMESPACE,
        tiers=tiers,
        tenants=tenants,
        pool_spec={"kvPools": [KV_POOL]},
        **ENGINE,
    )


async def test_a_pool_does_as_it_is_told_and_tells_of_it(scene: Scene) -> None:
    """One pool and one test: what takes long is the pod, and the figures."""
    async with PoolCalls(scene) as calls:
        assert await who_goes_first(calls, "plain", "high") == "high"
        await asyncio.to_thread(scene.change, schedulingMode="FirstComeFirstServed")
        assert await who_goes_first(calls, "plain", "high") == "plain"
        await a_key_is_good_while_its_secret_says_so(calls)
        await a_stop_holds_or_drains(calls)
        await nothing_is_promised_or_priced(calls)
        await promise_and_price(calls)
        await its_status_tells_of_it(calls)
        await asyncio.to_thread(commands_tell_of_it, scene)


async def a_key_is_good_while_its_secret_says_so(calls: PoolCalls) -> None:
    cluster = calls.scene.cluster
    old, new = (key_of(f"{NAMESPACE}/{which}") for which in ("old", "new"))

    async def works(key: str) -> bool:
        sent = await (await calls.client("by-secret", key)).complete(8, 1)
        assert sent.code in (None, "invalid_api_key")
        return sent.complete

    assert not await works(old)
    for key in (old, new):
        await asyncio.to_thread(cluster.apply, secret(key))
        async with asyncio.timeout(WAIT_SECONDS):
            while not await works(key):
                pass  # each answer takes a moment
    assert not await works(old)


def secret(key: str) -> dict[str, Any]:
    labels = {"tidegate.io/api-keys": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE, "labels": labels},
        "stringData": {"key": key},
    }


async def a_stop_holds_or_drains(calls: PoolCalls) -> None:
    """Of two tenants that stop one request runs and two wait: those of one are served all the
    same, those of the other refused, and what runs goes on."""
    scene = calls.scene
    held, drained = await calls.client("held"), await calls.client("drained")
    async with held.streaming(8, ENDLESS_TOKENS), drained.streaming(8, ENDLESS_TOKENS) as running:
        kept, gone = (
            [asyncio.create_task(calls.one(name, 8, 1)) for _ in range(2)]
            for name in ("held", "drained")
        )
        await calls.until_in_hand(6)
        stops = {"held": "Hold", "drained": "HoldAndDrain"}
        stopped = [scene.tenant(name, stop=stop) for name, stop in stops.items()]
        await asyncio.to_thread(scene.cluster.apply, *stopped)
        assert [sent.code for sent in await asyncio.gather(*gone)] == ["tenant_held"] * 2
        assert await calls.codes("held", (8, 1)) == ["tenant_held"]  # it was applied first
        running.content.read_nowait()
        assert await running.content.readany()  # what comes from now on
    assert [sent.code for sent in await asyncio.gather(*kept)] == [None] * 2


async def until(calls: PoolCalls, what: str, condition: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(calls.scene.cluster.until, what, condition, WAIT_SECONDS)


def figures(scene: Scene) -> Figures:
    """What the pool's status says of each tier."""
    rows = scene.pool_object()["status"].get("tiers", [])
    return {row["name"].removeprefix(f"{NAMESPACE}-"): row for row in rows}


async def nothing_is_promised_or_priced(calls: PoolCalls) -> None:
    def served() -> Figures:
        rows = figures(calls.scene)
        return rows if "busyPercent" in rows.get("plain", {}) else {}

    rows = await until(calls, "figures of what was served", served)
    assert not [row for row in rows.values() if {"objectives", "pricePer1000Calls"} & row.keys()]


async def promise_and_price(calls: PoolCalls) -> None:
    scene = calls.scene
    scene.tiers["promised"] = {"slo": {"objectives": PROMISES}}
    await asyncio.to_thread(scene.put_in_force, scene.tier("promised"))
    await asyncio.to_thread(scene.change, schedulingMode=None, price={"gpuHour": "36"})
    client = await calls.client("promised")
    for _ in range(PROMISED_CALLS):
        assert (await client.complete(8, 12, stream=True)).complete
    assert await calls.codes("limited", *[(8, 1)] * 5) == [None] * 2 + ["rate_limit_exceeded"] * 3


async def its_status_tells_of_it(calls: PoolCalls) -> None:
    scene = calls.scene

    def all_of_it() -> Figures:
        rows = figures(scene)
        counted = rows["promised"].get("objectives", [{}])[0].get("requests") == PROMISED_CALLS
        refused = rows["limited"].get("refused") == {"rate_limited": 3}
        return rows if counted and refused else {}

    rows = await until(calls, "the last figures", all_of_it)
    assert rows["promised"]["objectives"] == KEPT_PROMISES
    assert rows["one-by-one"]["refused"] == {"held": 3}
    nothing_held = {"heldBlocks": 0, "borrowedBlocks": 0}
    assert rows["lender"]["kv"] == nothing_held | {"quotaBlocks": KEPT_BLOCKS}
    assert rows["plain"]["kv"] == nothing_held | {"quotaBlocks": OTHER_BLOCKS}
    for part in ("sharePercent", "busyPercent"):
        parts = [row.get(part, 0) for row in rows.values()]
        assert 0 < sum(parts) <= 100 + len(parts) / 2  # each is rounded
    prices = {name: float(row.get("pricePer1000Calls", 0)) for name, row in rows.items()}
    assert prices["promised"] > 2 * prices["limited"] > 0  # answers of 12 tokens and of one
    missed = condition(scene.pool_object(), "SLOMet")
    assert (missed["status"], missed["reason"]) == ("False", "ObjectiveMissed")
    assert f"EndToEnd of tier {NAMESPACE}-promised: 0 percent" in missed["message"]


def commands_tell_of_it(scene: Scene) -> None:
    """The same figures side by side, and what no status has."""
    told = scene.cluster.tidegate("top", "--once", "--namespace", NAMESPACE)
    rows = {
        cells[0]: cells
        for line in told.splitlines()
        if (cells := re.split(r"\s{2,}", line.strip()))
    }
    assert rows[f"{NAMESPACE}/pool"][1:3] == ["True", "1/1"]
    assert "0%" in rows[f"{NAMESPACE}-promised"]
    assert rows[f"{NAMESPACE}-limited"][-1] == "3 rate_limited"
    assert rows[f"{NAMESPACE}-one-by-one"][-1] == "3 held"
    assert "3 rate_limited (limit calls)" in rows[f"{NAMESPACE}/limited"]
    told = scene.cluster.tidegate("explain", f"{NAMESPACE}/limited")
    assert "limit calls: 2 of 2 requests a month" in told
    assert "3 rate_limited" in told
    told = " ".join(scene.cluster.tidegate("rules", "--pool", f"{NAMESPACE}/pool").split())
    assert "50% of its requests over 2h are promised their whole answer within 0.001 s" in told
    assert "90% of its requests over 3h are promised a mean gap between tokens" in told
