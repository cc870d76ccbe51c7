"""The operator in this process against a real API server, with pods and sidecars that tests play.

There is no kubelet: :class:`Pods` sees the pods that the StatefulSet controller makes and reports
each as running, at an address where a :class:`FakeSidecar` answers the operator. The operator runs
with the rights of its own ServiceAccount, from ``manifests/``, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from tidegate_operator.kinds import KINDS, POD
from tidegate_operator.kube import Json, Kube, load_configuration
from tidegate_operator.metrics import Metrics
from tidegate_operator.process import Process
from tidegate_operator.settings import Settings

from testbed.pod_status import running
from tidegate.local_cluster.control_plane import ControlPlane
from tidegate.scheduling.contracts import (
    POLICY_VERSION,
    Bundle,
    Histogram,
    KvPoolStatus,
    SidecarStatus,
    TenantStatus,
    TierStatus,
    dumps,
    loads,
)

ROOT = Path(__file__).resolve().parents[2]
OPERATOR_USER = "system:serviceaccount:tidegate-system:tidegate-operator"
_addresses = itertools.count(1)

QUICK = {
    "resync_seconds": 5.0,
    "scrape_seconds": 0.3,
    "pool_figures_seconds": 0.5,
    "tier_figures_seconds": 0.5,
    "tenant_figures_seconds": 0.5,
    "status_writes_per_second": 100.0,
}


async def eventually(check: Callable[[], Any], what: str, timeout_seconds: float = 30.0) -> Any:
    """The first true value of ``check`` (which may be async); fails with ``what`` at the end."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s: {what}"
        await asyncio.sleep(0.1)


class FakeSidecar:
    """The admin port of one sidecar: takes policy as a real one does, and says what it is told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.bundle: Bundle | None = None
        self.generations: list[int] = []
        """Of every policy that was taken, in order."""
        self.tokens: set[str] = set()
        self.knows: str | None = None
        """The only token that it takes; unset: any."""
        self.refuse = False
        self.reads_policy = POLICY_VERSION
        self.started_at = time.time() - 3600
        self.tiers: tuple[TierStatus, ...] = ()
        self.tenants: tuple[TenantStatus, ...] = ()
        self.kv_pools: tuple[KvPoolStatus, ...] = ()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20, middlewares=[self._guard])
        app.router.add_put("/policy", self._policy)
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, 8001).start()

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if self.knows not in (None, token):
            return web.json_response({"error": "a valid bearer token is needed"}, status=401)
        self.tokens.add(token)
        answer: web.StreamResponse = await handler(request)
        return answer

    @property
    def generation(self) -> int:
        return self.bundle.policy.generation if self.bundle else 0

    async def _policy(self, request: web.Request) -> web.Response:
        bundle = loads(Bundle, await request.read())
        if self.refuse:
            return web.json_response({"error": "tiers: told to refuse"}, status=422)
        if bundle.policy.version > self.reads_policy:
            return web.json_response({"error": "policy.version: not known"}, status=422)
        if bundle.policy.generation < self.generation:
            return web.json_response({"error": "stale"}, status=409)
        self.bundle = bundle
        self.generations.append(bundle.policy.generation)
        return web.json_response({"generation": bundle.policy.generation, "applied": True})

    async def _status(self, request: web.Request) -> web.Response:
        if self.bundle is None:
            answer = {"error": "no policy is in force yet", "reads_policy": self.reads_policy}
            return web.json_response(answer, status=503)
        policy = self.bundle.policy
        silent = tuple(
            TierStatus(t.name, queue_seconds=Histogram(), ttft_seconds=Histogram())
            for t in policy.tiers
            if t.name not in {told.name for told in self.tiers}
        )
        status = SidecarStatus(
            1,
            policy.pool,
            self.started_at,
            policy.generation,
            tiers=self.tiers + silent,
            tenants=self.tenants,
            kv_pools=self.kv_pools,
            reads_policy=self.reads_policy,
        )
        return web.Response(text=dumps(status), content_type="application/json")


class Pods:
    """Plays the kubelet for the pods of one namespace; ``run`` is its loop."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self.sidecars: dict[str, FakeSidecar] = {}
        """By the pod's uid."""
        self.ready = True
        self.reads_policy = POLICY_VERSION
        """Of sidecars to come."""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                await self._step()
            await asyncio.sleep(0.1)

    async def _step(self) -> None:
        pods = {p["metadata"]["uid"]: p for p in await self._kube.list(POD, self._namespace)}
        for uid in self.sidecars.keys() - pods.keys():
            await self.sidecars.pop(uid).stop()
        for uid, pod in pods.items():
            if uid not in self.sidecars:
                number = next(_addresses)
                # No range of a local cluster, which may run beside the test.
                sidecar = FakeSidecar(f"127.60.{number // 250}.{number % 250 + 1}")
                sidecar.reads_policy = self.reads_policy
                await sidecar.start()
                self.sidecars[uid] = sidecar
            if self.ready and not _is_ready(pod):
                await self._kube.patch_status(POD, pod, running(self.sidecars[uid].address))

    async def stop(self) -> None:
        for sidecar in self.sidecars.values():
            await sidecar.stop()


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


