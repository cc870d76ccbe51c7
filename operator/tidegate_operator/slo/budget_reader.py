"""What a pool's Prometheus says is left of its error budgets, asked again and again.

Theory of operation. Two instant queries each :data:`ASK_SECONDS`: the recorded rest of every budget
of the pool, and when it was recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.prometheus_query import ASK_SECONDS, answered, ask_recorded
from tidegate_operator.slo.recorded import Recorded

_LEFT = "slo:period_error_budget_remaining:ratio"


async def ask(session: aiohttp.ClientSession, address: str, pool: str) -> Recorded | str:
    """Ask the Prometheus at this base URL about a pool (namespace/name), once; never raises."""
    return await answered(ask_recorded(session, address, pool, (_LEFT,), time.time()), pool)


class BudgetReader:
    """Of one pool; ``run`` is its loop."""

    def __init__(self, pool: str, session: aiohttp.ClientSession) -> None:
        self.told: Recorded | str | None = None
        """The last answer; None: no Prometheus is named, or it was not asked yet."""
        self.asks = False
        """Whether there is a Prometheus to ask."""
        self._pool = pool
        self._session = session
        self._address: str | None = None
        self._wake = asyncio.Event()

    def serve(self, pool: ServingPool | None, tiers: Sequence[TierPolicy]) -> None:
        """Take the newest spec, and what it promises."""
        observability = pool.spec.observability if pool else None
        promised = any(tier.slo_objectives for tier in tiers)
        address = observability.prometheus if observability and promised else None
        if address != self._address:
            self._address, self.told = address, None
            self.asks = address is not None
            self._wake.set()

    @property
    def waiting(self) -> bool:
        """Whether the first answer has still to come."""
        return self.asks and self.told is None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._wake.clear()
            address = self._address
            if address is not None:
                told = await ask(self._session, address, self._pool)
                if address == self._address:
                    self.told = told
            try:
                async with asyncio.timeout(ASK_SECONDS if address is not None else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
