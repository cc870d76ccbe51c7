"""The real sidecars of `scripts/bench control-plane`, as seen from their admin ports."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from control_plane_site import REAL_PODS
from tidegate_operator.kinds import POD, SECRET
from tidegate_operator.kube import Kube

LOOK_SECONDS = 0.1


class RealSidecars:
    """Those of one namespace, one to a pool."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._pools = [f"pool-{number}" for number in range(1, 1 + REAL_PODS)]
        self._admin: dict[str, tuple[str, str]] = {}
        """Address and token of the admin port, by pool."""

    async def all_serve(self) -> bool:
        """Whether the pods of all are ready; from then on their admin ports are known."""
        selector = "tidegate.io/component=engine"
        for pod in await self._kube.list(POD, self._namespace, selector):
            pool, status = pod["metadata"]["labels"]["tidegate.io/pool"], pod["status"]
            conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
            if pool not in self._pools or conditions.get("Ready") != "True":
                continue
            secret = await self._kube.get(SECRET, f"{pool}-admin", self._namespace)
            assert secret is not None
            token = base64.b64decode(secret["data"]["token"]).decode().strip()
            self._admin[pool] = (f"http://{status['podIP']}:8001", token)
        return len(self._admin) == len(self._pools)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[list[asyncio.Task[float]]]:
        """When each gets a higher generation than it has now, on the monotonic clock."""
        async with aiohttp.ClientSession() as session:
            before = {pool: await self._generation(session, pool) for pool in self._pools}
            tasks = [
                asyncio.create_task(self._higher(session, pool, generation))
                for pool, generation in before.items()
            ]
            try:
                yield tasks
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _higher(self, session: aiohttp.ClientSession, pool: str, generation: int) -> float:
        while True:
            if await self._generation(session, pool) > generation:
                return time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)

    async def _generation(self, session: aiohttp.ClientSession, pool: str) -> int:
        address, token = self._admin[pool]
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{address}/status", headers=headers) as answer:
            return int((await answer.json())["policy_generation"]) if answer.status == 200 else 0
