"""A pool with a router on the local cluster: what clients see of it, and of its ways in and out."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator

import openai
import pytest
from support.certificates import self_signed
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Cluster, Scene, condition
from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.control_plane import APISERVER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMESPACE = "e2e-router"
REQUESTS_PER_MINUTE = 6
CLIENTS = 6


@pytest.fixture(scope="module")
def certificate() -> tuple[bytes, bytes]:
    return self_signed("router")


@pytest.fixture(scope="module")
def scene(cluster: Cluster, certificate: tuple[bytes, bytes]) -> Iterator[Scene]:
    """A pool with a router and TLS, whose certificate comes after it."""
    limit = {"name": "calls", "requests": REQUESTS_PER_MINUTE, "per": "Minute"}
    scene = Scene(
        cluster,
        NAMESPACE,
        tiers={"free": {"rateLimits": [limit]}, "paid": {}},
        tenants={
            "free": {"tier": "free"},
            "paid": {"tier": "paid"},
            "leaver": {"tier": "paid"},
        },
        replicas=2,
        pool_spec={"router": {"tls": {"secretRef": {"name": "pool-tls"}}}},
    )
    try:
        cluster.apply(scene.namespace_object())
        cluster.apply(*scene.objects())
        missing = cluster.until("it is said", lambda: missing_reference(scene), 60)
        assert "kubectl create secret tls pool-tls" in missing
        cluster.apply(tls_secret(certificate))
        cluster.until("the pool is ready", scene.ready, 120)
        yield scene
    finally:
        scene.down(wait=False)


def missing_reference(scene: Scene) -> str | None:
    found = condition(scene.pool_object(), "ResolvedRefs")
    return str(found["message"]) if found.get("reason") == "SecretNotFound" else None


def tls_secret(certificate: tuple[bytes, bytes]) -> dict[str, object]:
    names = ("tls.crt", "tls.key")
    encoded = (base64.b64encode(part).decode() for part in certificate)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "pool-tls", "namespace": NAMESPACE},
        "data": dict(zip(names, encoded, strict=True)),
    }


@pytest.fixture
def clients(scene: Scene, certificate: tuple[bytes, bytes]) -> Callable[[str], openai.OpenAI]:
    """The `openai` SDK of a tenant, which believes the pool's certificate and no other."""
    trusted = ssl.create_default_context(cadata=certificate[0].decode())
    url = scene.endpoint.replace("http://", "https://") + "/v1"

    def client(tenant: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=url,
            api_key=scene.key(tenant),
            max_retries=0,
            http_client=openai.DefaultHttpxClient(verify=trusted),
        )

    return client


def ask(client: openai.OpenAI, model: str) -> str | None:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
    )
    return answer.choices[0].message.content


def test_the_sdk_is_served_over_tls(scene: Scene, clients: Callable[[str], openai.OpenAI]) -> None:
    with clients("paid") as client:
        assert [model.id for model in client.models.list()] == [scene.model]
        for _ in range(6):
            assert ask(client, scene.model)
        with client.chat.completions.create(
            model=scene.model,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            stream=True,
        ) as stream:
            assert "".join(event.choices[0].delta.content or "" for event in stream)
    assert condition(scene.pool_object(), "Routed")["status"] == "True"
    told = scene.cluster.get("tenants.tidegate.io", "paid", "-n", NAMESPACE)["status"]["addresses"]
    assert told == [f"https://pool.{NAMESPACE}.svc:8000"]


async def test_an_engines_pod_serves_what_its_router_signed_and_nothing_else(
    scene: Scene,
) -> None:
    for pod in scene.pods():
        url = f"http://{pod['status']['podIP']}:8000"
        async with TenantClient(url, scene.key("paid"), scene.model) as client:
            sent = await client.complete(8, 4)
        assert sent.status == 401, sent


