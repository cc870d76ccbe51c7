"""A pool that a change does not concern would compile to the same; a tenant concerns few."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import Json, digest, pool, tenant, tier
from tidegate_operator import api
from tidegate_operator.compile import CompiledPool, compile_pool
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.judgement_change import judgement_change
from tidegate_operator.shards import Previous

LABELS = {"acme": {"plan": "paid"}, "other": {"plan": "free"}}
TIERS = [tier("t0", tenantOverrides={"maxWeight": 9})]
TENANTS = [
    tenant("a"),
    tenant("b", created="2026-02-01T00:00:00Z"),
    tenant("c", namespace="other"),
]
SHARED = {"namespaceSelector": {"matchLabels": {"plan": "free"}}}
POOLS = {
    "acme": pool("own"),
    "other": pool("own", namespace="other"),
    "shared": pool("shared", tenants=SHARED),
}


def judged(tenants: list[Json], tiers: list[Json] = TIERS, labels: Any = LABELS) -> Judgement:
    return judge(tiers, tenants, labels, {})


def compiled(obj: Json, judgement: Judgement) -> CompiledPool:
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    return compile_pool(read, judgement, Previous(), may_share=True, now_seconds=1.0)


def of_acme(**spec: Any) -> Json:
    return tenant("a", **spec)


TAKES_KEY_OF_B = [{"name": "main", "sha256": digest("demo-acme-b")}]
CHANGES = {
    "nothing": (judged(TENANTS), set()),
    "a weight": (judged([of_acme(weight=3), *TENANTS[1:]]), {"acme", "shared"}),
    "a stop": (judged([of_acme(stop="Hold"), *TENANTS[1:]]), {"acme", "shared"}),
    "no keys": (judged([of_acme(apiKeys=[]), *TENANTS[1:]]), {"acme", "shared"}),
    "another's key": (
        judged([*TENANTS[1:2], of_acme(apiKeys=TAKES_KEY_OF_B), *TENANTS[2:]]),
        {"acme", "shared"},
    ),
    "a tenant gone": (judged(TENANTS[:2]), {"other", "shared"}),
    "one more": (judged([*TENANTS, tenant("d", namespace="other")]), {"other", "shared"}),
    "a tier": (judged(TENANTS, [tier("t0", priority=4)]), set(POOLS)),
    "a tier more": (judged(TENANTS, [*TIERS, tier("t1")]), set(POOLS)),
    "a label": (judged(TENANTS, labels=LABELS | {"other": {"plan": "paid"}}), set(POOLS)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whom_a_change_concerns(name: str) -> None:
    before, (after, expected) = judged(TENANTS), CHANGES[name]
    change = judgement_change(before, after)
    concerned = {
        name
        for name, obj in POOLS.items()
        if change.concerns(obj, compiled(obj, before).tenant_names)
    }
    assert concerned == expected
    for name, obj in POOLS.items():
        if name not in concerned:
            assert compiled(obj, after) == compiled(obj, before)


def test_a_pool_that_serves_a_tenant_against_its_spec_is_concerned() -> None:
    """One whose spec cannot be read goes on with the tenants that it had."""
    change = judgement_change(judged(TENANTS), judged(TENANTS[:2]))
    assert change.concerns(POOLS["acme"], {"other/c"})
    assert not change.concerns(POOLS["acme"], {"acme/a"})


def test_at_the_start_everybody_is_concerned() -> None:
    change = judgement_change(None, judged([]))
    assert all(change.concerns(obj, ()) for obj in POOLS.values())
