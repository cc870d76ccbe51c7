"""Warnings of a pool: there while they hold, gone otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import pool, tier
from tidegate_operator import api
from tidegate_operator.compile import compile_pool
from tidegate_operator.judge import judge
from tidegate_operator.pool_warnings import pool_warnings
from tidegate_operator.reconciled import PoolState
from tidegate_operator.shards import Previous

OWN, NEWER = "sidecar:1", "sidecar:2"
GPU = "nvidia.com/gpu"


def warnings(
    running: str = OWN,
    *,
    outdated: bool = False,
    sidecar: dict[str, Any] | None = None,
    **engine: Any,
) -> list[tuple[str, str, str]]:
    spec = {"engine": {"image": "v:1", **engine}} | ({"sidecar": sidecar} if sidecar else {})
    read = api.parse(api.ServingPool, pool(**spec))
    assert isinstance(read, api.ServingPool), read
    state = PoolState(("acme", "chat"), 1, read, None, sidecar_image=running, outdated=outdated)
    found = pool_warnings(read, state, NEWER)
    assert all(finding.status == "True" for finding in found)
    return [(str(f.type), str(f.reason), f.message) for f in found]


def gpus(limit: int | str | None, tensor: int | None = None, *args: str, **more: Any) -> list[str]:
    limits = {} if limit is None else {GPU: limit}
    fields: dict[str, Any] = {"resources": {"limits": limits}, "args": list(args), **more}
    if tensor is not None:
        fields["parallelism"] = {"tensor": tensor}
    return [reason for _, reason, _ in warnings(NEWER, **fields)]


@pytest.mark.parametrize(
    ("limit", "tensor", "args", "reasons"),
    [
        (None, None, (), []),
        (None, 4, (), []),
        (1, None, (), []),
        (4, 4, (), []),
        ("4", 4, (), []),
        (0, None, (), []),
        (3, 2, (), ["GPUsIdle"]),
        (4, 2, (), ["GPUsIdle"]),
        (8, None, (), ["GPUsIdle"]),
        (2, 4, (), ["TooFewGPUs"]),
        (4, 2, ("--pipeline-parallel-size=2",), []),
        (4, 2, ("-pp", "2"), []),
        (4, 2, ("--pipeline_parallel_size", "4"), ["TooFewGPUs"]),
    ],
)
def test_gpus_asked_for_and_used(
    limit: int | str | None, tensor: int | None, args: tuple[str, ...], reasons: list[str]
) -> None:
    assert gpus(limit, tensor, *args) == reasons


def test_gpus_that_only_requests_name() -> None:
    (found,) = warnings(NEWER, parallelism={"tensor": 2}, resources={"requests": {GPU: 3}})
    assert found[2] == (
        "spec.engine.resources asks for 3 nvidia.com/gpu, but the engine uses 2, so 1 idle in each "
        "pod; spec.engine.parallelism.tensor, 2, does not divide them: make both the same"
    )


def test_an_older_sidecar_is_told_unless_the_pool_named_it() -> None:
    ((kind, _, text),) = warnings()
    assert kind == "UpgradeAvailable"
    assert "set spec.sidecar.image to sidecar:2" in text
    assert warnings(NEWER) == []
    assert warnings(sidecar={"image": OWN}) == []


def test_older_pods_are_told_with_the_way_to_newer_ones() -> None:
    ((_, _, text),) = warnings(NEWER, outdated=True)
    assert "kubectl annotate statefulset chat -n acme tidegate.io/pod-template-" in text
    ((_, _, both),) = warnings(outdated=True)
    assert "sidecar:2" in both
    assert "kubectl annotate" in both


def shared(kv_blocks: int | None = None, **spec: Any) -> dict[str, str]:
    """Messages by reason of a pool of the tiers t0 and t3, over engines of 8,192 tokens a step."""
    obj = pool(**spec)
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    judgement = judge([tier("t0"), tier("t3")], [], {}, {})
    compiled = compile_pool(read, judgement, Previous(), may_share=False, now_seconds=1.0)
    state = PoolState(("acme", "chat"), 1, read, compiled, sidecar_image=NEWER)
    return {str(f.reason): f.message for f in pool_warnings(read, state, NEWER, kv_blocks)}


def parts(**percents: int) -> list[dict[str, Any]]:
    return [{"name": name, "tiers": [name], "percent": p} for name, p in percents.items()]


@pytest.mark.parametrize(
    ("prefill", "reasons", "field"),
    [
        ({}, set(), ""),
        ({"budgetPercent": 20}, set(), ""),
        ({"budgetPercent": 40}, set(), ""),
        ({"budgetPercent": 19}, {"BudgetTooSmall"}, "budgetPercent gives prompts 19 percent"),
        ({"budgetPercent": 41}, {"BudgetTooLarge"}, "budgetPercent gives prompts 41 percent"),
        ({"tokensPerStep": 2048}, set(), ""),
        ({"tokensPerStep": 512}, {"BudgetTooSmall"}, "tokensPerStep gives prompts 6 percent"),
        ({"tokensPerStep": 9000}, {"BudgetTooLarge"}, "tokensPerStep gives prompts 100 percent"),
    ],
)
def test_an_unusual_budget(prefill: dict[str, int], reasons: set[str], field: str) -> None:
    found = shared(prefill=prefill)
    assert set(found) == reasons
    assert field in "".join(found.values())


@pytest.mark.parametrize(
    ("kv_pools", "kv_blocks", "said"),
    [
        ([], 10, ""),
        (parts(t0=70), None, ""),
        (parts(t0=70, t3=30), None, ""),
        (parts(t0=100), None, "what spec.kvPools leave is 0, so that t3 runs only on"),
        (parts(t0=0), None, "spec.kvPools[t0].percent is 0, so that t0 runs only on"),
        (parts(t0=70, t3=1), 100, ""),
        (parts(t0=70, t3=1), 99, "spec.kvPools[t3].percent is 1 of 99 blocks, so that t3"),
    ],
)
def test_a_tier_without_a_block(
    kv_pools: list[dict[str, Any]], kv_blocks: int | None, said: str
) -> None:
    found = shared(kv_blocks, kvPools=kv_pools)
    assert set(found) == ({"NoKVBlocks"} if said else set())
    assert said in found.get("NoKVBlocks", "")
