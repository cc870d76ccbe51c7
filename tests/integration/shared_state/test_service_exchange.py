"""What pods tell each other about service, over a real server."""

from __future__ import annotations

import asyncio

import pytest
from support.fake_engine import until
from support.redis_server import RedisServer
from support.shared_state import Pod, StartPod

from tidegate.scheduling.contracts import TenantPolicy
from tidegate.scheduling.deficit_round_robin import difference_bound
from tidegate.scheduling.request import Request, Usage

pytestmark = pytest.mark.integration

QUANTUM = 100_000
TOKENS = 1_000
BOUND = difference_bound(QUANTUM, (TOKENS, 1), (TOKENS, 1))
PLACES = (("pinned", "spread"), ("spread", "other"), ("spread", "third"))
TENANTS = ("pinned", "spread", "other", "third")


async def served_until(pods: list[Pod], tokens: int) -> dict[str, int]:
    """What each tenant got on all pods, all waiting throughout, until "pinned" got so much."""
    served = dict.fromkeys(TENANTS, 0)
    numbers = iter(range(1_000_000))

    def submit(pod: Pod, tenant: str) -> None:
        request = Request(f"s{next(numbers)}", tenant, TOKENS, 0)
        assert pod.scheduler.submit(request, pod.loop.time()) is None

    for pod, tenants in zip(pods, PLACES, strict=False):
        for tenant in tenants * 2:
            submit(pod, tenant)
    while served["pinned"] < tokens:
        for pod in pods:
            request = pod.scheduler.next(pod.loop.time())
            submit(pod, request.tenant)
            pod.scheduler.finish(request.id, Usage(TOKENS, 0), pod.loop.time())
            served[request.tenant] += TOKENS
        await asyncio.sleep(0.001)
    return served


@pytest.mark.parametrize(("count", "together"), [(2, True), (3, True), (2, False)])
async def test_one_on_a_single_pod_gets_as_much_as_one_on_all(
    server: RedisServer, start_pod: StartPod, count: int, together: bool
) -> None:
    tenants = tuple(TenantPolicy(name, "standard", uid=name) for name in TENANTS)
    address = server.address if together else None
    pods = [start_pod(address, tenants=tenants, quantum=QUANTUM) for _ in range(count)]
    if together:
        channel = "tidegate:service:team-a/chat"
        await until(lambda: server.client.pubsub_numsub(channel)[0][1] == count)
    served = await served_until(pods, 600_000)
    gap = abs(served["spread"] - served["pinned"])
    assert (gap <= 1.5 * BOUND) is together, served


async def test_what_is_no_message_of_ours_counts_nothing(
    server: RedisServer, start_pod: StartPod
) -> None:
    pod = start_pod(server.address)
    channel = "tidegate:service:team-a/chat"
    await until(lambda: server.client.pubsub_numsub(channel)[0][1] == 1)
    for text in ("", "nonsense", "[]", '["x", [["uid-of-alice", "Tokens", null]]]', "[1, [[2]]]"):
        server.client.publish(channel, text)
    await pod.here()
    await asyncio.sleep(0.2)
    assert pod.host.status.available
    assert await pod.admitted(100, most=1) == 1
