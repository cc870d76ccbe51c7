"""Who gets a status write, and when.

Theory of operation. An object whose state may have changed is marked; the writer works out what its
status should be now, and writes only what differs. Figures come along when their interval has
passed, or when there is something to write anyway; events that stand for themselves are written
once. All writes of the operator go through here, one
after the other, at most so many a second, each kind in its turn, so that neither a storm of Tenants
nor many busy pools hold up the others. A write that failed is tried again after a pause that
doubles, with what holds then, and holds up no other object. No change: no write.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidegate_operator.events import events_of
from tidegate_operator.json_merge import merge_patch, without_nulls
from tidegate_operator.kinds import EVENT, SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Conflict, Invalid, Json, Kube, KubeError, Unavailable
from tidegate_operator.metrics import Metrics
from tidegate_operator.world import Key, World

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
RETRY_HIGHEST_SECONDS = 16.0
_ORDER = (SERVING_POOL, TENANT_TIER, TENANT)


class StatusSource(Protocol):
    """Says what the status of an object should be."""

    def state(self, kind: Kind, key: Key, obj: Json) -> Json | None:
        """The part written at once; None: not known yet, so nothing is written."""

    def figures(self, kind: Kind, key: Key) -> Json | None:
        """The part written at intervals; None: it was not measured yet, so nothing is written."""

    def events(self, kind: Kind, key: Key, obj: Json) -> list[Json]:
        """What has happened lately that no status tells; in all calls by the same names."""


class StatusWriter:
    """Writes the status of all three kinds; ``run`` is its loop."""

    def __init__(
        self,
        kube: Kube,
        world: World,
        source: StatusSource,
        metrics: Metrics,
        *,
        writes_per_second: float,
        figures_seconds: Mapping[Kind, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._world = world
        self._source = source
        self._metrics = metrics
        self._pause = 1.0 / writes_per_second
        self._figures_seconds = figures_seconds
        self._clock = clock
        self._marked: dict[Kind, dict[Key, None]] = {kind: {} for kind in _ORDER}
        self._figures_due: dict[tuple[Kind, Key], float] = {}
        self._failures: dict[tuple[Kind, Key], int] = {}
        self._announced: dict[tuple[Kind, Key], frozenset[str]] = {}
        """Names of the events that the source still tells of and that were written."""
        self._turns = itertools.cycle(_ORDER)
        self._wake = asyncio.Event()
        self._free_at = 0.0

    def mark(self, kind: Kind, key: Key) -> None:
        """The object's status may have to change."""
        self._marked[kind][key] = None
        self._wake.set()

    def mark_due(self, kind: Kind, key: Key) -> None:
        """Mark it if its figures may be written again."""
        if self._clock() >= self._figures_due.get((kind, key), 0.0):
            self.mark(kind, key)

    def forget(self, kind: Kind, key: Key) -> None:
        """The object is gone."""
        self._marked[kind].pop(key, None)
        self._failures.pop((kind, key), None)
        self._figures_due.pop((kind, key), None)
        self._announced.pop((kind, key), None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            marked = self._next()
            if marked is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            kind, key = marked
            await asyncio.sleep(0)  # working out thousands of statuses must not stop the others
            try:
                await self._write(kind, key)
            except KubeError as error:
                log.warning("status of %s %s: %s", kind.name, "/".join(key), error)
                self._again(kind, key)
                if isinstance(error, Unavailable):
                    await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("status of %s %s", kind.name, "/".join(key))
                self._again(kind, key)
            else:
                self._failures.pop((kind, key), None)

    def _again(self, kind: Kind, key: Key) -> None:
        """Mark it later: at once it would be the next one again."""
        count = self._failures.get((kind, key), 0)
        self._failures[kind, key] = count + 1
        # Longer than the pause of the whole writer, so that the others get their turn.
        delay = min(RETRY_HIGHEST_SECONDS, 2 * RETRY_SECONDS * 2.0 ** min(count, 10))
        asyncio.get_running_loop().call_later(delay, self.mark, kind, key)

    def _next(self) -> tuple[Kind, Key] | None:
        for _ in _ORDER:
            kind = next(self._turns)
            if self._marked[kind]:
                key = next(iter(self._marked[kind]))
                del self._marked[kind][key]
                return kind, key
        return None

    async def _write(self, kind: Kind, key: Key) -> None:
        obj = self._world.objects(kind).get(key)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            self.forget(kind, key)
            return
        state = self._source.state(kind, key, obj)
        if state is None:
            return
        await self._announce(kind, obj, self._news(kind, key, obj))
        live = obj.get("status") or {}
        patch = merge_patch({name: live[name] for name in state if name in live}, state)
        patch |= self._figures_patch(kind, key, live, due=bool(patch))
        if not patch:
            return
        await asyncio.sleep(max(0.0, self._free_at - self._clock()))
        self._free_at = self._clock() + self._pause
        try:
            written = await self._kube.patch_status(kind, obj, patch)
        except (Conflict, Invalid) as error:
            # Another object by that name, or a CRD of another version: the next LIST tells.
            log.warning("status of %s %s: %s", kind.name, "/".join(key), error)
            self._world.mark(kind)
            return
        self._metrics.status_writes.labels(kind.name).inc()
        await self._announce(kind, obj, events_of(kind, obj, live, state))
        if written is not None:
            self._world.put(kind, written)

    def _news(self, kind: Kind, key: Key, obj: Json) -> list[Json]:
        """The events of the source that were not written yet."""
        events = {event["metadata"]["name"]: event for event in self._source.events(kind, key, obj)}
        before = self._announced.pop((kind, key), frozenset())
        if events:
            self._announced[kind, key] = frozenset(events)
        return [event for name, event in events.items() if name not in before]

    async def _announce(self, kind: Kind, obj: Json, events: Sequence[Json]) -> None:
        for event in events:
            try:
                await self._kube.create(EVENT, event)
            except Conflict:
                pass  # another operator saw the same, or this one before it was started anew
            except KubeError as error:
                log.warning("event of %s %s: %s", kind.name, obj["metadata"]["name"], error)

    def _figures_patch(self, kind: Kind, key: Key, live: Json, *, due: bool) -> Json:
        now = self._clock()
        if not due and now < self._figures_due.get((kind, key), 0.0):
            return {}
        figures = self._source.figures(kind, key)
        if figures is None:
            return {}
        self._figures_due[kind, key] = now + self._figures_seconds[kind]
        present = {name: live[name] for name in figures if name in live}
        return merge_patch(present, without_nulls(figures))
