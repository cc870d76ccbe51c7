"""The children of one pool, applied and removed one by one during a reconcile.

An object that the server refuses does not stop the others: it is noted as a fault. Objects that
exist already and are not the pool's own are never taken over, and never removed.
"""

from __future__ import annotations

import logging

from tidegate_operator.api.conditions import ConditionType, Reason
from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.apply import in_sync
from tidegate_operator.findings import Fault
from tidegate_operator.kinds import SERVING_POOL, Kind
from tidegate_operator.kube import Forbidden, Invalid, Json, Kube, KubeError
from tidegate_operator.metrics import Metrics
from tidegate_operator.rollout_plan import RolloutPlan

log = logging.getLogger(__name__)


class WaitForCollection(Exception):
    """Children of a deleted pool of the same name are still being removed."""


def owns(pool: PoolIdentity, child: Json) -> bool:
    """Whether the child is this very pool's."""
    owners = child["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == pool.metadata.uid for owner in owners)


class PoolChildren:
    """One reconcile's work on the children of one pool, and the faults that it met."""

    def __init__(self, kube: Kube, metrics: Metrics, pool: PoolIdentity) -> None:
        self._kube = kube
        self._metrics = metrics
        self.pool = pool
        self.faults: list[Fault] = []

    def refused(self, kind: Kind, name: str, error: KubeError) -> None:
        """Note a child that could not be applied."""
        text = f"{kind.name} {name} was refused: {error}"
        self.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))

    async def get(self, kind: Kind, name: str) -> Json | None:
        """An object in the pool's namespace, as it is."""
        return await self._kube.get(kind, name, self.pool.metadata.namespace)

    async def create(self, kind: Kind, desired: Json) -> Json | None:
        """Create one child; None where that was refused (and noted), Conflict where it exists."""
        try:
            return await self._kube.create(kind, desired)
        except (Invalid, Forbidden) as error:
            self.refused(kind, desired["metadata"]["name"], error)
            return None

    async def apply(self, kind: Kind, desired: Json, live: Json | None = None) -> Json | None:
        """Apply one child where it differs; None where that was refused (and noted)."""
        metadata = desired["metadata"]
        try:
            if live is None:
                live = await self._kube.get(kind, metadata["name"], metadata["namespace"])
            if live is not None:
                if not self._is_own(kind, live):
                    return None
                if in_sync(desired, live):
                    return live
            applied = await self._kube.apply(kind, desired)
        except (Invalid, Forbidden) as error:
            self.refused(kind, metadata["name"], error)
            return None
        self._metrics.applies.labels(kind.name).inc()
        log.info(
            "applied",
            extra={
                "object": f"{kind.name}/{metadata['name']}",
                "pool": f"{self.pool.metadata.namespace}/{self.pool.metadata.name}",
            },
        )
        return applied

    async def apply_pods(
        self, kind: Kind, plan: RolloutPlan, live: Json | None, field: str
    ) -> Json | None:
        """Apply what makes pods, with new ones only where the API server would take them;
        ``field`` of the spec says what they are."""
        wanted = plan.workload
        if plan.pod is not None and (why := await self._kube.refusal(plan.pod)):
            text = (
                f"{field}: the cluster refuses such pods, so those that run stay as they are: {why}"
            )
            fault = Fault(ConditionType.ACCEPTED, Reason.POD_REFUSED, text)
            self.faults += [] if fault in self.faults else [fault]
            wanted = plan.last_good
        return await self.apply(kind, wanted, live) if wanted else None

    async def delete(self, kind: Kind, live: Json) -> None:
        """Delete one child, which is known to be the pool's own."""
        await self._kube.delete(kind, live)
        self._metrics.applies.labels(kind.name).inc()

    async def remove(self, kind: Kind, name: str) -> bool:
        """Delete the pool's own child of that name, if there is one; False where that was refused
        (and noted)."""
        try:
            live = await self._kube.get(kind, name, self.pool.metadata.namespace)
            if live is not None and owns(self.pool, live):
                await self.delete(kind, live)
        except Forbidden as error:
            text = f"{kind.name} {name} could not be removed: {error}"
            self.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))
            return False
        return True

    def _is_own(self, kind: Kind, live: Json) -> bool:
        """Whether the object is this pool's; notes it where it is somebody else's."""
        metadata = live["metadata"]
        owners = metadata.get("ownerReferences") or ()
        if owns(self.pool, live):
            return True
        if any(
            owner["kind"] == SERVING_POOL.name and owner["name"] == self.pool.metadata.name
            for owner in owners
        ):
            raise WaitForCollection(
                f"{kind.name} {metadata['name']} of the former pool is not collected yet"
            )
        text = (
            f"{kind.name} {metadata['name']} exists and is not this pool's; delete it, or give the "
            "pool another name"
        )
        self.faults.append(Fault(ConditionType.READY, Reason.APPLY_FAILED, text))
        return False