def test_a_limit_holds_over_all_pods(scene: Scene, clients: Callable[[str], openai.OpenAI]) -> None:
    served, waits = 0, []
    with clients("free") as client:
        for _ in range(REQUESTS_PER_MINUTE + 4):
            try:
                ask(client, scene.model)
                served += 1
            except openai.RateLimitError as error:
                waits.append(int(error.response.headers["retry-after"]))
    # Each pod has its part of the limit, and a client does not choose its pod.
    assert 0 < served <= REQUESTS_PER_MINUTE
    assert waits
    assert min(waits) > 0


def test_a_key_that_is_removed_is_refused_within_seconds(
    scene: Scene, clients: Callable[[str], openai.OpenAI]
) -> None:
    with clients("leaver") as client:
        assert ask(client, scene.model)
        scene.cluster.kubectl("delete", "tenants.tidegate.io", "leaver", "-n", NAMESPACE)

        def refused() -> bool:
            try:
                ask(client, scene.model)
            except openai.AuthenticationError:
                return True
            return False

        scene.cluster.until("the key is refused", refused, 25)


def test_without_the_api_server_requests_go_on(
    scene: Scene, clients: Callable[[str], openai.OpenAI], local_cluster: LocalCluster
) -> None:
    (pid,) = [state.pid for state in local_cluster.states() if state.name == APISERVER]
    assert pid is not None
    with clients("paid") as client:
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            while time.monotonic() < began + 2.0:
                assert ask(client, scene.model)
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_router_comes_to_a_pool_that_serves_and_goes_again(
    make_scene: Callable[..., Scene],
) -> None:
    """By the pool's Service, with connections that are kept: no request is refused or cut."""
    namespace = f"{NAMESPACE}-joins"
    scene = make_scene(namespace, tiers={"t": {}}, tenants={"a": {"tier": "t"}}, replicas=2)
    cluster, before = scene.cluster, scene.container_restarts()
    clients = [
        TenantClient(scene.endpoint, scene.key("a"), scene.model, seed=seed)
        for seed in range(CLIENTS)
    ]
    ending = asyncio.Event()

    async def keep_sending(client: TenantClient, stream: bool) -> None:
        async with client:
            while not ending.is_set():
                await client.complete(8, 8, stream=stream)
                await asyncio.sleep(0.05)

    sending = [
        asyncio.create_task(keep_sending(client, number % 2 == 0))
        for number, client in enumerate(clients)
    ]

    def has_come() -> bool:
        return condition(scene.pool_object(), "Routed").get("status") == "True"

    def has_gone() -> bool:
        gone = cluster.try_kubectl("get", "deployment", "pool-router", "-n", namespace)
        return gone.returncode != 0 and not condition(scene.pool_object(), "Routed")

    async def until(what: str, done: Callable[[], bool]) -> None:
        await asyncio.to_thread(cluster.until, what, done, 120)

    await asyncio.to_thread(set_router, scene, {})
    await until("the router serves", has_come)
    routed = len(requests_of(clients))
    assert service_leads_to(scene) == "router"
    async with TenantClient(scene.endpoint, scene.key("a"), scene.model) as client:
        assert (await client.complete(8, 4)).complete
    await asyncio.to_thread(set_router, scene, None)
    await until("the router is gone", has_gone)
    assert service_leads_to(scene) == "engine"
    ending.set()
    await asyncio.gather(*sending)
    sent = requests_of(clients)
    assert [each for each in sent if not each.complete] == []
    assert len(sent) > routed > 0
    kinds = "deployment,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget"
    left = cluster.get(kinds, "-n", namespace, "-l", "tidegate.io/component=router")
    assert left["items"] == []
    assert scene.container_restarts() == before


def set_router(scene: Scene, router: dict[str, object] | None) -> None:
    scene.pool_spec = {} if router is None else {"router": router}
    scene.cluster.apply(scene.pool())


def service_leads_to(scene: Scene) -> str:
    service = scene.cluster.get("service", "pool", "-n", scene.namespace)
    return str(service["spec"]["selector"]["tidegate.io/component"])


def requests_of(clients: list[TenantClient]) -> list[Sent]:
    return [sent for client in clients for sent in client.requests]
