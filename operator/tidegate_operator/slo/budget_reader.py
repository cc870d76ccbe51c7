"""What a pool's Prometheus says is left of its error budgets, asked again and again.

Theory of operation. Two instant queries each :data:`ASK_SECONDS`: the recorded rest of every budget
of the pool, and when it was recorded. A number that is not fresh, or none, is the reason why that
objective is not known; a Prometheus that gives no answer is the reason for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from tidegate.scheduling.contracts import TierPolicy
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.prometheus_query import (
    NoAnswer,
    by_objective,
    is_fresh,
    pool_selector,
    query,
)
from tidegate_operator.slo.promises import Budgets

Json = dict[str, Any]

log = logging.getLogger(__name__)

ASK_SECONDS = 15.0
"""Between questions: a scrape interval, at which answers change."""
_LEFT = "slo:period_error_budget_remaining:ratio"


async def ask(session: aiohttp.ClientSession, address: str, pool: str) -> Budgets | str:
    """Ask the Prometheus at this base URL about a pool (namespace/name), once."""
    series = f"{_LEFT}{{{pool_selector(pool)}}}"
    try:
        left = await query(session, address, series)
        recorded = await query(session, address, f"timestamp({series})")
    except NoAnswer as error:
        return str(error)
    return interpret(left, recorded, time.time())


def interpret(left: Sequence[Json], recorded: Sequence[Json], now_seconds: float) -> Budgets:
    """What both answers, each an instant vector, amount to; the present is since the epoch."""
    times, found = by_objective(recorded), dict[tuple[str, str], float | str]()
    for key, ratio in by_objective(left).items():
        if not math.isfinite(ratio):
            found[key] = "Prometheus has no number for it"
        elif not is_fresh(times.get(key, -math.inf), now_seconds):
            found[key] = "what Prometheus has for it is too old"
        else:
            found[key] = ratio
    return found


class BudgetReader:
    """Of one pool; ``run`` is its loop."""

    def __init__(self, pool: str, session: aiohttp.ClientSession) -> None:
        self.told: Budgets | str | None = None
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
                try:
                    told = await ask(self._session, address, self._pool)
                except Exception:
                    log.exception("asking about the error budgets of pool %s failed", self._pool)
                    told = "Prometheus could not be asked"
                if address == self._address:
                    self.told = told
            try:
                async with asyncio.timeout(ASK_SECONDS if address is not None else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
