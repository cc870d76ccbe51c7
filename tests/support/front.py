"""What clients meet: a sidecar, or a router before one. Either has the same rules of the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.faulty_engine import FaultyEngine
from support.router_fleet import Fleet
from support.sidecar import ALICE, KEYS, Json, SidecarUnderTest, policy_document, sidecar_under_test

FRONTS = ("sidecar", "router")


@dataclass
class Front:
    """A tenants' port and what stands behind it."""

    port: int
    engine: FaultyEngine
    pod: SidecarUnderTest
    fleet: Fleet | None = None
    """With the router, where there is one."""

    def ended(self) -> dict[str, int]:
        """Requests that ended here, by outcome; those that a pod served are ``forwarded``."""
        return self.pod.outcomes() if self.fleet is None else dict(self.fleet.router.edge.ended)

    def post(self, path: str, body: Json, **headers: str) -> Any:
        """A request of Alice's, as aiohttp's context manager."""
        url = f"http://127.0.0.1:{self.port}{path}"
        sent = {"Authorization": f"Bearer {KEYS[ALICE]}", **headers}
        return self.pod.client.post(url, json=body, headers=sent)

    async def told(self, data: bytes, patience_seconds: float = 5.0) -> tuple[bytes, bool]:
        """What comes back to these bytes, and whether the connection was then closed."""
        loop = asyncio.get_running_loop()
        transport, heard = await loop.create_connection(_Heard, "127.0.0.1", self.port)
        transport.write(data)
        await asyncio.wait([heard.closed], timeout=patience_seconds)
        closed = heard.closed.done()
        transport.abort()
        return heard.data, closed


class _Heard(asyncio.Protocol):
    """All that came, also where the connection was then reset, with bytes of ours unread."""

    def __init__(self) -> None:
        self.data = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


@contextlib.asynccontextmanager
async def front(
    kind: str, folder: Path, *, policy: Json | None = None, **settings: Any
) -> AsyncIterator[Front]:
    """One of :data:`FRONTS` with these settings; in the end all that is behind it ends well."""
    document = policy or policy_document()
    if kind == "sidecar":
        async with (
            FaultyEngine() as engine,
            sidecar_under_test(folder, engine, policy=document, **settings) as sidecar,
        ):
            yield Front(sidecar.sidecar.port, engine, sidecar)
        return
    async with AsyncExitStack() as pods, AsyncExitStack() as edge:
        fleet = Fleet(folder, pods, edge, document)
        await fleet.start(**settings)
        engine, pod = await fleet.add_pod()
        await fleet.tell(0)
        yield Front(fleet.router.port, engine, pod, fleet)
        await fleet.settled()
