"""The pods and sidecars of `scripts/bench control-plane` that are not real: this process is all.

It says of each pod that no node takes that it runs, at an address of its own, and answers there as
a sidecar's admin port does: it takes policy and gives a status, at rest or of one that serves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
from aiohttp import web
from tidegate_operator.kinds import POD
from tidegate_operator.kube import Json, Kube, KubeError

from testbed.pod_status import running
from tidegate.scheduling.contracts import (
    LATENCY_BOUNDS_SECONDS,
    POLICY_VERSION,
    Histogram,
    SidecarStatus,
    SloMetric,
    SloStatus,
    TenantStatus,
    TierStatus,
    dumps,
)

ADMIN_PORT = 8001
LOOK_SECONDS = 2.0
_numbers = count(1)

Rows = Mapping[str, Any]


@dataclass(slots=True)
class Sidecar:
    """One, as the operator meets it."""

    pool: str
    address: str
    started_at: float = field(default_factory=lambda: time.time() - 3600)
    policy: Rows = field(default_factory=dict)
    """As it came; empty: none yet."""
    priorities: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    """Served so far, by each tenant."""

    @property
    def generation(self) -> int:
        return int(self.policy["generation"]) if self.policy else 0

    def take(self, bundle: bytes) -> bool:
        """Take a policy, unless it is older than the one in force."""
        policy = orjson.loads(bundle)["policy"]
        if policy["generation"] < self.generation:
            return False
        self.policy = policy
        self.priorities = {row["name"]: row["priority"] for row in policy["tiers"]}
        self.weights = {row["name"]: row["weight"] for row in policy["tenants"]}
        return True

    def status(self, busy: bool) -> str:
        """What it says of itself; when busy, every tenant has done something since."""
        self.requests += busy
        tenants = self.policy["tenants"] if self.requests else ()
        of_tier = max(1, len(tenants) // max(1, len(self.priorities)))
        return dumps(
            SidecarStatus(
                1,
                self.policy["pool"],
                self.started_at,
                self.generation,
                tiers=tuple(_tier(name, self.requests * of_tier) for name in self.priorities),
                tenants=tuple(_tenant(row["name"], row["tier"], self.requests) for row in tenants),
                reads_policy=POLICY_VERSION,
            )
        )


def _histogram(requests: int) -> Histogram:
    """Of requests that drift from bucket to bucket, so that quantiles move."""
    places = len(LATENCY_BOUNDS_SECONDS) + 1
    counts = [0] * places
    counts[5 + requests // 3 % 5] = requests
    counts[4] = requests // 2
    return Histogram(counts=tuple(counts), sum=float(requests))


def _tier(name: str, requests: int) -> TierStatus:
    return TierStatus(
        name=name,
        queued=requests % 7,
        running=requests % 5,
        service_tokens_total=300 * requests,
        requests_total={"completed": requests, "queue_full": requests // 10},
        queue_seconds=_histogram(requests),
        ttft_seconds=_histogram(requests),
        engine_time_ms_total=40.0 * requests,
        slo=(SloStatus(SloMetric.TIME_TO_FIRST_TOKEN, requests, requests - requests // 20),),
    )


def _tenant(name: str, tier: str, requests: int) -> TenantStatus:
    return TenantStatus(
        name=name,
        tier=tier,
        queued=requests % 3,
        running=requests % 2,
        service_tokens_total=300 * requests,
        requests_total={"completed": requests, "queue_full": requests // 10},
        ttft_seconds=_histogram(requests),
        engine_time_ms_total=40.0 * requests,
    )


class Sidecars:
    """All of them; ``run`` makes those of new pods and says that these run."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.by_address: dict[str, Sidecar] = {}
        self.busy = False
        self.taken: Callable[[Sidecar], None] = lambda _: None
        """Called when one has taken a policy."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_put("/policy", self._policy)
        app.router.add_put("/pods", self._pods)
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._running: dict[str, str] = {}
        """Addresses by pod's uid."""

    async def run(self) -> None:
        """Until cancelled."""
        await self._runner.setup()
        try:
            while True:
                try:
                    for pod in await self._kube.list(POD, None, "tidegate.io/component=engine"):
                        if pod["spec"].get("nodeSelector") and not pod["status"].get("podIP"):
                            await self._begin(pod)
                except KubeError:
                    pass  # the pod changed meanwhile: it is seen again
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._runner.cleanup()

    async def _begin(self, pod: Json) -> None:
        uid, labels = pod["metadata"]["uid"], pod["metadata"]["labels"]
        if uid not in self._running:
            number = next(_numbers)
            address = f"127.200.{number // 250}.{number % 250 + 1}"
            await web.TCPSite(self._runner, address, ADMIN_PORT).start()
            pool = f"{pod['metadata']['namespace']}/{labels['tidegate.io/pool']}"
            self.by_address[address] = Sidecar(pool, address)
            self._running[uid] = address
        address = self._running[uid]
        await self._kube.patch_status(POD, pod, running(address))

    def _of(self, request: web.Request) -> Sidecar:
        assert request.transport is not None
        return self.by_address[request.transport.get_extra_info("sockname")[0]]

    async def _policy(self, request: web.Request) -> web.Response:
        sidecar = self._of(request)
        if not sidecar.take(await request.read()):
            return web.json_response({"error": "stale"}, status=409)
        self.taken(sidecar)
        return web.json_response({"generation": sidecar.generation, "applied": True})

    async def _pods(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _status(self, request: web.Request) -> web.Response:
        sidecar = self._of(request)
        if not sidecar.policy:
            answer = {"error": "no policy is in force yet", "reads_policy": POLICY_VERSION}
            return web.json_response(answer, status=503)
        return web.Response(text=sidecar.status(self.busy), content_type="application/json")


def status_bytes(obj: Json) -> int:
    """Of an object's status as it is stored."""
    return len(json.dumps(obj.get("status") or {}, separators=(",", ":")))
