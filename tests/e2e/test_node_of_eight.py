"""The example of a node of eight GPUs on the local cluster: who is served where, while home is
busy, while nothing but the fallback is left, and afterwards.

What is sent goes to the pool's one address, so all of it comes by the router. The example's pods
are as it has them (two GPUs each, drafts, the plug-in) but for the engine, which is the fake one
with four seats, and the shared state, which is a server of the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.redis_server import redis_server

from testbed.e2e_cluster import Cluster, Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NAMESPACE = "e2e-node"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "8xh100" / "pool.yaml"
GROUP = "tidegate.io/engine-group"
SERVED_BY = "x-tidegate-engine-group"
SEATS = 4
HOMES = {"paid": "chat", "batch": "code", "free": "plain"}
"""Of the tiers that this test has a tenant of, by its tier's name."""
TIERS = ("paid", "agents", "batch", "free")
OTHER_ENGINE = {
    "image": "vllm/vllm-openai:v0.31.0",
    "parallelism": {"tensor": 1},
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "args": ["--max-num-seqs=2"],
    "plugin": "Disabled",
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "spare", "operator": "Exists"}],
}
WAIT_SECONDS = 90


def of_the_scene(value: Any) -> Any:
    """The example's names of tiers as this test's, which share a cluster with other tests'."""
    if isinstance(value, dict):
        return {key: of_the_scene(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [of_the_scene(inner) for inner in value]
    return f"{NAMESPACE}-{value}" if value in TIERS else value


def example(shared_state: str) -> dict[str, Any]:
    """Its spec, in front of fake engines."""
    spec = of_the_scene(yaml.safe_load(EXAMPLE.read_text())["spec"])
    engine = spec["engine"]
    engine["args"] = [f"--max-num-seqs={SEATS}", "--max-num-batched-tokens=8192"]
    engine["drainTimeout"] = "3s"
    engine["env"] = [
        {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
        {"name": "TIDEGATE_FAKE_REQUEST_LOG", "value": "/dev/stdout"},
        {"name": "TIDEGATE_FAKE_IGNORE_EOS", "value": "1"},
    ]
    return spec | {"sharedState": {"address": shared_state}}


@pytest.fixture
def node(make_scene: Callable[..., Scene], tmp_path: Path) -> Iterator[Scene]:
    with redis_server(tmp_path) as server:
        spec = example(server.address)
        yield make_scene(
            NAMESPACE,
            tiers={tier: {} for tier in TIERS},
            tenants={tier: {"tier": tier} for tier in HOMES},
            replicas=spec["replicas"],
            pool_spec=spec,
        )


async def test_a_node_of_eight_gpus_serves_at_home_spills_falls_back_and_comes_back(
    node: Scene,
) -> None:
    scene, cluster = node, node.cluster
    pods = cluster.pods(NAMESPACE, f"tidegate.io/pool=pool,{GROUP}")
    assert sorted(pod["metadata"]["labels"][GROUP] for pod in pods) == [
        "chat", "code", "fallback", "plain",
    ]  # fmt: skip
    assert sum(gpus(pod) for pod in pods) == 8
    status = scene.pool_object()["status"]
    assert (status["replicas"], status["readyReplicas"]) == (3, 3)
    assert not condition(scene.pool_object(), "GroupsNotRouted")
    until_fallback(scene, "False", "StandsBy")
    async with Calls(scene) as calls:
        for tenant, home in HOMES.items():
            assert await calls.served_by(tenant) == (200, None)
            assert calls.last_id in engine_ids(scene, f"pool-{home}-0")

        async with calls.occupying("paid", SEATS):
            # At once, or handed on from home's queue where the other router had it come there.
            assert await calls.served_by("paid") in ((200, "code"), (200, "plain"))
            assert await calls.served_by("batch") == (200, None)
        await calls.until_at_home("paid")

        replicas(scene, 0)
        until_fallback(scene, "True", "NoOtherPodServes")
        await calls.until_served_by("paid", "fallback")  # pods that leave still serve for a while
        assert await calls.served_by("batch") == (503, None)
        assert calls.retry_after_seconds >= 1
        replicas(scene, 3)
        until_fallback(scene, "False", "StandsBy")
        for tenant in HOMES:
            await calls.until_at_home(tenant)
        before = uids(scene)
        scene.change(fallback=scene.pool_spec["fallback"] | {"replicas": 1, "engine": OTHER_ENGINE})
        cluster.until("the fallback's new engine", lambda: is_other(scene), WAIT_SECONDS)
        until_fallback(scene, "False", "StandsBy")
        after = uids(scene)
        assert {name for name in before if before[name] != after[name]} == {"pool-fallback-0"}
    told = [(event["type"], event["reason"]) for event in events(cluster)]
    assert told == [("Warning", "NoOtherPodServes"), ("Normal", "StandsBy")]


class Calls:
    """What tenants send to the pool's address; an async context manager."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._url = f"{scene.endpoint}/v1/completions"
        self.last_id = ""
        self.retry_after_seconds = 0

    async def __aenter__(self) -> Calls:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def _post(self, tenant: str, tokens: int, *, stream: bool) -> Any:
        body = {
            "model": self._scene.pool_spec["model"]["name"],
            "prompt": "Say where you are.",
            "max_tokens": tokens,
            "stream": stream,
        }
        headers = {"Authorization": f"Bearer {self._scene.key(tenant)}"}
        return self._client.post(self._url, json=body, headers=headers)

    async def served_by(self, tenant: str) -> tuple[int, str | None]:
        """Status, and the group that the answer names: None is home."""
        async with self._post(tenant, 2, stream=False) as answer:
            await answer.read()
            self.last_id = answer.headers.get("x-request-id", "")
            self.retry_after_seconds = int(answer.headers.get("Retry-After", "0"))
            return answer.status, answer.headers.get(SERVED_BY)

    async def until_at_home(self, tenant: str) -> None:
        await self.until_served_by(tenant, None)

    async def until_served_by(self, tenant: str, group: str | None) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.served_by(tenant) != (200, group):
                pass  # each answer takes a moment

    @contextlib.asynccontextmanager
    async def occupying(self, tenant: str, count: int) -> Any:
        """So many streams run, which end when the context does."""
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(count):
                answer = await streams.enter_async_context(self._post(tenant, 30_000, stream=True))
                assert answer.status == 200
                assert SERVED_BY not in answer.headers
                await answer.content.readany()
            yield


def uids(scene: Scene) -> dict[str, str]:
    """Of all engine pods, by name."""
    found = scene.cluster.pods(NAMESPACE, f"tidegate.io/pool=pool,{GROUP}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def is_other(scene: Scene) -> bool:
    """Whether the fallback's pod is as :data:`OTHER_ENGINE` says, in each of its fields."""
    (pod,) = scene.cluster.pods(NAMESPACE, f"tidegate.io/pool=pool,{GROUP}=fallback") or [None]
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


def replicas(scene: Scene, count: int) -> None:
    scene.cluster.kubectl("scale", "servingpool", "pool", "-n", NAMESPACE, f"--replicas={count}")


def until_fallback(scene: Scene, *wanted: str) -> None:
    def says() -> bool:
        found = condition(scene.pool_object(), "Fallback")
        return (found.get("status"), found.get("reason")) == wanted

    scene.cluster.until(f"Fallback is {wanted}", says, WAIT_SECONDS)


def events(cluster: Cluster) -> list[dict[str, Any]]:
    """Of the pool, oldest first."""
    found = cluster.get("events", "-n", NAMESPACE)["items"]
    ours = [event for event in found if event["involvedObject"]["kind"] == "ServingPool"]
    return sorted(ours, key=lambda event: event["lastTimestamp"])
