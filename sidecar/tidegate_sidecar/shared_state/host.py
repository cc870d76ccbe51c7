"""The shared state of one sidecar: what it runs with, hot, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable

from tidegate.scheduling.contracts import Policy, SharedState, SharedStateStatus
from tidegate.scheduling.peer_service import PeerService
from tidegate.scheduling.rate_limit import Reservation
from tidegate.scheduling.request import Request
from tidegate_sidecar.dispatcher import Dispatcher
from tidegate_sidecar.shared_state.exchange import ServiceExchange
from tidegate_sidecar.shared_state.limits import SharedLimits
from tidegate_sidecar.shared_state.outbox import Outbox, StoreAway
from tidegate_sidecar.shared_state.store import Store

log = logging.getLogger("tidegate.sidecar.shared_state")

FLUSH_SECONDS = 0.05
"""Between two messages about reservations: each told once, however often it changed."""
RESTART_SECONDS = 1.0
CANCEL_SECONDS = 0.5
"""Until what does not end is told once more."""


class SharedStateHost:
    """Follows the policy: with a server, with another one, or with none."""

    def __init__(self, dispatcher: Dispatcher, deadline_seconds: float) -> None:
        """``deadline_seconds``: see :mod:`~tidegate_sidecar.shared_state.store`."""
        self._dispatcher = dispatcher
        self._deadline_seconds = deadline_seconds
        self._pod = secrets.token_hex(6)
        """This process: another one of the same pod is another."""
        self._outbox = Outbox(self._pod)
        self._limits = SharedLimits(self._outbox)
        self._terms: SharedState | None = None
        self._server: _Server | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """What the server is yet to be told."""
        return len(self._outbox)

    @property
    def alone_total(self) -> int:
        """Requests whose limits were counted without the server, though there is to be one."""
        return self._limits.alone_total

    @property
    def status(self) -> SharedStateStatus | None:
        """None: the policy names no server."""
        if self._server is None:
            return None
        store = self._server.store
        return SharedStateStatus(available=store.here, since=store.since, error=store.error)

    def apply_policy(self, policy: Policy) -> None:
        """In force at once; another server begins as after an outage."""
        terms = policy.shared_state
        if terms != self._terms:
            self._end()
            self._terms = terms
            if terms is None:
                self._outbox.clear()
            else:
                self._server = _Server(
                    terms, self._pod, self._outbox, self._peers, self._deadline_seconds
                )
        if self._server is not None and terms is not None:
            self._limits.apply_policy(policy)
            self._server.exchange.apply_policy(policy, terms.scope or policy.pool)

    async def reserve(self, request: Request) -> None:
        """Ask the counts of all pods whether its limits let a request pass, before it queues."""
        scheduler = self._dispatcher.scheduler
        if self._server is None or scheduler is None:
            return
        desk = scheduler.limits
        demand = desk.demand(request)
        if demand is not None:
            request.limits_verdict = await self._limits.verdict(
                self._server.store, request, demand, desk.limiter, self._dispatcher.loop.time()
            )

    def give_back(self, request: Request) -> None:
        """It was refused before it was queued."""
        if isinstance(request.limits_verdict, Reservation):
            request.limits_verdict.release()

    async def close(self) -> None:
        """What was still to be told is told if the server is there; nothing is left running."""
        self._end()
        await asyncio.gather(*self._ending)

    def _peers(self) -> PeerService | None:
        scheduler = self._dispatcher.scheduler
        return None if scheduler is None else scheduler.peers

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            task = asyncio.create_task(server.close(), name="shared-state-end")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


class _Server:
    """One server and the tasks that keep in touch with it."""

    def __init__(
        self,
        terms: SharedState,
        pod: str,
        outbox: Outbox,
        peers: Callable[[], PeerService | None],
        deadline_seconds: float,
    ) -> None:
        self._outbox = outbox
        self.store = Store(
            terms.address,
            terms.secret_file,
            name=pod,
            returned=self._flush,
            deadline_seconds=deadline_seconds,
        )
        self.exchange = ServiceExchange(self.store, pod, peers)
        self._tasks = [
            asyncio.create_task(_kept_running(follow), name="shared-state")
            for follow in (
                self.store.follow,
                self.store.answer,
                self.exchange.follow,
                self._follow,
            )
        ]

    async def close(self) -> None:
        running = set(self._tasks)
        while running:  # a client may take a cancellation for a broken connection, and go on
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_SECONDS)
        self.exchange.leave()
        if self.store.here:
            with contextlib.suppress(StoreAway):
                await self._flush()
        await self.store.close()

    async def _flush(self) -> None:
        await self._outbox.flush(self.store.send)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            if self.store.here and len(self._outbox):
                with contextlib.suppress(StoreAway):
                    await self._flush()


async def _kept_running(follow: Callable[[], Awaitable[None]]) -> None:
    """A defect of ours stops nothing for good."""
    while True:
        try:
            await follow()
        except Exception:
            log.exception("shared state")
        await asyncio.sleep(RESTART_SECONDS)
