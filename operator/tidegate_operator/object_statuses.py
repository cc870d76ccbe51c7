"""The statuses that are to be written, from what the controller knows of pools, tiers and tenants.

Right after a start, what tenants and tiers get from their pools would be half of the truth, written
only to be corrected: it is told once every pool was looked at, or has had its time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tidegate_operator.events import sample_events
from tidegate_operator.figures_status import pool_status, tenant_figures, tier_figures
from tidegate_operator.judge import Judgement
from tidegate_operator.kinds import SERVING_POOL, TENANT_TIER, Kind
from tidegate_operator.kube import Json
from tidegate_operator.pod_reports import samples
from tidegate_operator.pool_runtime import PoolRuntime
from tidegate_operator.settings import Settings
from tidegate_operator.slo.slo_met import SloMet
from tidegate_operator.status import pool_state_status, tenant_state_status, tier_state_status
from tidegate_operator.world import Key, World

FIRST_LOOK_SECONDS = 60.0


class ObjectStatuses:
    """The source of the status writer (:class:`tidegate_operator.status_writer.StatusSource`)."""

    def __init__(self, world: World, pools: Mapping[Key, PoolRuntime], settings: Settings) -> None:
        """``pools`` are those that were looked at, as they come and go."""
        self.judged: Judgement | None = None
        """What tiers and tenants are told."""
        self._world = world
        self._pools = pools
        self._settings = settings
        self._slo = SloMet(
            settings.runbooks, settings.pool_figures_seconds, settings.tier_figures_seconds
        )
        self._started_at = time.monotonic()
        self._whole = False

    @property
    def waited(self) -> bool:
        """A pool or sidecar that said nothing for so long holds up no other's status."""
        return time.monotonic() - self._started_at > FIRST_LOOK_SECONDS

    def becomes_whole(self) -> bool:
        """Whether tiers and tenants can be told from now on; True once."""
        if self._whole or self.judged is None:
            return False
        self._whole = self.waited or self._world.objects(SERVING_POOL).keys() <= self._pools.keys()
        return self._whole

    def forget_pool(self, key: Key) -> None:
        """It is gone."""
        self._slo.forget_pool("/".join(key))

    def state(self, kind: Kind, key: Key, obj: Json) -> Json | None:
        """The part of a status that is written at once."""
        old = obj.get("status") or {}
        if kind is SERVING_POOL:
            return self._pool_state(key, old)
        if self.judged is None or not self._whole:
            return None
        judged = self._tier_state if kind is TENANT_TIER else self._tenant_state
        return judged(key, old, self.judged)

    def figures(self, kind: Kind, key: Key) -> Json | None:
        """The part of a status that is written at intervals."""
        if kind is SERVING_POOL:
            runtime = self._pools.get(key)
            if runtime is None or runtime.figures is None or runtime.state is None:
                return None
            compiled = runtime.state.compiled
            return pool_status(runtime.figures, compiled.tier_names if compiled else ())
        if not self.waited and any(r.figures is None for r in self._pools.values()):
            return None
        pools = {"/".join(k): r.figures for k, r in self._pools.items() if r.figures is not None}
        if kind is TENANT_TIER:
            return tier_figures(key[1], pools)
        return tenant_figures("/".join(key), pools)

    def events(self, kind: Kind, key: Key, obj: Json) -> list[Json]:
        """What has happened lately that no status tells."""
        runtime = self._pools.get(key) if kind is SERVING_POOL else None
        if runtime is None:
            return []
        return sample_events(obj, samples(runtime.link.told), time.time())

    def _pool_state(self, key: Key, old: Json) -> Json | None:
        runtime = self._pools.get(key)
        if runtime is None or runtime.state is None:
            return None
        return pool_state_status(
            old,
            runtime.state,
            self._world.pod_states(key),
            runtime.delivered(),
            self._settings.sidecar_image,
            time.time(),
            runtime.autoscaler.scaler,
            self._slo.of_pool("/".join(key), runtime.promises),
            routers=self._world.router_states(key),
        )

    def _tier_state(self, key: Key, old: Json, judged: Judgement) -> Json | None:
        name = key[1]
        tier = judged.tiers.get(name)
        if tier is None:
            return None
        serving = {
            "/".join(k): runtime for k, runtime in self._pools.items() if name in runtime.tiers
        }
        claims = (tenant.claim for tenant in judged.tenants.values())
        tenants = sum(claim is not None and claim.tier == name for claim in claims)
        promises = [runtime.promises for runtime in serving.values()]
        slo = self._slo.of_tier(name, promises, partly=self.waited)
        return tier_state_status(old, tier, sorted(serving), tenants, time.time(), slo)

    def _tenant_state(self, key: Key, old: Json, judged: Judgement) -> Json | None:
        name = "/".join(key)
        tenant = judged.tenants.get(name)
        if tenant is None:
            return None
        serving = sorted(("/".join(k), r) for k, r in self._pools.items() if name in r.tenants)
        urls = [url for _, runtime in serving if (url := runtime.address_of(name))]
        pools = [pool for pool, _ in serving]
        return tenant_state_status(old, tenant, pools, time.time(), urls)
