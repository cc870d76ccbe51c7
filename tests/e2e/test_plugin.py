"""engine.plugin: an init container brings the code, the engine is told of it, requests are tagged,
and what the pool says of the engine's steps comes to where the plug-in reads it.

Engines here are fakes: that vLLM loads what is brought, and what the plug-in makes of its policy,
is shown by tests/vllm. A container of the test's, beside engine and sidecar, prints the policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Scene
from tidegate.scheduling.contracts import KvPool, Policy, PrefillLimits, decode

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMESPACE = "e2e-plugin"
HIGH, LOW = f"{NAMESPACE}-high", f"{NAMESPACE}-low"
POD = "pool-all-0"
SHARED = "/run/tidegate"
PRINTER = {
    "name": "printer",
    "image": "busybox",
    "command": ["sh", "-c"],
    "args": [
        "trap 'exit 0' TERM; "
        f'while :; do [ -e {SHARED}/policy.json ] && echo "$(cat {SHARED}/policy.json)"; '
        "sleep 1; done"
    ],
    "volumeMounts": [{"name": "socket", "mountPath": SHARED, "readOnly": True}],
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    },
}
ENGINE = {
    "image": "vllm/vllm-openai:v0.32.0",
    "plugin": "Enabled",
    "env": [
        {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
        {"name": "TIDEGATE_FAKE_REQUEST_LOG", "value": "/dev/stdout"},
    ],
    "drainTimeout": "5s",
    "podTemplate": {"spec": {"containers": [PRINTER]}},
}
READ_SECONDS = 25


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene(
        NAMESPACE,
        tiers={"high": {"priority": 10}, "low": {"preemption": {"evictable": True}}},
        tenants={"a": {"tier": "high", "weight": 1}, "b": {"tier": "low"}},
        pool_spec={
            "engine": ENGINE,
            "engineGroups": groups(),
            "kvPools": kv_pools(lendable_percent=20),
            "prefill": {"budgetPercent": 25, "longPromptTokens": 4096},
        },
    )


def groups(**more: Any) -> list[dict[str, Any]]:
    draft = {"method": "Eagle3", "model": "example/head", "tokens": 3}
    return [{"name": "all", "tiers": [HIGH, LOW], "draft": draft, **more}]


def kv_pools(*, lendable_percent: int) -> list[dict[str, Any]]:
    own = {"tiers": [HIGH], "percent": 60, "lendablePercent": lendable_percent}
    return [{"name": "own", **own}]


async def test_a_pool_with_the_plug_in(scene: Scene) -> None:
    for tenant in scene.tenants:
        async with TenantClient(scene.endpoint, scene.key(tenant), scene.model) as client:
            assert (await client.complete(20, 20)).complete
    (pod,) = scene.pods()
    (brought,) = pod["status"]["initContainerStatuses"]
    assert brought["state"]["terminated"]["exitCode"] == 0
    (engine,) = [c for c in pod["spec"]["containers"] if c["name"] == "engine"]
    assert "--scheduler-cls=tidegate.vllm_plugin.TidegateAsyncScheduler" in engine["args"]
    first, second = (e["xargs"] for e in scene.engine_events() if e["event"] == "arrived")
    assert [one["tidegate_tier"] for one in (first, second)] == [HIGH, LOW]
    assert second["tidegate_sequence"] > first["tidegate_sequence"]
    its_policy_follows_the_pool(scene)


def its_policy_follows_the_pool(scene: Scene) -> None:
    """Each field of the step, as the plug-in reads it before and after a change; nothing
    restarts."""
    restarts = scene.container_restarts()
    before = policy_of_the_plugin(scene, PrefillLimits(25, long_prompt_tokens=4096))
    assert before.kv_pools == (KvPool("own", (HIGH,), 60, 20),)
    assert drafted(before) == {HIGH: None, LOW: None}
    scene.change(
        prefill={"tokensPerStep": 1000, "longPromptTokens": 500},
        kvPools=kv_pools(lendable_percent=0),
        engineGroups=groups(noDraftTiers=[LOW]),
    )
    told = PrefillLimits(tokens_per_step=1000, long_prompt_tokens=500)
    after = policy_of_the_plugin(scene, told)
    assert after.kv_pools == (KvPool("own", (HIGH,), 60, 0),)
    assert drafted(after) == {HIGH: None, LOW: 0}
    assert scene.container_restarts() == restarts


def policy_of_the_plugin(scene: Scene, prefill: PrefillLimits) -> Policy:
    """What lies where the plug-in reads, once it says this of prefill."""

    def read() -> Policy | None:
        printed = ("logs", POD, "-n", NAMESPACE, "-c", "printer", "--tail=1")
        said = scene.cluster.kubectl(*printed)
        policy = decode(Policy, json.loads(said), "policy") if said else None
        return policy if policy and policy.prefill == prefill else None

    found: Policy = scene.cluster.until(f"{prefill} is told", read, READ_SECONDS)
    return found


def drafted(policy: Policy) -> dict[str, int | None]:
    """The bound of each tier on what is drafted for it."""
    return {tier.name: tier.draft_tokens for tier in policy.tiers}
