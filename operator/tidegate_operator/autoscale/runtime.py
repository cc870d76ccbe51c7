"""The scaling of one pool, kept running: looks at regular times, asks, decides, tells who acts.

Theory of operation. A look costs nothing but what was read of the sidecars anyway; a Prometheus is
asked at its own, slower, pace, in bounded time, and what it said is looked at until it is asked
again. A decision is a number of pods for each engine group. Acting on it is reconciling's: it sets
the StatefulSets, and a pod that goes drains first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.autoscale import prometheus
from tidegate_operator.autoscale.pool_scaler import GroupNow, PoolScaler
from tidegate_operator.autoscale.prometheus import Told
from tidegate_operator.autoscale.status import steps_by_group
from tidegate_operator.prometheus_query import ASK_SECONDS

log = logging.getLogger(__name__)


class PoolAutoscaler:
    """Scales one pool while its spec says so; ``run`` is its loop."""

    def __init__(
        self,
        pool: str,
        session: aiohttp.ClientSession,
        look_seconds: float,
        decided: Callable[[bool], None],
    ) -> None:
        """``decided`` is called with True when an engine group shall have another number of pods,
        with False when only the reason changed."""
        self.scaler: PoolScaler | None = None
        """Unset: the pool is not scaled."""
        self._pool = pool
        self._session = session
        self._look_seconds = look_seconds
        self._decided = decided
        self._spec: ServingPool | None = None
        self._tiers: Sequence[TierPolicy] = ()
        self._told: Told | None = None
        self._asked_at = 0.0

    @property
    def sizes(self) -> dict[str, int] | None:
        """Pods of each engine group; None: not decided here."""
        return self.scaler.sizes if self.scaler else None

    def serve(
        self, pool: ServingPool | None, tiers: Sequence[TierPolicy], sizes: Mapping[str, int]
    ) -> None:
        """Take the newest spec; ``sizes`` are the pods that each engine group shall have now."""
        before = self._spec.spec.observability if self._spec else None
        self._spec, self._tiers = pool, tiers
        if pool is None or pool.spec.autoscaling is None:
            self.scaler = self._told = None
            return
        if before != pool.spec.observability:
            self._told = None
        if self.scaler is None:
            self.scaler = PoolScaler(sizes, steps_by_group(pool.status.scaling))
        else:
            self.scaler.adopt(sizes)

    async def run(self, groups: Callable[[], Sequence[GroupNow]]) -> None:
        """Look at the pool again and again; ``groups`` says how each engine group is now."""
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self.look(groups)
            except Exception:
                log.exception("a look at the size of pool %s failed", self._pool)

    async def look(self, groups: Callable[[], Sequence[GroupNow]]) -> None:
        """Look once."""
        pool = self._spec
        if pool is None or pool.spec.autoscaling is None:
            return
        observability = pool.spec.observability
        address = observability.prometheus if observability else None
        told = await self._ask(address) if address is not None else None
        scaler = self.scaler
        if scaler is None or self._spec is not pool:  # the next look is at what changed meanwhile
            return
        scaling = pool.spec.autoscaling.resolved(prometheus=address is not None)
        sizes, decisions = scaler.sizes, dict(scaler.decisions)
        scaler.decide(time.time(), time.monotonic(), groups(), told, scaling)
        if scaler.sizes != sizes:
            log.info("scaled", extra={"pool": self._pool, "groups": scaler.sizes})
            self._decided(True)
        elif scaler.decisions != decisions:
            self._decided(False)

    async def _ask(self, address: str) -> Told:
        now = time.monotonic()
        if self._told is None or now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            self._told = await prometheus.ask(
                self._session, address, self._pool, self._tiers, time.time()
            )
        return self._told
