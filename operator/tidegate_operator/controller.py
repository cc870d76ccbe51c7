"""The controller: everything that runs while this process leads.

Theory of operation. Watch events only mark what changed and queue keys; workers take keys and
reconcile; links move policy and figures; the status writer writes. Every ``resync_seconds``, and
whenever a watch starts anew, all is marked and queued, so whatever was missed, by a watch, by a
crash, by an outage of the API server, is seen then.

Keys on the queue: a pool, or :data:`JUDGING` for "tiers, tenants, their namespaces or keys": that
one judges all of them again and queues the pools that the difference concerns. Where several are,
the sidecars of all of them are told before the children of any are looked at: a revocation that
concerns every pool waits for the policies of the others and for no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import aiohttp

from tidegate_operator import names
from tidegate_operator.admin_port import REQUEST_TIMEOUT
from tidegate_operator.api.conditions import Reason
from tidegate_operator.autoscale.runtime import PoolAutoscaler
from tidegate_operator.judgement_change import NO_CHANGE, judgement_change
from tidegate_operator.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVING_POOL,
    STATEFUL_SET,
    TENANT,
    TENANT_TIER,
    Kind,
)
from tidegate_operator.kube import Json, Kube, KubeError
from tidegate_operator.metrics import Metrics
from tidegate_operator.news import News
from tidegate_operator.object_statuses import ObjectStatuses
from tidegate_operator.pool_children import WaitForCollection
from tidegate_operator.pool_runtime import PoolRuntime
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.reconciled import Heard
from tidegate_operator.router_link import RouterLink
from tidegate_operator.settings import Settings
from tidegate_operator.sidecars import SidecarLink
from tidegate_operator.slo.budget_reader import BudgetReader
from tidegate_operator.slo.promises import kept
from tidegate_operator.status_writer import StatusWriter
from tidegate_operator.work_queue import WorkQueue
from tidegate_operator.world import JUDGED, SELECTORS, Key, World

log = logging.getLogger(__name__)

JUDGING: Key = ("", "")
JUDGING_BACK_OFF_SECONDS = 2.0
"""At most: what is revoked waits for it, in all pools."""
CHILDREN = (
    STATEFUL_SET,
    DEPLOYMENT,
    SERVICE,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    SECRET,
)
"""Kinds of children whose events bring their pool to be looked at. PodMonitors and
PrometheusRules are not watched, as a cluster may lack the kinds: what is wrong with one is put
right at the next resync."""
REFUSALS = (
    Reason.APPLY_FAILED,
    Reason.POD_REFUSED,
    Reason.SECRET_NOT_FOUND,
    Reason.SECRET_KEY_MISSING,
)
"""What the API server refused or had not is tried again, but at the pace of the back-off: what was
missing may have come, and no event tells."""


class Controller:
    """An async context manager: it works from enter to exit. Belongs to one event loop."""

    def __init__(self, kube: Kube, settings: Settings, metrics: Metrics) -> None:
        self._kube = kube
        self._settings = settings
        self._metrics = metrics
        self._world = World(kube, settings.namespaces)
        self._reconciler = Reconciler(kube, self._world, settings, metrics)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._pools: dict[Key, PoolRuntime] = {}
        self._statuses = ObjectStatuses(self._world, self._pools, settings)
        self._writer = StatusWriter(
            kube,
            self._world,
            self._statuses,
            metrics,
            writes_per_second=settings.status_writes_per_second,
            figures_seconds={
                SERVING_POOL: settings.pool_figures_seconds,
                TENANT_TIER: settings.tier_figures_seconds,
                TENANT: settings.tenant_figures_seconds,
            },
        )
        self._news = News()
        self._look_at_all = True
        self._untold: set[Key] = set()
        """Pools whose sidecars may lack what was judged last."""
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.resynced_at = time.monotonic()
        """When everything was last looked at, on the monotonic clock."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            # What a pool's spec names may answer with any number of them.
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=REQUEST_TIMEOUT,
        )
        self.resynced_at = time.monotonic()
        loops = [self._resync_loop(), self._figures_loop(), self._writer.run()]
        loops += [self._worker() for _ in range(self._settings.workers)]
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.close()
        tasks = [*self._tasks, *(task for pool in self._pools.values() for task in pool.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    async def failed(self) -> None:
        """Return by exception when one of the loops ended, which none ever should."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError("a loop of the controller ended")

    # --- what changed

    def on_event(self, kind: Kind, type: str | None, obj: Json) -> None:
        """A watch saw the object; ``type`` is None where it was part of an initial LIST."""
        if kind in SELECTORS and not self._news.take(kind, type, obj):
            return
        metadata = obj["metadata"]
        if kind in SELECTORS and (kind is not SECRET or _has_keys(metadata)):
            self._world.mark(kind)
        if kind in JUDGED and (kind is not SECRET or _has_keys(metadata)):
            self._queue.put(JUDGING, first=True)
        if kind is SERVING_POOL:
            self._queue.put((metadata["namespace"], metadata["name"]), now=True)
        elif pool := (metadata.get("labels") or {}).get(names.POOL_LABEL):
            self._queue.put((metadata["namespace"], pool))

    def resync(self) -> None:
        """Mark everything and have it all looked at."""
        self._look_at_all = True
        self._world.mark_all()
        self._queue.put(JUDGING, first=True)

    # --- loops

    async def _resync_loop(self) -> None:
        while True:
            self.resync()
            await asyncio.sleep(self._settings.resync_seconds)

    async def _figures_loop(self) -> None:
        """Mark those whose figures may be written again."""
        while True:
            await asyncio.sleep(self._settings.scrape_seconds)
            active = False
            for key, runtime in self._pools.items():
                if runtime.figures is not None:
                    active = True
                    self._writer.mark_due(SERVING_POOL, key)
            if active:
                for kind in (TENANT_TIER, TENANT):
                    for key in self._world.objects(kind):
                        self._writer.mark_due(kind, key)

    async def _worker(self) -> None:
        while True:
            key = await self._queue.take()
            self._metrics.queue_depth.set(len(self._queue))
            try:
                with self._metrics.reconcile_seconds.time():
                    goes_on = await self._work(key)
            except (KubeError, WaitForCollection) as error:
                self._again(key, str(error))
            except Exception:
                log.exception("reconciling %s failed", _shown(key))
                self._again(key, "see above")
            else:
                self._metrics.reconciles.labels("ok").inc()
                state = self._pools[key].state if key in self._pools else None
                if goes_on:
                    self._queue.goes_on(key)
                elif state and any(fault.reason in REFUSALS for fault in state.faults):
                    self._queue.failed(key)
                else:
                    self._queue.done(key)

    def _again(self, key: Key, why: str) -> None:
        self._metrics.reconciles.labels("error").inc()
        delay = self._queue.failed(key, JUDGING_BACK_OFF_SECONDS if key == JUDGING else None)
        log.warning("%s: again in %.1f s: %s", _shown(key), delay, why)

    # --- work

    async def _work(self, key: Key) -> bool:
        """Whether more is to be done, once the sidecars of all pools were told."""
        if key == JUDGING:
            await self._judge()
            return False
        goes_on = key in self._untold and key in self._pools and len(self._queue) > 0
        self._untold.discard(key)
        if goes_on:
            await self._reconciler.tell(key, self._heard(key))
        else:
            await self._reconcile(key)
        return goes_on

    def _heard(self, key: Key) -> Heard:
        return self._pools[key].heard(
            lambda: self._world.pod_states(key), lambda: self._world.router_states(key)
        )

    async def _judge(self) -> None:
        """Judge tiers and tenants, and have every pool look at the result."""
        await self._world.refresh()
        judgement, before = self._world.judgement, self._statuses.judged
        # A pool in back-off is not left with what was revoked, nor after an outage that is over.
        after_failure = self._queue.failures(JUDGING) > 0
        look_at_all, self._look_at_all = self._look_at_all or after_failure, False
        change = judgement_change(before, judgement) if judgement is not before else NO_CHANGE
        if change is not NO_CHANGE or look_at_all:
            # Without a change too: another may have written over what we said.
            self._statuses.judged = judgement
            self._mark_tiers_and_tenants()
        pools = self._world.objects(SERVING_POOL)
        for key, pool in pools.items():
            served = self._pools[key].tenants if key in self._pools else ()
            urgent = after_failure or change.concerns(pool, served)
            if urgent:
                self._untold.add(key)
            if urgent or look_at_all:
                self._queue.put(key, now=urgent, first=urgent)
        for key in self._pools.keys() - pools.keys():
            self._queue.put(key, now=True)
        self._mark_if_whole()
        self.resynced_at = time.monotonic()
        self._metrics.last_resync.set(time.time())

    async def _reconcile(self, key: Key) -> None:
        runtime = self._pools.get(key)
        state = await self._reconciler.reconcile(key, self._heard(key) if runtime else Heard())
        if state is None:
            self._drop(key)
            return
        if runtime is None:
            runtime = self._pools[key] = self._new_runtime(key)
        changed = runtime.serve(state)
        runtime.update(self._world.pod_states(key), self._world.router_states(key), state.delivery)
        self._writer.mark(SERVING_POOL, key)
        self._mark_served(*changed)
        self._mark_if_whole()

    def _drop(self, key: Key) -> None:
        self._queue.forget(key)
        self._untold.discard(key)
        self._writer.forget(SERVING_POOL, key)
        self._statuses.forget_pool(key)
        if runtime := self._pools.pop(key, None):
            runtime.stop()
            self._mark_served(*runtime.serve(None))

    def _mark_if_whole(self) -> None:
        if self._statuses.becomes_whole():
            self._mark_tiers_and_tenants()

    def _mark_tiers_and_tenants(self) -> None:
        for kind in (TENANT_TIER, TENANT):
            for key in self._world.objects(kind):
                self._writer.mark(kind, key)

    def _mark_served(self, tiers: Iterable[str], tenants: Iterable[str]) -> None:
        """Those whose list of pools changed."""
        for name in tiers:
            self._writer.mark(TENANT_TIER, ("", name))
        for name in tenants:
            namespace, _, short = name.partition("/")
            self._writer.mark(TENANT, (namespace, short))

    def _new_runtime(self, key: Key) -> PoolRuntime:
        assert self._session is not None

        def mark() -> None:
            self._writer.mark(SERVING_POOL, key)

        def changed() -> None:
            before = kept(runtime.promises)
            runtime.measure(self._settings.figures_window_seconds, partly=self._statuses.waited)
            mark()
            if runtime.goes_on:
                self._queue.put(key, now=True)
            for tier, _ in before ^ kept(runtime.promises):
                self._writer.mark(TENANT_TIER, ("", tier))

        def outdated(generation: int) -> None:
            if generation > runtime.seen_generation:
                runtime.seen_generation = generation
                self._queue.put(key, now=True)

        def decided(resized: bool) -> None:
            if resized:
                self._queue.put(key, now=True)
            mark()

        name, look_seconds = "/".join(key), self._settings.scrape_seconds
        to_sidecars, to_routers = (
            of(
                name,
                self._session,
                self._metrics,
                scrape_seconds=look_seconds,
                window_seconds=self._settings.figures_window_seconds,
                changed=told,
                outdated=outdated,
                other_version=lambda: self._queue.put(key, now=True),
            )
            for of, told in ((SidecarLink, changed), (RouterLink, mark))
        )
        runtime = PoolRuntime(
            to_sidecars,
            to_routers,
            PoolAutoscaler(name, self._session, look_seconds, decided),
            BudgetReader(name, self._session),
        )
        return runtime


def _has_keys(metadata: Json) -> bool:
    return names.API_KEYS_LABEL in (metadata.get("labels") or {})


def _shown(key: Key) -> str:
    return "tiers and tenants" if key == JUDGING else "pool " + "/".join(key)