class OperatorCluster:
    """A control plane with our CRDs and manifests, and operators in this process."""

    def __init__(self, plane: ControlPlane, kube: Kube, folder: Path) -> None:
        self.plane = plane
        self.kube = kube
        """As the administrator."""
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()

    async def apply(self, *objects: Json) -> None:
        """As a user would: ``kubectl apply --server-side``, whole objects."""
        for obj in objects:
            clean = json.loads(json.dumps(obj))
            for field in ("uid", "generation", "creationTimestamp"):
                clean["metadata"].pop(field, None)
            done = await asyncio.to_thread(
                self.plane.kubectl,
                "apply",
                "--server-side",
                "--field-manager=user",
                "--force-conflicts",
                "-f",
                "-",
                stdin=json.dumps(clean),
            )
            assert done.returncode == 0, done.stderr

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        return await self.kube.get(KINDS[kind], name, namespace)

    async def condition(
        self, kind: str, name: str, namespace: str | None, condition: str
    ) -> tuple[str, str, str] | None:
        """(status, reason, message)."""
        obj = await self.get(kind, name, namespace)
        for found in ((obj or {}).get("status") or {}).get("conditions") or ():
            if found["type"] == condition:
                return found["status"], found["reason"], found["message"]
        return None

    async def condition_becomes(
        self, kind: str, name: str, namespace: str | None, condition: str, *wanted: str
    ) -> str:
        """Wait for (status[, reason]); the message."""

        async def check() -> tuple[str, str, str] | None:
            found = await self.condition(kind, name, namespace, condition)
            return found if found and found[: len(wanted)] == wanted else None

        try:
            found = await eventually(check, f"{kind} {name} {condition}={wanted}")
        except AssertionError as error:
            obj = await self.get(kind, name, namespace)
            raise AssertionError(f"{error}; is {(obj or {}).get('status')}") from None
        return str(found[2])

    def kubeconfig_of_operator(self) -> Path:
        """Credentials of the operator's ServiceAccount."""
        path = self._folder / "operator.kubeconfig"
        if not path.exists():
            made = self.plane.kubectl(
                "create", "token", "tidegate-operator", "-n", "tidegate-system", "--duration=24h"
            )
            assert made.returncode == 0, made.stderr
            content = yaml.safe_load(self.plane.kubeconfig.read_text())
            content["users"][0]["user"] = {"token": made.stdout.strip()}
            path.write_text(yaml.safe_dump(content))
        return path

    def forget_operator_credentials(self) -> None:
        """Its account was made anew, so that the old token is worth nothing."""
        (self._folder / "operator.kubeconfig").unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def operator(
        self, kubeconfig: Path | None = None, **settings: Any
    ) -> AsyncIterator[Process]:
        """One operator that runs while the context lasts, and must end without a failure; by
        ``kubeconfig`` it may be led to the API server by another way."""
        chosen = Settings(
            **(QUICK | {"leader_election": False, "identity": "test"} | settings),
        )
        configuration = await load_configuration(str(kubeconfig or self.kubeconfig_of_operator()))
        process, stop = Process(chosen, configuration, Metrics()), asyncio.Event()
        async with Kube(configuration) as kube:
            task = asyncio.create_task(process.run(kube, stop))
            try:
                yield process
            finally:
                stop.set()
                code = await asyncio.wait_for(task, 30.0)
        assert code == 0

    @contextlib.asynccontextmanager
    async def pods(self, namespace: str) -> AsyncIterator[Pods]:
        """Every pod of the namespace runs, with a sidecar to talk to, while the context lasts."""
        playing = Pods(self.kube, namespace)
        task = asyncio.create_task(playing.run())
        try:
            yield playing
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await playing.stop()

    async def quiet(self, seconds: float = 3.0) -> None:
        """Wait until the operator has written nothing for so long."""
        deadline = time.monotonic() + 60.0
        while True:
            audit = self.audit()
            await asyncio.sleep(seconds)
            if not (writes := audit.writes()):
                return
            assert time.monotonic() < deadline, f"it goes on writing: {writes}"

    def audit(self) -> Audit:
        """Writes from now on."""
        return Audit(self.plane.audit_log)


class Audit:
    """The API server's record of writes since it was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def writes(self, user: str = OPERATOR_USER) -> list[str]:
        """By that user, the Lease's renewals left out: "verb resource namespace/name"."""
        with self._path.open() as file:
            file.seek(self._offset)
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        refs = [
            (line["verb"], line["objectRef"]) for line in lines if line["user"]["username"] == user
        ]
        return [
            f"{verb} {ref['resource']} {ref.get('namespace', '')}/{ref.get('name', '')}"
            for verb, ref in refs
            if ref["resource"] != "leases"
        ]


def decoded(secret: Json) -> dict[str, str]:
    """``data`` of a Secret as text."""
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
