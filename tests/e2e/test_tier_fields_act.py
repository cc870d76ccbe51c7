"""Each limit of a TenantTier, and what a pool says of it besides, on a running pool: applied with
kubectl, it makes a request or an order differ.

One pool of one pod. Every row of :data:`ROWS` has a tier, and a tenant in it that asks before and
after all fields are applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.field_rows import (
    Row,
    Spec,
    about_an_hour,
    above,
    at_most,
    unexpected,
    until_next_month,
    until_tomorrow,
)
from support.pool_calls import WAIT_SECONDS, PoolCalls
from support.tier_probes import (
    ENGINE,
    codes,
    codes_at_once,
    long_one_is_last,
    most_in_engine,
    refused_for_seconds,
    times_taken_off,
    unnamed_output_tokens,
)

from testbed.e2e_cluster import NAMESPACE_LABEL, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAMESPACE = "e2e-tier-fields"


def calls_limit(**fields: Any) -> Spec:
    return {"rateLimits": [{"name": "calls", "per": "Hour", "requests": 1, **fields}]}


def selecting(operator: str) -> Spec:
    expression = {"key": NAMESPACE_LABEL, "operator": operator, "values": [NAMESPACE]}
    return {"allowedNamespaces": {"matchExpressions": [expression]}}


def evictable(**fields: Any) -> Spec:
    back_off = {"recomputeBackoff": {"perQueuedRequest": "0s"}}
    return {"priority": -10, "preemption": {"evictable": True, **back_off, **fields}}


TOO_LONG, REFUSED = "prompt_too_long", "rate_limit_exceeded"
EIGHT_AT_ONCE = codes_at_once(8, 80, 20)
CUT = {"promptLimit": {"maxTokens": 64}}
LAST = {"promptLimit": {"maxTokens": 64, "onExceed": "BestEffort"}}
ONE = {"maxInFlight": 1}
TOKENS = {"rateLimits": [{"name": "tokens", "per": "Minute", "tokens": 100}]}
ROWS: Sequence[Row] = (
    Row("maxInFlight", "few", most_in_engine(8, 20), above(1), 1, ONE),
    Row(
        "queue.maxRequests", "short", EIGHT_AT_ONCE, {None}, {None, "queue_full"},
        {"queue": {"maxRequests": 1}},
    ),
    Row(
        "queue.maxBytes", "light", EIGHT_AT_ONCE, {None}, {None, "queue_full"},
        {"queue": {"maxBytes": 1_024}},
    ),
    Row(
        "queue.maxWait", "brief", EIGHT_AT_ONCE, {None}, {None, "queue_wait_exceeded"},
        {"queue": {"maxWait": "100ms"}},
    ),
    Row("output.default", "told", unnamed_output_tokens, 1_024, 7, {"output": {"default": 7}}),
    Row(
        "preemption.maxPerRequest", "once", times_taken_off, 2, 1,
        evictable(maxPerRequest=1), evictable(),
    ),
    Row("promptLimit.onExceed", "last", long_one_is_last, False, True, ONE | LAST, ONE),
    Row(
        "rateLimits.tokens", "tokens", codes((60, 1), (60, 1), (200, 1)),
        [None, None, None], [None, REFUSED, "request_exceeds_limit"], TOKENS,
    ),
    Row(
        "rateLimits.models", "models", codes((8, 1), (8, 1)), [None, None], [None, REFUSED],
        calls_limit(models=[Scene.model]), calls_limit(models=["another-model"]),
    ),
    Row(
        "rateLimits.per: Day", "daily", refused_for_seconds, about_an_hour, until_tomorrow,
        calls_limit(per="Day"), calls_limit(),
    ),
    Row(
        "rateLimits.per: Month", "monthly", refused_for_seconds, about_an_hour, until_next_month,
        calls_limit(per="Month"), calls_limit(),
    ),
    Row(
        "allowedNamespaces", "closed", codes((8, 1)), [None], ["invalid_api_key"],
        selecting("NotIn"), selecting("In"),
    ),
    Row("tiers[].promptLimit", "cut-here", codes((100, 1)), [None], [TOO_LONG], here=CUT),
    # Four of 703 blocks each, of 4,095, half of which are another's.
    Row("kvPools[].lendablePercent", "borrower", most_in_engine(11_200, 40), above(2), at_most(2)),
    Row(
        "output.max", "modest", codes((8, 8), (8, 9)), [None, None], [None, "invalid_request"],
        {"output": {"max": 8}},
    ),
)  # fmt: skip

KV_POOL = {"name": "kept", "tiers": [f"{NAMESPACE}-lender"], "percent": 50}


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """A tenant of its own name in each tier, which has only what its row begins with."""
    tiers: dict[str, Spec] = {row.tier: row.base for row in ROWS}
    tiers |= {"plain": {}, "high": {"priority": 1_000}, "lender": {}}
    tenants: dict[str, Spec] = {name: {"tier": name} for name in tiers}
    return make_scene(
        NAMESPACE,
        tiers=tiers,
        tenants=tenants,
        pool_spec={"kvPools": [KV_POOL]},
        **ENGINE,
    )


async def test_each_limit_makes_something_differ(scene: Scene) -> None:
    """One pool and one test: what takes long is the pod."""
    async with PoolCalls(scene) as calls:
        assert await unexpected(calls, ROWS, lambda row: row.without) == {}
        await apply_all(calls)
        assert await unexpected(calls, ROWS, lambda row: row.with_it) == {}
        await asyncio.to_thread(
            scene.cluster.until, "closed is told why", lambda: is_told_why(scene), WAIT_SECONDS
        )


def is_told_why(scene: Scene) -> bool:
    """The tenant whose tier is no more for its namespace."""
    tenant = scene.cluster.get("tenants.tidegate.io", "closed", "-n", NAMESPACE)
    told = condition(tenant, "Accepted")
    return (told.get("status"), told.get("reason")) == ("False", "TierNotAllowed")


async def apply_all(calls: PoolCalls) -> None:
    """The tiers, until the last of them is in force, and then the pool."""
    scene = calls.scene
    scene.tiers |= {row.tier: row.base | row.spec for row in ROWS}
    last = ROWS[-1]
    changed = [name for name in scene.tiers if name != last.tier] + [last.tier]
    await asyncio.to_thread(scene.cluster.apply, *(scene.tier(name) for name in changed))
    async with asyncio.timeout(WAIT_SECONDS):
        while await last.probe(calls, last.tier) != last.with_it:
            pass  # each answer takes a moment
    here = {row.tier: row.here for row in ROWS}
    await asyncio.to_thread(
        scene.change,
        tiers=[{"name": f"{NAMESPACE}-{name}", **here.get(name, {})} for name in scene.tiers],
        kvPools=[KV_POOL | {"lendablePercent": 0}],
    )
