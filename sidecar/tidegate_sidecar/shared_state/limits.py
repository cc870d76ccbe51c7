"""Rate limits that count the requests of all pods: the verdict before a request is queued.

Bound (design of ``rate_limit``, over all pods): when a request was admitted, all that counted and
its reservation were within the limit, on the server's clock; so what is settled exceeds a limit by
less than one full reservation for each request in flight. In a window in which the server was away,
each of N pods admits at most an N-th of what it last heard to be left.
"""

from __future__ import annotations

import time
from math import ceil

from tidegate.scheduling.calendar_window import day_of, month_of
from tidegate.scheduling.contracts import LimitWindow, Policy, RateLimit
from tidegate.scheduling.limit_desk import LimitDemand
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.rate_limit import LimitRefusal, RateLimiter, Reservation
from tidegate.scheduling.request import Request
from tidegate_sidecar.shared_state.outbox import (
    Counted,
    LocalReservation,
    Outbox,
    SharedReservation,
    StoreAway,
)
from tidegate_sidecar.shared_state.store import Store

_SLICE_SECONDS = {LimitWindow.MINUTE: 1, LimitWindow.HOUR: 60}

Verdict = Reservation | LimitRefusal


class SharedLimits:
    """Of one pod."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._uids: dict[str, str] = {}
        self.alone_total = 0
        """Requests whose limits were counted without the server."""

    def apply_policy(self, policy: Policy) -> None:
        """UIDs of the tenants; who has none (no Kubernetes) goes by its name."""
        self._uids = {row.name: row.uid or row.name for row in policy.tenants}

    async def verdict(
        self,
        store: Store,
        request: Request,
        demand: LimitDemand,
        limiter: RateLimiter,
        now: float,
    ) -> Verdict:
        """Reserved by all limits, or refused; within the store's deadline.

        ``limiter``: the scheduler's own, which goes on from the shared counts without the store.
        """
        uid = self._uids.get(request.tenant, request.tenant)
        for limit in demand.limits:
            if limit.tokens is not None and demand.tokens > limit.tokens:
                return LimitRefusal(Outcome.REQUEST_EXCEEDS_LIMIT, limit.name, None)
        clocks = Clocks(now, time.time())
        if store.here:
            keys = (self._outbox.hold(uid), *(_key(uid, limit) for limit in demand.limits))
            try:
                answer = await store.ask(keys, _reserve(demand))
            except StoreAway:
                self._outbox.put(keys, "forget")
            except BaseException:
                self._outbox.put(keys, "forget")
                raise
            else:
                return self._read(request.tenant, demand, keys, answer, limiter, clocks)
        return self._alone(request.tenant, uid, demand, limiter, clocks)

    def _read(
        self,
        tenant: str,
        demand: LimitDemand,
        keys: tuple[str, ...],
        answer: list[int],
        limiter: RateLimiter,
        clocks: Clocks,
    ) -> Verdict:
        refusal: LimitRefusal | None = None
        for index, limit in enumerate(demand.limits):
            requests, tokens, wait_ms = answer[3 * index + 1 : 3 * index + 4]
            limiter.observe(tenant, limit, requests, tokens, clocks)
            seconds = max(1, ceil(wait_ms / 1000))
            if wait_ms and (refusal is None or seconds > (refusal.retry_after_seconds or 0)):
                refusal = LimitRefusal(Outcome.RATE_LIMITED, limit.name, seconds)
        return refusal or SharedReservation(self._outbox, keys, demand.tokens)

    def _alone(
        self, tenant: str, uid: str, demand: LimitDemand, limiter: RateLimiter, clocks: Clocks
    ) -> Verdict:
        self.alone_total += 1
        local = limiter.reserve(tenant, demand.limits, demand.tokens, clocks)
        if isinstance(local, LimitRefusal):
            return local
        counted: list[Counted] = [
            (_key(uid, limit), limit.per.value, _slice(limit.per, clocks.utc))
            for limit in demand.limits
        ]
        return LocalReservation(self._outbox, uid, counted, local)


def _key(uid: str, limit: RateLimit) -> str:
    return f"tidegate:limit:{{{uid}}}:{limit.name}:{limit.per.value}"


def _slice(per: LimitWindow, utc: float) -> int:
    """As the script numbers them."""
    if (seconds := _SLICE_SECONDS.get(per)) is not None:
        return int(utc // seconds)
    return day_of(utc) if per is LimitWindow.DAY else month_of(utc)


def _reserve(demand: LimitDemand) -> list[str | int]:
    arguments: list[str | int] = ["reserve", demand.tokens]
    for limit in demand.limits:
        requests = -1 if limit.requests is None else limit.requests
        tokens = -1 if limit.tokens is None else limit.tokens
        arguments += (limit.per.value, requests, tokens)
    return arguments
