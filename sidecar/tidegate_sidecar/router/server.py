"""One router from start to exit: ports, followers, drain (:mod:`~tidegate_sidecar.departure`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from pathlib import Path

from aiohttp import web

from tidegate.scheduling.contracts import Bundle
from tidegate_sidecar.estimate import Estimator
from tidegate_sidecar.governed import Governed, PolicyFiles
from tidegate_sidecar.http_server import TenantServer
from tidegate_sidecar.identity_keys import IdentityKeys
from tidegate_sidecar.in_force import InForce
from tidegate_sidecar.lifetime import run
from tidegate_sidecar.open_files import client_connections
from tidegate_sidecar.router.admin import RouterAdmin
from tidegate_sidecar.router.edge import Edge
from tidegate_sidecar.router.pod_sources import PodListFile
from tidegate_sidecar.router.pod_watch import ApiServer, PodWatch
from tidegate_sidecar.router.pods import PodSet
from tidegate_sidecar.router.settings import RouterSettings

log = logging.getLogger("tidegate.router")

_BACKLOG = 1024


class Router(Governed):
    """Both ports and what runs behind them."""

    def __init__(self, settings: RouterSettings) -> None:
        """SettingsError or OSError: the identity keys or the certificate cannot be read, or this is
        no pod of a cluster and has no list."""
        super().__init__()
        self.settings = settings
        self.identity_keys = IdentityKeys(settings.identity_keys)
        self._watch = None
        if settings.pods_selector is not None:
            self._watch = PodWatch(ApiServer.in_cluster(os.environ), settings.pods_selector)
        self.pods = PodSet(
            self._watch or PodListFile(settings.pods or Path()),
            settings.admin_token_file,
            settings.poll_seconds,
            settings.pod_silence_seconds,
        )
        self.edge = Edge(settings, self.identity_keys, self.pods, Estimator())
        self.port = settings.port
        self.admin_port = settings.admin_port
        self._tls = _Certificate(settings) if settings.tls_certificate else None
        self._followers: list[asyncio.Task[None]] = []
        self._runners: list[web.BaseRunner] = []
        self._tenants: TenantServer | None = None

    @property
    def ready(self) -> bool:
        """Whether clients should come here. Once a pod has served they should, also while none
        does: they are told so, and when to try again, which nobody tells them elsewhere."""
        return self.in_force is not None and not self.edge.departure.begun and self.pods.met

    @property
    def in_hand(self) -> int:
        """Requests that have not ended."""
        return self.edge.in_hand

    def put_in_force(self, bundle: Bundle, in_force: InForce) -> None:
        """The edge judges by it from here on."""
        self.edge.in_force = in_force
        self.pods.groups.apply(in_force.policy)

    async def start(self) -> None:
        """Listen; OSError where a port is taken. Returns before a policy or a pod need be there."""
        settings = self.settings
        files = PolicyFiles(self, settings.policy, settings.keys, settings.poll_seconds)
        files.look()
        await self.pods.look()
        admin = web.AppRunner(
            RouterAdmin(self).application(), access_log=None, shutdown_timeout=2.0
        )
        self.admin_port = await self._listen(admin, settings.admin_host, settings.admin_port)
        self._tenants = TenantServer(
            self.edge.handle, client_connections(), settings.header_seconds
        )
        tenants = web.ServerRunner(self._tenants, shutdown_timeout=2.0)
        context = self._tls.context if self._tls else None
        self.port = await self._listen(tenants, settings.host, settings.port, context)
        self._followers = [
            asyncio.create_task(files.follow(), name="policy-files"),
            asyncio.create_task(self.pods.follow(), name="pods"),
            asyncio.create_task(
                self.identity_keys.follow(settings.poll_seconds), name="identity-keys"
            ),
        ]
        if self._watch is not None:
            self._followers.append(asyncio.create_task(self._watch.follow(), name="pod-watch"))
        if self._tls is not None:
            following = self._tls.follow(settings.poll_seconds)
            self._followers.append(asyncio.create_task(following, name="certificate"))
        log.info("tenants on %s:%d, admin on port %d", settings.host, self.port, self.admin_port)

    async def _listen(
        self, runner: web.BaseRunner, host: str, port: int, context: ssl.SSLContext | None = None
    ) -> int:
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port, backlog=_BACKLOG, ssl_context=context).start()
        return int(runner.addresses[0][1])

    async def drain(self) -> None:
        """Serve what was accepted, within the bounds of the settings."""
        departure = self.edge.departure
        departure.begin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await departure.wait_over()
                if self._tenants is not None:
                    self._tenants.close_idle()
                await self.edge.idle()

    async def stop(self) -> None:
        """Close everything; nothing of it is left running."""
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for runner in reversed(self._runners):
            await runner.cleanup()
        self.pods.close()
        self.edge.departure.close()
        if self.edge.usage is not None:
            await asyncio.to_thread(self.edge.usage.close)


class _Certificate:
    """The TLS context of the tenants' port; a renewed certificate serves the next handshake."""

    def __init__(self, settings: RouterSettings) -> None:
        assert settings.tls_certificate is not None
        assert settings.tls_key is not None
        self._certificate, self._key = settings.tls_certificate, settings.tls_key
        self._seen = self._times()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(self._certificate, self._key)

    async def follow(self, poll_seconds: float) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(poll_seconds)
            self.look()

    def look(self) -> None:
        """Load it again where it changed; a pair that does not match leaves the last good."""
        try:
            if (times := self._times()) != self._seen:
                self._seen = times  # what is wrong with them is told once
                # A pair that does not match would leave the context without any: tried elsewhere.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    self._certificate, self._key
                )
                self.context.load_cert_chain(self._certificate, self._key)
                log.info("the certificate was loaded again")
        except (OSError, ssl.SSLError) as error:
            log.warning("the certificate stays as it was: %s", error)

    def _times(self) -> tuple[int, int]:
        return self._certificate.stat().st_mtime_ns, self._key.stat().st_mtime_ns


async def serve(settings: RouterSettings) -> None:
    """Run until a signal, then drain; raises OSError where a port cannot be bound."""
    await run(Router(settings))
