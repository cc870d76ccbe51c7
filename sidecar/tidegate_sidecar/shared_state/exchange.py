"""Pods tell each other what they gave: one message a pod and interval, none where nothing was.

A message is ``[pod, [[tenant's UID, unit, cost], ...]]`` on the channel of the pool. Nothing is
kept: who is not there does not hear it, and nobody waits for him. A message that is none of ours is
not counted. Rules and bounds: ``tidegate.scheduling.peer_service``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import orjson

from tidegate.scheduling.contracts import FairnessUnit, Policy, SchedulingMode
from tidegate.scheduling.peer_service import Given, PeerService
from tidegate_sidecar.shared_state.outbox import StoreAway
from tidegate_sidecar.shared_state.store import Store

INTERVAL_SECONDS = 0.05
"""Between two messages of a pod, and two counts of what it heard."""


class ServiceExchange:
    """Of one pod."""

    def __init__(self, store: Store, pod: str, peers: Callable[[], PeerService | None]) -> None:
        """``peers``: of the scheduler, once there is one."""
        self._store = store
        self._pod = pod
        self._peers = peers
        self._joined: PeerService | None = None
        self._channel = ""
        self._uids: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def apply_policy(self, policy: Policy, scope: str) -> None:
        """Who takes part: the tenants of the pool, in the fair order only."""
        self._uids = {row.name: row.uid or row.name for row in policy.tenants}
        self._names = {uid: name for name, uid in self._uids.items()}
        fair = policy.scheduling_mode is SchedulingMode.TIDEGATE
        self._channel = f"tidegate:service:{scope}" if fair else ""

    def leave(self) -> None:
        """The server is away, or this pod no longer takes part."""
        if self._joined is not None:
            self._joined.leave()
            self._joined = None

    async def follow(self) -> None:
        """Tell, hear and count; runs for as long as the store is used."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            if self._store.here and self._channel and self._peers() is not None:
                try:
                    await self._take_part(self._channel)
                except StoreAway:
                    pass
                except self._store.errors as error:
                    self._store.failed(error)
            self.leave()

    async def _take_part(self, channel: str) -> None:
        """Until the server is away, or the pool's terms change."""
        async with self._store.listener() as listener:
            await listener.subscribe(channel)
            peers = self._joined = self._peers()
            assert peers is not None
            peers.join()
            while self._store.here and channel == self._channel:
                loop = asyncio.get_running_loop()
                until = loop.time() + INTERVAL_SECONDS
                while (left := until - loop.time()) > 0:
                    message = await listener.get_message(
                        ignore_subscribe_messages=True, timeout=left
                    )
                    if message is not None:
                        peers.heard(self._read(message["data"]))
                peers.count()
                if rows := [
                    [uid, row.unit.value, round(row.cost, 3)]
                    for row in peers.given()
                    if (uid := self._uids.get(row.tenant)) is not None
                ]:
                    await self._store.publish(channel, orjson.dumps([self._pod, rows]).decode())

    def _read(self, data: object) -> list[Given]:
        try:
            pod, rows = orjson.loads(data)  # type: ignore[arg-type]
            if pod == self._pod:
                return []
            return [
                Given(name, FairnessUnit(unit), float(cost))
                for uid, unit, cost in rows
                if (name := self._names.get(uid)) is not None and math.isfinite(cost)
            ]
        except (ValueError, TypeError):
            return []
