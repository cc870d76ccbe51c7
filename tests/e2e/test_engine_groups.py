"""Engine groups on the local cluster: which engine a request comes to, with which draft, and what
becomes of requests while the engines are replaced."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.tenant_client import TenantClient

from testbed.e2e_cluster import Cluster, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMESPACE = "e2e-groups"
GROUP = "tidegate.io/engine-group"
SEATS = "--max-num-seqs=8"
DRAFT = '--speculative-config={"method":"ngram","num_speculative_tokens":4}'


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """Two tiers, each at home in a group of one pod; nobody routes."""
    scene = Scene(
        cluster,
        NAMESPACE,
        tiers={"talk": {}, "code": {}},
        tenants={"talker": {"tier": "talk"}, "coder": {"tier": "code"}},
        engine_env={"TIDEGATE_FAKE_IGNORE_EOS": "1"},
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
    try:
        scene.up()
        yield scene
    finally:
        scene.down(wait=False)


async def test_each_tier_has_engines_with_a_draft_of_its_own(scene: Scene) -> None:
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


async def test_a_change_of_the_engine_takes_one_group_at_a_time_and_loses_nothing(
    scene: Scene,
) -> None:
    """By a router, which serves a group's tiers elsewhere while its only pod is replaced."""
    cluster = scene.cluster
    scene.pool_spec |= {"router": {"replicas": 1}}
    cluster.apply(scene.pool())
    cluster.until("clients come by the router", lambda: leads_to(scene) == "router", 90)
    rollout = Rollout(scene)
    ending = asyncio.Event()
    clients = [TenantClient(scene.endpoint, scene.key(name), scene.model) for name in scene.tenants]

    async def keep_sending(client: TenantClient) -> None:
        async with client:
            for number in itertools.count():
                if ending.is_set():
                    return
                await client.complete(32, 100, stream=bool(number % 2))

    sending = [asyncio.create_task(keep_sending(client)) for client in clients]
    scene.engine_args = [SEATS]
    cluster.apply(scene.pool())
    await asyncio.to_thread(cluster.until, "both pods are new, and serve", rollout.is_over, 240)
    ending.set()
    await asyncio.gather(*sending)

    assert set(rollout.away) == {frozenset(), frozenset({"talk"}), frozenset({"code"})}
    # In the order of the spec; in whole seconds, as objects have them.
    assert rollout.ready_at["talk"] <= rollout.left_at["code"]
    for client in clients:
        assert len(client.requests) > 10
        assert [sent for sent in client.requests if not sent.complete] == []


def leads_to(scene: Scene) -> str:
    service = scene.cluster.get("service", "pool", "-n", NAMESPACE)
    return str(service["spec"]["selector"]["tidegate.io/component"])


class Rollout:
    """What is seen of the groups' pods while they are replaced."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._before = {pod["metadata"]["uid"] for pod in self._pods()}
        self.away: list[frozenset[str]] = []
        """The groups without a pod that serves, as of each look."""
        self.left_at: dict[str, datetime] = {}
        """When the pod of before was told to go."""
        self.ready_at: dict[str, datetime] = {}
        """When the new one first served."""

    def is_over(self) -> bool:
        """Look once."""
        for pod in (pods := self._pods()):
            metadata, group = pod["metadata"], pod["metadata"]["labels"][GROUP]
            if end := metadata.get("deletionTimestamp"):
                grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
                self.left_at[group] = datetime.fromisoformat(end) - grace
            elif metadata["uid"] not in self._before and serves(pod):
                since = condition(pod, "Ready")["lastTransitionTime"]
                self.ready_at.setdefault(group, datetime.fromisoformat(since))
        serving = {pod["metadata"]["labels"][GROUP] for pod in pods if serves(pod)}
        self.away.append(frozenset({"talk", "code"} - serving))
        return len(self.ready_at) == 2

    def _pods(self) -> list[dict[str, Any]]:
        return self._scene.cluster.pods(NAMESPACE, f"tidegate.io/pool=pool,{GROUP}")


def serves(pod: dict[str, Any]) -> bool:
    leaves = "deletionTimestamp" in pod["metadata"]
    return not leaves and condition(pod, "Ready").get("status") == "True"
