"""engine.plugin: an init container brings the code, the engine is told of it, requests are tagged.

Engines here are fakes: that vLLM loads what is brought is shown by tests/vllm.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ENGINE = {
    "image": "vllm/vllm-openai:v0.32.0",
    "plugin": "Enabled",
    "env": [
        {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
        {"name": "TIDEGATE_FAKE_REQUEST_LOG", "value": "/dev/stdout"},
    ],
    "drainTimeout": "5s",
}


async def test_a_pool_with_the_plug_in(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(
        "e2e-plugin",
        tiers={"high": {"priority": 10}, "low": {"preemption": {"evictable": True}}},
        tenants={"a": {"tier": "high", "weight": 1}, "b": {"tier": "low"}},
        pool_spec={"engine": ENGINE, "prefill": {"longPromptTokens": 4096}},
    )
    for tenant in scene.tenants:
        async with TenantClient(scene.endpoint, scene.key(tenant), scene.model) as client:
            assert (await client.complete(20, 20)).complete
    (pod,) = scene.pods()
    (brought,) = pod["status"]["initContainerStatuses"]
    assert brought["state"]["terminated"]["exitCode"] == 0
    (engine,) = [c for c in pod["spec"]["containers"] if c["name"] == "engine"]
    assert "--scheduler-cls=tidegate.vllm_plugin.TidegateAsyncScheduler" in engine["args"]
    first, second = (e["xargs"] for e in scene.engine_events() if e["event"] == "arrived")
    assert [one["tidegate_tier"] for one in (first, second)] == [
        "e2e-plugin-high",
        "e2e-plugin-low",
    ]
    assert second["tidegate_sequence"] > first["tidegate_sequence"]
