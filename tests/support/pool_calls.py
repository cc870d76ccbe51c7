"""What tests ask of a pool of one pod as its tenants, and what its engine and sidecar saw of it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from support.tenant_client import Sent, TenantClient

from testbed.e2e_cluster import Scene

WAIT_SECONDS = 100.0
_POLL_SECONDS = 0.02
ENDLESS_TOKENS = 4_000
"""Of a stream that its reader breaks off: as much as the KV cache has room for four times."""


class PoolCalls:
    """Calls to one pool of one pod; an async context manager."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._clients: dict[str, TenantClient] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> PoolCalls:
        scene = self.scene
        self._endpoint = await asyncio.to_thread(lambda: scene.endpoint)
        (pod,) = await asyncio.to_thread(scene.pods)
        secret = await asyncio.to_thread(
            scene.cluster.get, "secret", "pool-admin", "-n", scene.namespace
        )
        token = base64.b64decode(secret["data"]["token"]).decode().strip()
        self._admin = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                f"http://{pod['status']['podIP']}:8001",
                headers={"Authorization": f"Bearer {token}"},
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def client(self, tenant: str, key: str | None = None) -> TenantClient:
        """The one client of a tenant, so that no prompt comes twice; ``key``: of its Secret."""
        key = self.scene.key(tenant) if key is None else key
        client = self._clients.get(key)
        if client is None:
            seed = len(self._clients)
            client = TenantClient(self._endpoint, key, self.scene.model, seed=seed)
            self._clients[key] = await self._stack.enter_async_context(client)
        return client

    async def one(self, tenant: str, prompt_tokens: int, output_tokens: int) -> Sent:
        sent = await (await self.client(tenant)).complete(prompt_tokens, output_tokens)
        assert sent.error is None, sent.error
        return sent

    async def codes(self, tenant: str, *sizes: tuple[int, int]) -> list[str | None]:
        """Of requests one after the other, by their tokens of prompt and output; None: served."""
        return [(await self.one(tenant, *size)).code for size in sizes]

    async def burst(
        self, tenant: str, count: int, prompt_tokens: int, output_tokens: int
    ) -> list[Sent]:
        """So many at once."""
        ones = (self.one(tenant, prompt_tokens, output_tokens) for _ in range(count))
        return list(await asyncio.gather(*ones))

    @asynccontextmanager
    async def occupied(self, tenant: str, seats: int) -> AsyncIterator[None]:
        """So many streams run until the context ends, of a tenant known for short answers: of one
        that nothing is known of as much is expected as it asks for."""
        client = await self.client(tenant)
        if not client.requests:
            assert (await client.complete(8, 8)).complete
        async with AsyncExitStack() as streams:
            for _ in range(seats):
                await streams.enter_async_context(client.streaming(8, ENDLESS_TOKENS))
            yield

    async def until_load(self, wanted: Callable[[int, int], bool]) -> None:
        """Until so many are queued and so many are in the engine."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            async with self._admin.get("/load") as answer:
                load = await answer.json()
            if wanted(load["queued"], load["running"]):
                return
            assert time.monotonic() < deadline, load
            await asyncio.sleep(_POLL_SECONDS)

    async def until_in_hand(self, count: int) -> None:
        """Until so many are queued or in the engine."""
        await self.until_load(lambda queued, running: queued + running == count)

    async def preemptions(self, tenant: str) -> int:
        """How often requests of the tier of that name were taken off the engine so far: some before
        the engine has logged that they came."""
        async with self._admin.get("/status") as answer:
            tiers = (await answer.json())["tiers"]
        name = f"{self.scene.namespace}-{tenant}"
        return sum(tier.get("preemptions_total", 0) for tier in tiers if tier["name"] == name)

    async def events(self, requests: Collection[str | None], *kinds: str) -> list[dict[str, Any]]:
        """What the engine logged of these, by their ids."""
        logged = await asyncio.to_thread(self.scene.engine_events)
        return [e for e in logged if e["event"] in kinds and e["x_request_id"] in requests]

    async def order(self, sent: Collection[Sent]) -> list[str]:
        """Their ids, as they came to the engine."""
        arrived = await self.events({one.request_id for one in sent}, "arrived")
        return [event["x_request_id"] for event in arrived]
