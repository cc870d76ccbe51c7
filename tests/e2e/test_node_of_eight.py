"""The example of a node of eight GPUs on the local cluster: who is served where, while home is
busy, while nothing but the fallback is left, and afterwards.

What is sent goes to the pool's one address, so all of it comes by one of two routers, in turn. The
example's tiers, pods and shared state are as it has them (two GPUs each, drafts, the plug-in), but
for the engine, which is the fake one with four seats.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
import yaml
from tidegate_operator.events import FIRST_TOKENS_SLOW

from testbed.e2e_cluster import Cluster, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAMESPACE = "e2e-node"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "8xh100"
GROUP = "tidegate.io/engine-group"
SERVED_BY = "x-tidegate-engine-group"
SEATS = 4
HOMES = {"paid": "chat", "agents": "chat", "batch": "code", "free": "plain"}
"""Of a tenant of each tier, named like it."""
ROUTERS = 2
ROUTER_RESOURCES = {"limits": {"memory": "400Mi"}, "requests": {"cpu": "50m", "memory": "200Mi"}}
AT_HOME = (200, None)
STAYS_REQUESTS = 20
"""Looked at of each tenant that has come back."""
OTHER_ENGINE = {
    "image": "vllm/vllm-openai:v0.31.0",
    "parallelism": {"tensor": 1},
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "args": ["--max-num-seqs=2"],
    "plugin": "Disabled",
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "spare", "operator": "Exists"}],
}
PASSWORD = "not-for-the-policy"
WAIT_SECONDS = 90


def documents(name: str) -> list[dict[str, Any]]:
    """One file of the example."""
    return list(yaml.safe_load_all((EXAMPLE / name).read_text()))


def tiers() -> dict[str, dict[str, Any]]:
    """The example's, for the namespace of this test."""
    found = {obj["metadata"]["name"]: obj["spec"] for obj in documents("tiers.yaml")}
    return {
        name: {field: value for field, value in spec.items() if field != "allowedNamespaces"}
        for name, spec in found.items()
    }


