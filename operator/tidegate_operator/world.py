"""What is, by LIST: the one truth that reconciling reads.

Theory of operation. Someone (a watch event, a resync) says that a kind changed; the next
``refresh`` lists the kinds so marked, and replaces all that was known of them, so an object that
was deleted unseen is gone then. A kind is listed again only after a pause proportional to how long
its last LIST took: under a storm of changes listing costs a bounded part of one core, however many
objects there are. A mark set while a LIST is under way stays set, for that LIST may be older.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from tidegate_operator import names
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.kinds import (
    NAMESPACE,
    POD,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SECRET,
    SERVING_POOL,
    TENANT,
    TENANT_TIER,
    Kind,
)
from tidegate_operator.kube import Forbidden, Json, Kube
from tidegate_operator.pool_state import PodState, pod_state

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace ("" for cluster-wide kinds) and name."""

SELECTORS: dict[Kind, str] = {
    TENANT_TIER: "",
    TENANT: "",
    SERVING_POOL: "",
    NAMESPACE: "",
    SECRET: names.API_KEYS_LABEL,
    POD: f"{names.COMPONENT_LABEL} in ({names.ENGINE},{names.ROUTER}),{names.POOL_LABEL}",
}
"""The kinds that are listed whole, and the label selector of each."""

OPTIONAL = (POD_MONITOR, PROMETHEUS_RULE)
"""Kinds that a cluster may have, or get later: asked at each resync."""

JUDGED = (TENANT_TIER, TENANT, NAMESPACE, SECRET)
"""Kinds that decide what tenants get."""

PAUSE_FACTOR = 4.0
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
"""However slow a LIST was: what is revoked meanwhile must act within seconds."""


