"""The operator's line to the routers of one pool: they get the same policy as the sidecars.

A router has no figures of requests that its pods do not have too, so all that is read of one is
which policy it runs.
"""

from __future__ import annotations

import json

from tidegate_operator.admin_port import Delivery, Refused, version_in
from tidegate_operator.sidecars import Sidecar, SidecarLink


class RouterLink(SidecarLink):
    """As :class:`~tidegate_operator.sidecars.SidecarLink`, for processes without an engine."""

    async def _tell_pods(self, sidecar: Sidecar, delivery: Delivery) -> None:
        """A router counts no limits that it would divide."""
        sidecar.told_pods = self.ready_pods

    async def _read(self, sidecar: Sidecar, delivery: Delivery) -> None:
        status, body = await self._admin.status(sidecar.pod, delivery)
        if status != 200:
            raise Refused(f"GET /status: {status}")
        sidecar.reads_policy = version_in(body)
        self._tell_version()
        generation = json.loads(body).get("policy_generation")
        if sidecar.generation != generation:
            sidecar.generation = generation if isinstance(generation, int) else None
            self._wake.set()
