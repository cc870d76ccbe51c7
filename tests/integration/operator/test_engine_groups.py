"""Engine groups on a real API server: pods over groups, another set of them, rollouts in turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.custom_resources import Json, pool, tenant, tier
from support.operator_cluster import OperatorCluster, eventually
from tidegate_operator.kinds import KINDS

pytestmark = pytest.mark.integration

GROUPS = [
    {"name": "chat", "tiers": ["grp0"], "share": 2},
    {"name": "code", "tiers": ["grp2"], "draft": {"method": "Ngram", "tokens": 4}},
]
GROUP = "tidegate.io/engine-group"
NOT_READY = {
    "conditions": [
        {"type": kind, "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("ContainersReady", "Ready")
    ]
}


class Seen:
    """What there is of the pool `chat`."""

    def __init__(self, cluster: OperatorCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    async def names(self, kind: str) -> set[str]:
        selector = "tidegate.io/pool=chat"
        found = await self.cluster.kube.list(KINDS[kind], self.namespace, selector)
        return {obj["metadata"]["name"] for obj in found}

    async def replicas(self) -> dict[str, int]:
        found = await self.cluster.kube.list(
            KINDS["StatefulSet"], self.namespace, "tidegate.io/pool=chat"
        )
        return {obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in found}

    async def pods(self) -> list[Json]:
        return await self.cluster.kube.list(KINDS["Pod"], self.namespace, "tidegate.io/pool=chat")

    async def pool_status(self) -> Json:
        return (await self.cluster.get("ServingPool", "chat", self.namespace) or {})["status"]

    async def leads_to(self) -> str:
        service = await self.cluster.get("Service", "chat", self.namespace) or {}
        return str(service["spec"]["selector"][GROUP])


async def test_groups_take_over_from_one_and_give_way_to_one(
    cluster: OperatorCluster, namespace: str
) -> None:
    def spec(**more: Any) -> Json:
        tiers = [{"name": "grp0"}, {"name": "grp2"}]
        return pool(namespace=namespace, tiers=tiers, **more)

    seen = Seen(cluster, namespace)
    await cluster.apply(
        tier("grp0"),
        tier("grp2"),
        tenant("a", "grp2", namespace=namespace),
        spec(replicas=2),
    )
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True", "Ready")
        before = {pod["metadata"]["uid"] for pod in await seen.pods()}
        assert len(before) == 2

        await cluster.apply(spec(replicas=3, engineGroups=GROUPS))
        await eventually(
            lambda: is_equal(seen.replicas(), {"chat-chat": 2, "chat-code": 1}), "the groups alone"
        )
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True", "Ready")
        assert await seen.names("PodDisruptionBudget") == {"chat-chat", "chat-code"}
        assert await seen.names("Service") == {"chat", "chat-engines", "chat-chat", "chat-code"}
        assert await seen.leads_to() == "chat"
        by_group: dict[str, list[str]] = {}
        for pod in await seen.pods():
            (engine,) = [c for c in pod["spec"]["containers"] if c["name"] == "engine"]
            drafts = [a for a in engine["args"] if a.startswith("--speculative-config=")]
            by_group.setdefault(pod["metadata"]["labels"][GROUP], []).extend(drafts)
        assert by_group == {
            "chat": [],
            "code": ['--speculative-config={"method":"ngram","num_speculative_tokens":4}'],
        }
        rows = (await seen.pool_status())["engineGroups"]
        assert [(row["name"], row["desired"], row["readyReplicas"]) for row in rows] == [
            ("chat", 2, 2),
            ("code", 1, 1),
        ]
        said = await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "GroupsNotRouted", "True", "NoRouter"
        )
        home = f"http://chat-code.{namespace}.svc:8000"
        assert home in said

        async def addresses() -> bool:
            found = (await cluster.get("Tenant", "a", namespace) or {})["status"]
            return bool(found.get("addresses") == [home])

        await eventually(addresses, "the Tenant is told where to call")

        await cluster.apply(spec(replicas=1))
        await eventually(lambda: is_equal(seen.replicas(), {"chat": 1}), "one group again")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True", "Ready")
        assert await seen.names("Service") == {"chat", "chat-engines"}
        assert await seen.names("PodDisruptionBudget") == {"chat"}
        assert await seen.leads_to() == "main"
        assert "engineGroups" not in await seen.pool_status()


async def test_scaling_and_a_change_of_the_engine(cluster: OperatorCluster, namespace: str) -> None:
    def spec(image: str, replicas: int) -> Json:
        return pool(
            namespace=namespace,
            tiers=[{"name": "grp0"}, {"name": "grp2"}],
            replicas=replicas,
            engine={"image": image},
            engineGroups=GROUPS,
        )

    seen = Seen(cluster, namespace)
    await cluster.apply(tier("grp0"), tier("grp2"), tenant("a", "grp0", namespace=namespace))
    await cluster.apply(spec("vllm:1", 3))
    async with cluster.operator(), cluster.pods(namespace):
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True", "Ready")
        await cluster.apply(spec("vllm:1", 1))
        said = await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "Accepted", "False", "TooFewReplicas"
        )
        assert "set at least 2" in said
        assert await seen.replicas() == {"chat-chat": 2, "chat-code": 1}

        await cluster.apply(spec("vllm:1", 5))
        wanted = {"chat-chat": 3, "chat-code": 2}
        await eventually(lambda: is_equal(seen.replicas(), wanted), "five pods over two groups")
        await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True", "Ready")

        await cluster.apply(spec("vllm:2", 5))

        async def images() -> list[tuple[str, str, str]]:
            return [
                (
                    pod["metadata"]["labels"][GROUP],
                    next(c["image"] for c in pod["spec"]["containers"] if c["name"] == "engine"),
                    pod["metadata"]["creationTimestamp"],
                )
                for pod in await seen.pods()
                if not pod["metadata"].get("deletionTimestamp")
            ]

        async def replaced() -> list[tuple[str, str, str]] | None:
            found = await images()
            done = len(found) == 5 and {image for _, image, _ in found} == {"vllm:2"}
            return found if done else None

        pods = await eventually(replaced, "all pods are new", 60.0)
        # One group at a time: the last of chat was made before the first of code.
        made: dict[str, list[str]] = {}
        for group, _, when in pods:
            made.setdefault(group, []).append(when)
        assert max(made["chat"]) <= min(made["code"])
        await cluster.condition_becomes(
            "ServingPool", "chat", namespace, "Progressing", "False", "PodsReady"
        )


def scale_of(namespace: str) -> str:
    """Path of the pool's /scale."""
    return f"/apis/tidegate.io/v1alpha1/namespaces/{namespace}/servingpools/chat/scale"