def of_the_scene(value: Any) -> Any:
    """The example's names of tiers as this test's, which share a cluster with other tests'."""
    if isinstance(value, dict):
        return {key: of_the_scene(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [of_the_scene(inner) for inner in value]
    return f"{NAMESPACE}-{value}" if value in HOMES else value


def pool_spec() -> dict[str, Any]:
    """The example's, in front of fake engines."""
    (pool,) = documents("pool.yaml")
    spec: dict[str, Any] = of_the_scene(pool["spec"])
    engine, shared = spec["engine"], spec["sharedState"]
    engine["args"] = [f"--max-num-seqs={SEATS}", "--max-num-batched-tokens=8192"]
    engine["drainTimeout"] = "3s"
    engine["env"] = [
        {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
        {"name": "TIDEGATE_FAKE_REQUEST_LOG", "value": "/dev/stdout"},
        {"name": "TIDEGATE_FAKE_IGNORE_EOS", "value": "1"},
    ]
    shared["address"] = shared["address"].replace(".node.svc", f".{NAMESPACE}.svc")
    spec["router"]["resources"] = ROUTER_RESOURCES
    return spec


def shared_state(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The example's server, and the password that it and the pool name."""
    ref = spec["sharedState"]["secretRef"]
    objects = documents("valkey.yaml")
    for obj in objects:
        obj["metadata"]["namespace"] = NAMESPACE
    metadata = {"name": ref["name"], "namespace": NAMESPACE}
    data = {ref["key"]: PASSWORD}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data},
        *objects,
    ]


@pytest.fixture
def node(cluster: Cluster, make_scene: Callable[..., Scene]) -> Scene:
    spec = pool_spec()
    cluster.apply(Scene(cluster, NAMESPACE, {}, {}).namespace_object())
    cluster.apply(*shared_state(spec))
    return make_scene(
        NAMESPACE,
        tiers=tiers(),
        tenants={tier: {"tier": tier} for tier in HOMES},
        replicas=spec["replicas"],
        pool_spec=spec,
    )


async def test_a_node_of_eight_gpus_serves_at_home_spills_falls_back_and_comes_back(
    node: Scene,
) -> None:
    """One pool and one test: what takes long is the pods."""
    it_is_as_the_example_says(node)
    async with Calls(node) as calls:
        await each_tier_is_served_at_home(calls)
        for occupant, home in (("paid", "chat"), ("batch", "code"), ("free", "plain")):
            await all_of_a_busy_home_spill(calls, occupant, home)
        await who_never_spills_waits(calls)
        await the_fallback_serves_its_tiers(calls)
        await all_come_back_and_stay(calls)
        a_change_of_the_fallbacks_engine_replaces_its_pod_alone(node)
    assert told_of_the_fallback(node.cluster) == [
        ("Warning", "NoOtherPodServes"),
        ("Normal", "StandsBy"),
    ]


def it_is_as_the_example_says(scene: Scene) -> None:
    pods = engine_pods(scene)
    assert sorted(pods) == ["pool-chat-0", "pool-code-0", "pool-fallback-0", "pool-plain-0"]
    assert sum(map(gpus, pods.values())) == 8
    routers = scene.cluster.pods(NAMESPACE, "tidegate.io/pool=pool,tidegate.io/component=router")
    asked = [pod["spec"]["containers"][0]["resources"] for pod in routers]
    assert asked == [ROUTER_RESOURCES] * ROUTERS
    pool = scene.pool_object()
    assert (pool["status"]["replicas"], pool["status"]["readyReplicas"]) == (3, 3)
    assert not condition(pool, "GroupsNotRouted")
    until_fallback(scene, "False", "StandsBy")

    def shared() -> bool:
        return pods_at_the_shared_state(scene) == len(pods)

    def told() -> bool:
        return not condition(scene.pool_object(), "SharedStateMissing")

    scene.cluster.until("all pods are at the shared state", shared, WAIT_SECONDS)
    scene.cluster.until("and nothing says otherwise", told, WAIT_SECONDS)


async def each_tier_is_served_at_home(calls: Calls) -> None:
    for tenant, home in HOMES.items():
        assert await calls.served_by(tenant) == AT_HOME
        assert calls.last_id in engine_ids(calls.scene, f"pool-{home}-0")


async def all_of_a_busy_home_spill(calls: Calls, occupant: str, home: str) -> None:
    """To another group, at once or handed on from home's queue; nobody else is moved."""
    others = {(200, group) for group in HOMES.values() if group != home}
    at_home = [tenant for tenant in HOMES if HOMES[tenant] == home]
    async with calls.occupying(occupant, SEATS):
        # First who has a queue there, until each router knows: the first request of another tier
        # would go into the engine, from which nothing is handed on.
        for tenant in [occupant] * ROUTERS + at_home:
            assert await calls.served_by(tenant) in others
        for tenant in HOMES.keys() - set(at_home):
            assert await calls.served_by(tenant) == AT_HOME
    for tenant in at_home:
        await calls.comes_back(tenant)


async def who_never_spills_waits(calls: Calls) -> None:
    """The same with spill: Never, as soon as the routers know it."""
    patch(calls.scene, engineGroups=groups(calls.scene, code={"spill": "Never"}))
    async with asyncio.timeout(WAIT_SECONDS):
        while not await waits_for_its_home(calls, "batch"):
            await calls.comes_back("batch")
    assert calls.last_id in engine_ids(calls.scene, "pool-code-0")


async def waits_for_its_home(calls: Calls, tenant: str) -> bool:
    """Whether a request whose home is busy is served there, once that has a seat."""
    async with calls.occupying(tenant, SEATS):
        waiting = asyncio.create_task(calls.served_by(tenant))
        _, unanswered = await asyncio.wait({waiting}, timeout=2.0)
    return await waiting == AT_HOME and bool(unanswered)


async def the_fallback_serves_its_tiers(calls: Calls) -> None:
    """While no other pod serves: those that it names, and others as soon as it names them."""
    scene = calls.scene
    (before,) = engine_pods(scene, "fallback").values()
    patch(scene, replicas=0)
    until_fallback(scene, "True", "NoOtherPodServes")
    await calls.until_served_by("paid", "fallback")  # pods that leave still serve for a while
    for tenant in HOMES.keys() - {"paid"}:
        assert await calls.served_by(tenant) == (503, None)
        assert calls.retry_after_seconds >= 1
    everybody = [f"{NAMESPACE}-{tier}" for tier in HOMES]
    patch(scene, fallback={"tiers": everybody})
    for tenant in HOMES:
        await calls.until_served_by(tenant, "fallback")
    (after,) = engine_pods(scene, "fallback").values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def all_come_back_and_stay(calls: Calls) -> None:
    """To one pod more than there were, which goes where the share says."""
    scene = calls.scene
    patch(scene, engineGroups=groups(scene, chat={"share": 1}, code={"share": 2}), replicas=4)
    until_fallback(scene, "False", "StandsBy")
    for tenant in HOMES:
        await calls.comes_back(tenant)
    main = sorted(name for name in engine_pods(scene) if not name.startswith("pool-fallback"))
    assert main == ["pool-chat-0", "pool-code-0", "pool-code-1", "pool-plain-0"]


def a_change_of_the_fallbacks_engine_replaces_its_pod_alone(scene: Scene) -> None:
    before = uids(scene)
    patch(scene, fallback={"engine": OTHER_ENGINE})
    scene.cluster.until("the fallback's new engine", lambda: is_other(scene), WAIT_SECONDS)
    until_fallback(scene, "False", "StandsBy")
    after = uids(scene)
    assert {name for name in before if before[name] != after[name]} == {"pool-fallback-0"}


class Calls:
    """What tenants send to the pool's address; an async context manager.

    Each request has a connection of its own, so that the routers get them in turn.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._url = f"{scene.endpoint}/v1/completions"
        self.last_id = ""
        self.retry_after_seconds = 0

    async def __aenter__(self) -> Calls:
        self._client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=WAIT_SECONDS),
            connector=aiohttp.TCPConnector(force_close=True),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def _post(self, tenant: str, tokens: int, *, stream: bool) -> Any:
        body = {
            "model": self.scene.pool_spec["model"]["name"],
            "prompt": "Say where you are.",
            "max_tokens": tokens,
            "stream": stream,
        }
        headers = {"Authorization": f"Bearer {self.scene.key(tenant)}"}
        return self._client.post(self._url, json=body, headers=headers)

    async def served_by(self, tenant: str) -> tuple[int, str | None]:
        """Status, and the group that the answer names: None is home."""
        async with self._post(tenant, 2, stream=False) as answer:
            await answer.read()
            self.last_id = answer.headers.get("x-request-id", "")
            self.retry_after_seconds = int(answer.headers.get("Retry-After", "0"))
            return answer.status, answer.headers.get(SERVED_BY)

    async def until_served_by(self, tenant: str, group: str | None) -> None:
        """By all routers."""
        in_a_row = 0
        async with asyncio.timeout(WAIT_SECONDS):
            while in_a_row < ROUTERS:
                served = await self.served_by(tenant) == (200, group)
                in_a_row = in_a_row + 1 if served else 0
                await asyncio.sleep(0.1)

    async def comes_back(self, tenant: str) -> None:
        """Home is taken by all routers, and then for every request."""
        await self.until_served_by(tenant, None)
        answers = [await self.served_by(tenant) for _ in range(STAYS_REQUESTS)]
        assert answers == [AT_HOME] * STAYS_REQUESTS

    @contextlib.asynccontextmanager
    async def occupying(self, tenant: str, count: int) -> AsyncIterator[None]:
        """So many streams run, which end when the context does."""
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(count):
                answer = await streams.enter_async_context(self._post(tenant, 30_000, stream=True))
                assert answer.status == 200
                assert SERVED_BY not in answer.headers
                await answer.content.readany()
            yield


def patch(scene: Scene, **spec: Any) -> None:
    change = json.dumps({"spec": spec})
    scene.cluster.kubectl(
        "patch", "servingpool", "pool", "-n", NAMESPACE, "--type=merge", f"--patch={change}"
    )


def groups(scene: Scene, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The example's engine groups, some of them changed."""
    return [group | changes.get(group["name"], {}) for group in scene.pool_spec["engineGroups"]]


def engine_pods(scene: Scene, group: str = "") -> dict[str, dict[str, Any]]:
    """Of one group or of all, by name."""
    label = f"{GROUP}={group}" if group else GROUP
    found = scene.cluster.pods(NAMESPACE, f"tidegate.io/pool=pool,{label}")
    return {pod["metadata"]["name"]: pod for pod in found}


def pods_at_the_shared_state(scene: Scene) -> int:
    """Those that listen there to what others serve."""
    host = scene.cluster.get("service", "valkey", "-n", NAMESPACE)["spec"]["clusterIP"]
    with redis.Redis(host, password=PASSWORD, decode_responses=True) as server:
        channels = server.pubsub_channels("tidegate:service:*")
        return sum(listeners for _, listeners in server.pubsub_numsub(*channels))


def uids(scene: Scene) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in engine_pods(scene).items()}


def is_other(scene: Scene) -> bool:
    """Whether the fallback's pod is as :data:`OTHER_ENGINE` says, in each of its fields."""
    (pod,) = engine_pods(scene, "fallback").values() or [None]
    if pod is None:
        return False
    spec = pod["spec"]
    engine = next(c for c in spec["containers"] if c["name"] == "engine")
    return (
        engine["image"] == OTHER_ENGINE["image"]
        and {"--tensor-parallel-size=1", "--max-num-seqs=2"} <= set(engine["args"])
        and gpus(pod) == 1
        and not any(argument.startswith("--scheduler-cls") for argument in engine["args"])
        and spec["nodeSelector"] == OTHER_ENGINE["nodeSelector"]
        and any(toleration.get("key") == "spare" for toleration in spec["tolerations"])
        and condition(pod, "Ready").get("status") == "True"
    )


def gpus(pod: dict[str, Any]) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(each.get("nvidia.com/gpu", 0)) for each in limits)


def engine_ids(scene: Scene, pod: str) -> set[str]:
    """Of the requests that came to an engine."""
    return {event["x_request_id"] for event in scene.cluster.engine_log(NAMESPACE, pod)}


def until_fallback(scene: Scene, *wanted: str) -> None:
    def says() -> bool:
        found = condition(scene.pool_object(), "Fallback")
        return (found.get("status"), found.get("reason")) == wanted

    scene.cluster.until(f"Fallback is {wanted}", says, WAIT_SECONDS)


def told_of_the_fallback(cluster: Cluster) -> list[tuple[str, str]]:
    """Type and reason of the pool's events, oldest first; a slow machine may tell of another."""
    found = cluster.get("events", "-n", NAMESPACE)["items"]
    ours = [event for event in found if event["involvedObject"]["kind"] == "ServingPool"]
    ours.sort(key=lambda event: event["lastTimestamp"])
    return [(e["type"], e["reason"]) for e in ours if e["reason"] != FIRST_TOKENS_SLOW]
