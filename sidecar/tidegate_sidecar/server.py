"""One sidecar from start to exit: ports, followers, drain.

Order of the end: on SIGTERM (or SIGINT) not ready at once; new requests are taken for
``leaving_seconds`` (:mod:`.departure`) and then refused; what is queued is still served for
``drain_seconds``, then refused with 503 and Retry-After; streams run on until ``grace_seconds``,
then end with an error event. Both ports answer until nothing is in hand. A second signal ends it
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from aiohttp import web

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.admin import Admin
from tidegate_sidecar.engine_watch import EngineWatch
from tidegate_sidecar.governed import PolicyFiles
from tidegate_sidecar.http_server import TenantServer
from tidegate_sidecar.lifetime import run
from tidegate_sidecar.open_files import client_connections
from tidegate_sidecar.proxy import Proxy
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.settings import Settings

log = logging.getLogger("tidegate.sidecar")

_BACKLOG = 1024
_LINGER_SECONDS = 1.0
"""A client whose stream just ended may be sending its next request on the same connection."""


class Sidecar:
    """Both ports and what runs behind them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runtime = Runtime(settings)
        self._watch = EngineWatch(self.runtime)
        self._followers: list[asyncio.Task[None]] = []
        self._runners: list[web.BaseRunner] = []
        self._tenants: TenantServer | None = None
        self.port = settings.port
        self.admin_port = settings.admin_port

    async def start(self) -> None:
        """Listen; OSError where a port is taken. Returns before policy or engine need be there."""
        if self.runtime.plugin is not None:
            self.runtime.plugin.open()
        settings = self.settings
        files = PolicyFiles(
            self.runtime, settings.policy, settings.keys, settings.policy_poll_seconds
        )
        files.look()
        await self._watch.look()
        admin = web.AppRunner(
            Admin(self.runtime, self._watch).application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=2.0,
        )
        self.admin_port = await self._listen(admin, settings.admin_address, settings.admin_port)
        self._tenants = TenantServer(
            Proxy(self.runtime).handle, client_connections(), settings.header_seconds
        )
        self.runtime.callers.connections = lambda: (
            self._tenants.connections if self._tenants else ()
        )
        tenants = web.ServerRunner(self._tenants, shutdown_timeout=2.0)
        self.port = await self._listen(tenants, settings.host, settings.port)
        self._followers = [
            asyncio.create_task(files.follow(), name="policy-files"),
            asyncio.create_task(self._watch.follow(), name="engine-watch"),
            asyncio.create_task(self.runtime.reports.follow(), name="reports"),
            asyncio.create_task(self.runtime.service_gap.follow(), name="service-gap"),
        ]
        if (store := self.runtime.dispatcher.limit_store) is not None:
            self._followers.append(asyncio.create_task(store.follow(), name="limit-store"))
        if (keys := self.runtime.callers.keys) is not None:
            following = keys.follow(settings.policy_poll_seconds)
            self._followers.append(asyncio.create_task(following, name="identity-keys"))
        log.info(
            "tenants on %s:%d, admin on %s:%d",
            settings.host,
            self.port,
            settings.admin_address,
            self.admin_port,
        )

    async def _listen(self, runner: web.BaseRunner, host: str, port: int) -> int:
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        return int(runner.addresses[0][1])

    async def drain(self) -> None:
        """Serve what was accepted, within the bounds of the settings."""
        runtime, settings = self.runtime, self.settings
        dispatcher = runtime.dispatcher
        runtime.begin_drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_seconds):
                await dispatcher.departure.wait_over()
                if self._tenants is not None:
                    self._tenants.close_idle()
                await dispatcher.idle()
        # A list whose first part was dispatched has begun, as a stream has.
        dispatcher.refuse_queued(Outcome.DRAINING, lambda ticket: ticket.request.leads())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.grace_in_force_seconds - settings.drain_seconds):
                await dispatcher.idle()
        if dispatcher.in_hand:
            log.warning("%d requests cut off at the end of the grace", dispatcher.in_hand)
            runtime.engine.abort_exchanges()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await dispatcher.idle()
        await self._linger()

    @property
    def in_hand(self) -> int:
        """Requests queued or in flight."""
        return self.runtime.dispatcher.in_hand

    @property
    def tenant_connections(self) -> int:
        """Open connections of clients."""
        return len(self._tenants.connections) if self._tenants is not None else 0

    async def _linger(self) -> None:
        """Until every client has let go of its connection, for a moment at most."""
        deadline = self.runtime.dispatcher.loop.time() + _LINGER_SECONDS
        while self.tenant_connections:
            if self.runtime.dispatcher.loop.time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Close everything; nothing of it is left running."""
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for runner in reversed(self._runners):
            await runner.cleanup()
        if (store := self.runtime.dispatcher.limit_store) is not None:
            await store.save()
        if self.runtime.plugin is not None:
            self.runtime.plugin.close()
        await self.runtime.shared_state.close()
        self.runtime.dispatcher.close()
        if self.runtime.token_counter is not None:
            self.runtime.token_counter.close()
        self.runtime.engine.close()
        await self.runtime.reports.close()


async def serve(settings: Settings) -> None:
    """Run until a signal, then drain; raises OSError where a port cannot be bound."""
    await run(Sidecar(settings))