async def is_equal(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)


async def test_a_fallback_counts_by_itself_and_says_when_it_serves(
    cluster: OperatorCluster, namespace: str
) -> None:
    def spec(**more: Any) -> Json:
        return pool(namespace=namespace, tiers=[{"name": "grp0"}, {"name": "grp2"}], **more)

    async def becomes(*wanted: str) -> str:
        return await cluster.condition_becomes("ServingPool", "chat", namespace, *wanted)

    async def told() -> list[tuple[str, str]]:
        events = await cluster.kube.list(KINDS["Event"], namespace)
        ours = [e for e in events if e["involvedObject"]["kind"] == "ServingPool"]
        return sorted((e["type"], e["reason"]) for e in ours)

    seen = Seen(cluster, namespace)
    fallback = {"tiers": ["grp0"], "engine": {"image": "vllm:2"}}
    await cluster.apply(tier("grp0"), tier("grp2"), tenant("a", "grp0", namespace=namespace))
    await cluster.apply(spec(replicas=2, router={"replicas": 1}, fallback=fallback))
    async with cluster.operator(), cluster.pods(namespace) as playing:
        await becomes("Fallback", "False", "StandsBy")
        await becomes("Ready", "True", "Ready")
        assert await seen.replicas() == {"chat": 2, "chat-fallback": 1}
        assert "chat-fallback" in await seen.names("PodDisruptionBudget")
        assert "chat-fallback" not in await seen.names("Service")
        status = await seen.pool_status()
        assert (status["replicas"], status["readyReplicas"]) == (2, 2)
        scale = await asyncio.to_thread(cluster.plane.kubectl, "get", "--raw", scale_of(namespace))
        assert scale.returncode == 0, scale.stderr
        assert json.loads(scale.stdout)["status"]["selector"] == status["selector"]
        selected = await cluster.kube.list(KINDS["Pod"], namespace, status["selector"])
        assert {p["metadata"]["name"] for p in selected} == {"chat-0", "chat-1"}
        assert [(row["name"], row["readyReplicas"]) for row in status["engineGroups"]] == [
            ("main", 2),
            ("fallback", 1),
        ]
        (spare,) = [p for p in await seen.pods() if p["metadata"]["name"] == "chat-fallback-0"]
        images = {c["name"]: c["image"] for c in spare["spec"]["containers"]}
        assert images["engine"] == "vllm:2"
        assert await told() == [], "nothing has happened yet"

        playing.ready = False
        for engine in selected:
            await cluster.kube.patch_status(KINDS["Pod"], engine, NOT_READY)
        said = await becomes("Fallback", "True", "NoOtherPodServes")
        assert "1 of the fallback serve grp0" in said
        assert (await seen.pool_status())["readyReplicas"] == 0
        await eventually(lambda: is_equal(told(), [("Warning", "NoOtherPodServes")]), "an event")
        playing.ready = True
        await becomes("Fallback", "False", "StandsBy")
        await eventually(
            lambda: is_equal(told(), [("Normal", "StandsBy"), ("Warning", "NoOtherPodServes")]),
            "an event of its end",
        )

        await cluster.apply(spec(replicas=2, router={"replicas": 1}))
        await eventually(lambda: is_equal(seen.replicas(), {"chat": 2}), "it is gone")
        assert "chat-fallback" not in await seen.names("PodDisruptionBudget")

        async def unsaid() -> bool:
            return not await cluster.condition("ServingPool", "chat", namespace, "Fallback")

        await eventually(unsaid, "nothing is said of it")
