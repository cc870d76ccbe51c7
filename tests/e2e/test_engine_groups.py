"""Engine groups on the local cluster: which engine a request comes to, and with which draft."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMESPACE = "e2e-groups"
GROUP = "tidegate.io/engine-group"
DRAFT = '--speculative-config={"method":"ngram","num_speculative_tokens":4}'


async def test_each_tier_has_engines_with_a_draft_of_its_own(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene(
        NAMESPACE,
        tiers={"talk": {}, "code": {}},
        tenants={"talker": {"tier": "talk"}, "coder": {"tier": "code"}},
        replicas=2,
        pool_spec={
            "engineGroups": [
                {"name": "talk", "tiers": [f"{NAMESPACE}-talk"]},
                {
                    "name": "code",
                    "tiers": [f"{NAMESPACE}-code"],
                    "draft": {"method": "Ngram", "tokens": 4},
                },
            ]
        },
    )
    cluster = scene.cluster
    pods = {pod["metadata"]["labels"][GROUP]: pod for pod in scene.pods()}
    drafts = {
        group: [
            argument
            for container in pod["spec"]["containers"]
            for argument in container.get("args", [])
            if argument.startswith("--speculative-config")
        ]
        for group, pod in pods.items()
    }
    assert drafts == {"talk": [], "code": [DRAFT]}

    said = condition(scene.pool_object(), "GroupsNotRouted")["message"]
    for tenant, group in (("talker", "talk"), ("coder", "code")):
        told = cluster.get("tenants.tidegate.io", tenant, "-n", NAMESPACE)["status"]["addresses"]
        assert told == [f"http://pool-{group}.{NAMESPACE}.svc:8000"]
        assert told[0] in said
        service = cluster.get("service", f"pool-{group}", "-n", NAMESPACE)
        endpoint = f"http://{service['spec']['clusterIP']}:8000"
        assert await engine_of(scene, tenant, endpoint) == f"pool-{group}-0"
    # Nobody routes: at the pool's own address all come to the first group.
    assert await engine_of(scene, "coder", scene.endpoint) == "pool-talk-0"


async def engine_of(scene: Scene, tenant: str, endpoint: str) -> str:
    """The pod whose engine served a request that was sent there."""
    async with TenantClient(endpoint, scene.key(tenant), scene.model) as client:
        sent = await client.complete(8, 4)
    assert sent.complete, sent
    (pod,) = [
        pod["metadata"]["name"]
        for pod in scene.pods()
        if any(
            event["x_request_id"] == sent.request_id
            for event in scene.cluster.engine_log(NAMESPACE, pod["metadata"]["name"])
        )
    ]
    return str(pod)
