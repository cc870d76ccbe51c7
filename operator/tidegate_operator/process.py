"""The life of one operator process: stand by, lead, stop.

The Lease is taken before anything is watched or written. When it is lost, or a loop fails, the
process ends with a code other than 0, and whoever runs it (the kubelet) starts it anew: a clean
start is the only recovery there is, so it is the one that is tested all the time. On SIGTERM the
Lease is given up, so that another process need not wait for it to run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator

import kopf
from kubernetes.aio import client

from tidegate_operator import names
from tidegate_operator.controller import CHILDREN, Controller
from tidegate_operator.http_server import http_server
from tidegate_operator.kinds import POD, SECRET, Kind
from tidegate_operator.kube import Json, Kube, connection_info, load_configuration
from tidegate_operator.lease import Elector, LeadershipLost, LeaseTiming
from tidegate_operator.metrics import Metrics
from tidegate_operator.settings import Settings
from tidegate_operator.watch import Watcher
from tidegate_operator.world import SELECTORS

log = logging.getLogger(__name__)

STALLED_RESYNCS = 10.0
"""Resyncs without one look at everything until the process counts as hanging."""

SOURCES = {kind: selector for kind, selector in SELECTORS.items() if kind is not POD}
"""Watched for what users set."""
OWNED = dict.fromkeys(CHILDREN, names.POOL_LABEL) | {POD: SELECTORS[POD]}
"""Watched for what became of it; apart from the sources, as Secrets are in both by other labels."""


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Run until ``stop`` is set; the process's exit code."""
    configuration = await load_configuration(settings.kubeconfig or None)
    metrics = Metrics()
    process = Process(settings, configuration, metrics)
    async with (
        http_server(settings.http_host, settings.http_port, metrics, process.stalled),
        Kube(configuration) as kube,
    ):
        return await process.run(kube, stop)


class Process:
    """One operator, from standing by to its end."""

    def __init__(
        self, settings: Settings, configuration: client.Configuration, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._metrics = metrics
        self.controller: Controller | None = None
        """Set while this process leads."""

    def stalled(self) -> str | None:
        """What hangs; None: nothing does."""
        if self.controller is None:
            return None
        silent = time.monotonic() - self.controller.resynced_at
        limit = STALLED_RESYNCS * self._settings.resync_seconds
        return f"nothing was looked at for {silent:.0f} s" if silent > limit else None

    async def run(self, kube: Kube, stop: asyncio.Event) -> int:
        """Stand by, lead, and stop; 0 when asked to stop, 1 when leading could not go on."""
        elector = Elector(
            kube,
            self._settings.lease_name,
            self._settings.operator_namespace,
            # A process, not a pod: one that was killed does not inherit what its successor holds.
            f"{self._settings.identity}_{secrets.token_hex(4)}",
            LeaseTiming(
                self._settings.lease_duration_seconds,
                self._settings.lease_renew_deadline_seconds,
                self._settings.lease_retry_seconds,
            ),
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            if self._settings.leader_election:
                acquiring = asyncio.create_task(elector.acquire())
                await _first(stopping, acquiring)
                if stopping.done():
                    return 0
            async with self._leading(kube) as controller:
                endings = [stopping, asyncio.create_task(controller.failed())]
                if self._settings.leader_election:
                    endings.append(asyncio.create_task(elector.hold()))
                ended = await _first(*endings)
                return self._exit_code(ended, stopping)
        finally:
            stopping.cancel()
            if self._settings.leader_election:
                await elector.release()

    def _exit_code(self, ended: asyncio.Task[object], stopping: asyncio.Task[object]) -> int:
        if ended is stopping:
            return 0
        try:
            ended.result()
        except LeadershipLost as error:
            log.error("%s; ending", error)
        except Exception:
            log.exception("cannot go on; ending")
        return 1

    @contextlib.asynccontextmanager
    async def _leading(self, kube: Kube) -> AsyncIterator[Controller]:
        """The controller with its watches; what writes ends first."""
        controller = Controller(kube, self._settings, self._metrics)
        watchers = [
            self._watcher(name, kinds, controller)
            for name, kinds in (("sources", SOURCES), ("children", OWNED))
        ]
        for watcher in watchers:
            watcher.start()
        try:
            async with controller:
                self.controller = controller
                self._metrics.leader.set(1)
                yield controller
        finally:
            self._metrics.leader.set(0)
            self.controller = None
            await asyncio.gather(*(watcher.stop() for watcher in watchers))

    def _watcher(self, name: str, kinds: dict[Kind, str], controller: Controller) -> Watcher:
        loop = asyncio.get_running_loop()

        def on_event(kind: Kind, type: str | None, obj: Json) -> None:
            if kind is SECRET:
                obj = {"metadata": obj["metadata"]}
            with contextlib.suppress(RuntimeError):  # the loop ended before kopf did
                loop.call_soon_threadsafe(controller.on_event, kind, type, obj)

        def on_start() -> None:
            self._metrics.watch_restarts.inc()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(controller.resync)

        def login() -> kopf.ConnectionInfo:
            return connection_info(self._configuration)

        return Watcher(name, kinds, self._settings.namespaces, on_event, on_start, login)


async def _first(*tasks: asyncio.Task[object]) -> asyncio.Task[object]:
    """The task that ends first; the others, but the first given, are cancelled."""
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending - {tasks[0]}:
        task.cancel()
    await asyncio.gather(*(pending - {tasks[0]}), return_exceptions=True)
    return tasks[0] if tasks[0] in done else next(iter(done))
