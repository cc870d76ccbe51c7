"""Pods without HTTP: a scheduler with the shared state of a sidecar around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from support.fake_engine import until
from support.redis_server import RedisServer
from tidegate_sidecar.dispatcher import Dispatcher
from tidegate_sidecar.shared_state.host import SharedStateHost
from tidegate_sidecar.tally import Tally

from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Fairness,
    LimitWindow,
    ModelPolicy,
    Policy,
    RateLimit,
    SharedState,
    TenantPolicy,
    TierPolicy,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Request, Usage

TENANT, UID = "team-a/alice", "uid-of-alice"
MONTH = RateLimit("month", LimitWindow.MONTH, tokens=1_000)
MINUTE = RateLimit("minute", LimitWindow.MINUTE, requests=100, tokens=5_000)


class Pod:
    """One pod; its engine is the test."""

    _numbers = count()

    def __init__(
        self,
        address: str | None,
        *limits: RateLimit,
        pods: int = 2,
        deadline_seconds: float = 5.0,
        tenants: tuple[TenantPolicy, ...] | None = None,
        quantum: int | None = None,
        **shared: Any,
    ) -> None:
        """``deadline_seconds``: longer than in production where the machine may stand still."""
        self.loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(Tally(), self.loop)
        self.host = SharedStateHost(self.dispatcher, deadline_seconds)
        self.generation = 0
        self._tenants = tenants or (TenantPolicy(TENANT, "standard", uid=UID),)
        self._fairness = Fairness(quantum=quantum)
        self.apply(address, limits or (() if tenants else (MONTH, MINUTE)), **shared)
        self.scheduler.limits.limiter.pods = pods

    def apply(self, address: str | None, limits: tuple[RateLimit, ...], **shared: Any) -> None:
        self.generation += 1
        policy = Policy(
            version=POLICY_VERSION,
            generation=self.generation,
            pool="team-a/chat",
            model=ModelPolicy("m"),
            tiers=(TierPolicy("standard", rate_limits=limits, fairness=self._fairness),),
            tenants=self._tenants,
            shared_state=None if address is None else SharedState(address, **shared),
        )
        self.dispatcher.apply_policy(policy, ())
        self.host.apply_policy(policy)

    @property
    def scheduler(self) -> Any:
        assert self.dispatcher.scheduler is not None
        return self.dispatcher.scheduler

    async def here(self) -> None:
        """The server answers, and knows all that it was to be told."""
        await until(lambda: self.host.status.available and not self.host.pending, 30.0)

    async def away(self) -> None:
        await until(lambda: not self.host.status.available, 30.0)

    async def submit(self, prompt: int, output: int = 0) -> Request | Outcome:
        """A request that may take so many tokens, or why it is refused."""
        id = str(next(self._numbers))
        request = Request(id, TENANT, prompt_tokens=prompt, max_output_tokens=output)
        await self.host.reserve(request)
        refused: Outcome | None = self.scheduler.submit(request, self.loop.time(), time.time())
        if refused is not None:
            self.host.give_back(request)
            return refused
        return request

    def serve(self, request: Request, tokens: int | None) -> None:
        """It is served and took so many; None: the engine did nothing."""
        now = self.loop.time()
        while request.dispatched is None:
            assert self.scheduler.next(now) is not None
        self.scheduler.finish(request.id, None if tokens is None else Usage(tokens, 0), now)

    async def admitted(self, tokens: int, most: int = 1_000) -> int:
        """How many requests of so many tokens pass one after the other, and are served whole."""
        for number in range(most):
            request = await self.submit(tokens)
            if not isinstance(request, Request):
                assert request is Outcome.RATE_LIMITED
                return number
            self.serve(request, tokens)
        return most

    async def close(self) -> None:
        await self.host.close()
        self.dispatcher.close()


StartPod = Callable[..., Pod]


def tokens_in(server: RedisServer, limit: str = "month:Month") -> int:
    """What the server counts of a limit."""
    fields = server.client.hgetall(f"tidegate:limit:{{{UID}}}:{limit}")
    return sum(int(value) for name, value in fields.items() if name.startswith("t"))
