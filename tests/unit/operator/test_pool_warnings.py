"""Warnings of a pool: there while they hold, gone otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from support.custom_resources import pool
from tidegate_operator import api
from tidegate_operator.pool_warnings import pool_warnings
from tidegate_operator.reconcile import PoolState

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
