"""Fields for what is shared, on a running pool: the prefix cache of an engine among tenants, the
counts of rate limits among pods, and the spans of requests with a collector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.redis_server import RedisServer, redis_server
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Scene, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE = "e2e-shared"
LIMIT = 4
SECRET = "shared-state"
PASSWORD = "not-for-the-policy"
REPLACED_SECONDS = 150
WAIT_SECONDS = 60
ENGINE = {
    "image": "vllm/vllm-openai:v0.32.0",
    "env": [
        {"name": "TIDEGATE_FAKE_CALIBRATION", "value": "test"},
        {"name": "TIDEGATE_FAKE_REQUEST_LOG", "value": "/dev/stdout"},
    ],
    "drainTimeout": "5s",
    # A busy machine may stand still for longer than the 10 ms that a request waits for the server.
    "podTemplate": {
        "spec": {
            "containers": [
                {
                    "name": "sidecar",
                    "env": [{"name": "TIDEGATE_SHARED_STATE_DEADLINE_MS", "value": "10000"}],
                }
            ]
        }
    },
}
TENANTS: dict[str, dict[str, Any]] = {
    "alone-1": {"tier": "plain"},
    "alone-2": {"tier": "plain", "prefixCache": "Isolated"},
    "team-1": {"tier": "plain", "prefixCache": "team"},
    "team-2": {"tier": "plain", "prefixCache": "team"},
    "apart": {"tier": "limited"},
    "together": {"tier": "limited"},
}


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """Two pods, since what one pod counts is shared with nobody."""
    limits = [{"name": "calls", "per": "Hour", "requests": LIMIT}]
    return make_scene(
        NAMESPACE,
        tiers={"plain": {}, "limited": {"rateLimits": limits}},
        tenants=TENANTS,
        replicas=2,
        pool_spec={"engine": ENGINE},
    )


async def test_what_is_shared_and_sent_away(scene: Scene, tmp_path: Path) -> None:
    """One pool and one test: what takes long is the pods."""
    first, second = endpoints(scene)
    await a_group_shares_the_prefix_cache(scene, first)
    await spans_come_while_a_collector_is_named(scene, first)
    with redis_server(tmp_path, password=PASSWORD) as server:
        await pods_count_in_one_server(scene, server, first, second)


def endpoints(scene: Scene) -> list[str]:
    """Of each pod by itself."""
    living = (pod for pod in scene.pods() if "deletionTimestamp" not in pod["metadata"])
    return sorted(f"http://{pod['status']['podIP']}:8000" for pod in living)


async def send(
    scene: Scene, endpoint: str, tenant: str, count: int = 1, seed: int = 0
) -> list[Sent]:
    """So many requests of 64 tokens, one after the other; the prompts depend on the seed alone."""
    async with TenantClient(endpoint, scene.key(tenant), scene.model, seed=seed) as client:
        return [await client.complete(64, 1) for _ in range(count)]


async def a_group_shares_the_prefix_cache(scene: Scene, endpoint: str) -> None:
    """A prompt that the other one of two tenants has sent before."""
    pairs = (("alone-1", "alone-2"), ("team-1", "team-2"), ("team-1", "alone-1"))
    found = [
        [await cached_tokens(scene, endpoint, tenant, seed) for tenant in pair]
        for seed, pair in enumerate(pairs)
    ]
    assert [once for once, _ in found] == [0, 0, 0]
    (_, isolated), (_, shared), (_, outside) = found
    assert isolated == outside == 0 < shared


async def cached_tokens(scene: Scene, endpoint: str, tenant: str, seed: int) -> int:
    """Of the prompt of one request, what the engine had computed before."""
    (sent,) = await send(scene, endpoint, tenant, seed=seed)
    assert sent.complete, sent

    def scheduled() -> list[dict[str, Any]]:
        events = (event for event in scene.engine_events() if event["event"] == "scheduled")
        return [event for event in events if event["x_request_id"] == sent.request_id]

    (event,) = await asyncio.to_thread(
        scene.cluster.until, f"{sent.request_id} in the engine's log", scheduled, WAIT_SECONDS
    )
    return int(event["cached_tokens"])


async def spans_come_while_a_collector_is_named(scene: Scene, endpoint: str) -> None:
    """Of three requests, before, while and after the pool names it, those of the second."""
    traced: list[str] = []

    async def collect(request: web.Request) -> web.Response:
        batch = ExportTraceServiceRequest.FromString(await request.read())
        traced.extend(
            attribute.value.string_value
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            for attribute in span.attributes
            if attribute.key == "tidegate.request.id"
        )
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
        await send(scene, endpoint, "alone-1")
        await asyncio.to_thread(scene.change, observability={"otlp": {"endpoint": url}})
        (sent,) = await send(scene, endpoint, "alone-1")
        await asyncio.to_thread(scene.change, observability=None)
        await send(scene, endpoint, "alone-1")
        await asyncio.to_thread(
            scene.cluster.until, "spans at the collector", lambda: traced, WAIT_SECONDS
        )
    finally:
        await runner.cleanup()
    assert set(traced) == {sent.request_id}


async def pods_count_in_one_server(
    scene: Scene, server: RedisServer, first: str, second: str
) -> None:
    """A limit that was used up on one pod: the other serves its own part of it, or nothing. The
    server asks for a password: without ``secretRef`` it is as if there were none, and is said."""
    until = scene.cluster.until

    def missing() -> dict[str, Any]:
        return condition(scene.pool_object(), "SharedStateMissing")

    def both() -> bool:
        return subscribers(server) == 2

    told = await asyncio.to_thread(until, "SharedStateMissing", missing, WAIT_SECONDS)
    assert (told["status"], told["reason"]) == ("True", "SharedStateUnset")
    await send(scene, first, "apart", LIMIT)
    assert None in {sent.code for sent in await send(scene, second, "apart", LIMIT)}

    def cut_off() -> bool:
        return missing().get("reason") == "SharedStateUnavailable"

    shared: dict[str, Any] = {"address": server.address}
    await asyncio.to_thread(scene.change, sharedState=shared)
    await asyncio.to_thread(until, "SharedStateUnavailable", cut_off, WAIT_SECONDS)
    assert "pod pool-" in missing()["message"]
    scene.cluster.apply(password_secret(scene))
    shared["secretRef"] = {"name": SECRET, "key": "password"}
    await asyncio.to_thread(scene.change, sharedState=shared)
    await asyncio.to_thread(until, "both new pods at the server", both, REPLACED_SECONDS)
    await asyncio.to_thread(until, "both pods ready", scene.ready, WAIT_SECONDS)
    first, second = endpoints(scene)
    served = [sent.code for sent in await send(scene, first, "together", LIMIT)]
    refused = await send(scene, second, "together", LIMIT)
    assert served == [None] * LIMIT
    assert [sent.code for sent in refused] == ["rate_limit_exceeded"] * LIMIT
    await asyncio.to_thread(it_is_explained, scene, str(refused[0].request_id))
    assert counted(scene, server, "together") == LIMIT
    assert counted(scene, server, "apart") == 0
    await asyncio.to_thread(until, "no SharedStateMissing", lambda: not missing(), WAIT_SECONDS)


def it_is_explained(scene: Scene, request: str) -> None:
    """Which limit refused the request, and how full its tenant's is, from all over the cluster."""
    told = scene.cluster.tidegate("explain", request)
    assert f"rate_limited by limit calls ({LIMIT} requests an hour), told to retry after" in told
    told = scene.cluster.tidegate("explain", f"{scene.namespace}/together")
    assert f"limit calls: {LIMIT} of {LIMIT} requests an hour" in told


def password_secret(scene: Scene) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": scene.namespace},
        "stringData": {"password": PASSWORD},
    }


def subscribers(server: RedisServer) -> int:
    """Pods that listen to what others serve, as each does once it has found the server."""
    channels = server.client.pubsub_channels("tidegate:service:*")
    return sum(listeners for _, listeners in server.client.pubsub_numsub(*channels))


def counted(scene: Scene, server: RedisServer, tenant: str) -> int:
    """Requests of a tenant in the server's counts."""
    obj = scene.cluster.get("tenants.tidegate.io", tenant, "-n", scene.namespace)
    fields = server.client.hgetall(f"tidegate:limit:{{{obj['metadata']['uid']}}}:calls:Hour")
    return sum(int(value) for name, value in fields.items() if name.startswith("r"))