class World:
    """The newest known objects of the kinds above."""

    def __init__(self, kube: Kube, namespaces: Sequence[str]) -> None:
        self._kube = kube
        self._namespaces = tuple(namespaces)
        self._objects: dict[Kind, dict[Key, Json]] = {kind: {} for kind in SELECTORS}
        self._dirty: set[Kind] = set(SELECTORS)
        self._not_before = dict.fromkeys(SELECTORS, 0.0)
        self._refused: dict[Kind, frozenset[str]] = {}
        """Namespaces that the last LIST of the kind may not read."""
        self._served: frozenset[Kind] | None = None
        """Of the optional kinds; unset: to be asked again."""
        self._lock = asyncio.Lock()
        self._judgement: Judgement | None = None

    def mark(self, kind: Kind) -> None:
        """Objects of this kind may have changed."""
        self._dirty.add(kind)

    def mark_all(self) -> None:
        """Nothing that is known may be trusted."""
        self._dirty.update(SELECTORS)
        self._served = None

    def serves(self, kind: Kind) -> bool:
        """Whether the API server had this optional kind at the last refresh."""
        return self._served is not None and kind in self._served

    def objects(self, kind: Kind) -> dict[Key, Json]:
        """All objects of the kind as of the last refresh."""
        return self._objects[kind]

    def put(self, kind: Kind, obj: Json) -> None:
        """The status as a write of ours left it.

        Nothing else of the answer is taken: it may carry a spec that no LIST has shown, and the
        next LIST would find no difference to judge.
        """
        known = self._objects[kind].get(key_of(obj))
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            known["status"] = obj.get("status") or {}

    def pods_of(self, pool: Key) -> list[Json]:
        """The engine pods of a pool, by name."""
        return self._component_of(pool, names.ENGINE)

    def pod_states(self, pool: Key) -> list[PodState]:
        """The engine pods of a pool, read."""
        return [pod_state(pod, time.time()) for pod in self.pods_of(pool)]

    def routers_of(self, pool: Key) -> list[Json]:
        """The router's pods of a pool, by name."""
        return self._component_of(pool, names.ROUTER)

    def router_states(self, pool: Key) -> list[PodState]:
        """The router's pods of a pool, read."""
        return [pod_state(pod, time.time()) for pod in self.routers_of(pool)]

    def _component_of(self, pool: Key, component: str) -> list[Json]:
        namespace, name = pool
        wanted = {names.POOL_LABEL: name, names.COMPONENT_LABEL: component}.items()
        return [
            pod
            for key, pod in sorted(self._objects[POD].items())
            if key[0] == namespace and wanted <= pod["metadata"]["labels"].items()
        ]

    async def refresh(self) -> None:
        """List what is marked; raises what the client raises, with the marks kept."""
        async with self._lock:
            if self._served is None:
                self._served = frozenset([k for k in OPTIONAL if await self._kube.serves(k)])
            if not self._dirty:
                return
            pause = max(self._not_before[kind] for kind in self._dirty) - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            due, self._dirty = self._dirty, set()
            done: set[Kind] = set()
            try:
                async with asyncio.TaskGroup() as group:
                    for kind in due:
                        group.create_task(self._list(kind, done))
            except ExceptionGroup as errors:
                # Not `except*`: what is raised in it, CPython 3.11.2 (Debian 12) wraps again.
                raise errors.exceptions[0] from None
            finally:
                self._dirty |= due - done

    @property
    def judgement(self) -> Judgement:
        """Tiers and tenants of the last refresh, judged."""
        if self._judgement is None:
            self._judgement = judge(
                self._objects[TENANT_TIER].values(),
                self._objects[TENANT].values(),
                {
                    name: obj["metadata"].get("labels") or {}
                    for (_, name), obj in self._objects[NAMESPACE].items()
                },
                {
                    key: obj.get("data") or {}
                    for key, obj in self._objects[SECRET].items()
                    if not obj["metadata"].get("deletionTimestamp")
                },
            )
        return self._judgement

    async def _list(self, kind: Kind, done: set[Kind]) -> None:
        started = time.monotonic()
        selector = SELECTORS[kind] or None
        if kind.namespaced and self._namespaces:
            items = await self._list_namespaces(kind, selector)
        else:
            items = await self._kube.list(kind, None, selector)
        before, self._objects[kind] = (
            self._objects[kind],
            {key_of(item): _slim(item) for item in items},
        )
        if kind in JUDGED and _versions(before) != _versions(self._objects[kind]):
            self._judgement = None
        ended = time.monotonic()
        pause = max(SHORTEST_PAUSE_SECONDS, PAUSE_FACTOR * (ended - started))
        self._not_before[kind] = ended + min(pause, LONGEST_PAUSE_SECONDS)
        done.add(kind)

    async def _list_namespaces(self, kind: Kind, selector: str | None) -> list[Json]:
        """The objects of the namespaces that are served; one that is refused stops no other.

        What was in it is kept as it was, for a right that is missing for a moment must not cut off
        tenants; once the namespace itself is gone, so is what was in it.
        """
        items: list[Json] = []
        refusals: dict[str, Forbidden] = {}
        for namespace in self._namespaces:
            try:
                items += await self._kube.list(kind, namespace, selector)
            except Forbidden as error:
                refusals[namespace] = error
                if ("", namespace) in self._objects[NAMESPACE]:
                    items += (o for k, o in self._objects[kind].items() if k[0] == namespace)
        if len(refusals) == len(self._namespaces):
            raise next(iter(refusals.values()))
        for namespace in refusals.keys() - self._refused.get(kind, ()):
            log.warning("namespace %s is left as it was: %s", namespace, refusals[namespace])
        self._refused[kind] = frozenset(refusals)
        return items


def key_of(obj: Json) -> Key:
    """The object's namespace and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _slim(obj: Json) -> Json:
    obj["metadata"].pop("managedFields", None)
    return obj


def _versions(objects: dict[Key, Json]) -> dict[Key, tuple[str, str, str]]:
    """What changes when an object is changed otherwise than in its status."""
    return {
        key: (
            obj["metadata"]["uid"],
            str(obj["metadata"].get("generation") or obj["metadata"]["resourceVersion"]),
            str(obj["metadata"].get("deletionTimestamp")),
        )
        for key, obj in objects.items()
    }
