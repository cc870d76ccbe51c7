"""The demo's mode switch: a real ServingPool patched with kubectl, sidecars asked what they do."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from support.crd_api import ABSENT, Api, Json, changed, example

from tidegate.cli import pool_mode
from tidegate.cli.errors import CommandError
from tidegate.cli.pool_mode import PoolMode
from tidegate.local_cluster.control_plane import ControlPlane
from tidegate.scheduling.contracts import STATUS_VERSION, SchedulingMode, SidecarStatus, dumps

pytestmark = pytest.mark.contract

ADDRESS = "127.61.0.1"
"""In no range of a local cluster, which may run beside the test."""
TOKEN = "admin-token"
FIRST_COME = SchedulingMode.FIRST_COME_FIRST_SERVED


@pytest.fixture
def pool(api: Api, namespace: str) -> Json:
    """A pool with a ready engine pod and the Secret of its admin token."""
    obj = changed(example("ServingPool", "chat", namespace), {"spec.schedulingMode": ABSENT})
    api.create(obj).ok()
    core = f"/api/v1/namespaces/{namespace}"
    secret = {"metadata": {"name": "chat-admin"}, "data": {"token": _base64(TOKEN)}}
    api.request("POST", f"{core}/secrets", secret).ok()
    labels = {"tidegate.io/pool": "chat", "tidegate.io/component": "engine"}
    pod = {
        "metadata": {"name": "chat-0", "labels": labels},
        "spec": {"containers": [{"name": "engine", "image": "none"}]},
    }
    account = {"metadata": {"name": "default"}}
    api.request("POST", f"{core}/serviceaccounts", account)
    api.request("POST", f"{core}/pods", pod).ok()
    status = {
        "status": {
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    }
    kind = "application/merge-patch+json"
    api.request("PATCH", f"{core}/pods/chat-0/status", status, content_type=kind).ok()
    return obj


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Sidecar:
    """The admin port of a sidecar that obeys its pool from the second question on."""

    def __init__(self, api: Api, pool: Json) -> None:
        self.api, self.pool = api, pool
        self.obeys = True
        self.asked = 0

    def mode_of_pool(self) -> str | None:
        mode = self.api.read(self.pool)["spec"].get("schedulingMode")
        assert mode is None or isinstance(mode, str)
        return mode

    async def status(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        self.asked += 1
        wanted = await asyncio.to_thread(self.mode_of_pool)
        late = self.asked == 1 or not self.obeys
        mode = SchedulingMode(wanted or "Tidegate") if not late else SchedulingMode.TIDEGATE
        report = SidecarStatus(STATUS_VERSION, "ns/chat", 1.0, 1, scheduling_mode=mode)
        return web.Response(text=dumps(report))


@pytest.fixture
async def sidecar(api: Api, pool: Json) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(api, pool)
    app = web.Application()
    app.router.add_get("/status", sidecar.status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 8001).start()
    yield sidecar
    await runner.cleanup()


@pytest.fixture
def switch(api: Api, namespace: str, kubeconfig: Path, api_server: ControlPlane) -> PoolMode:
    return PoolMode(kubeconfig, namespace, "chat", api_server.binaries.path("kubectl"))


async def test_the_mode_is_in_force_when_set_returns_and_restore_leaves_no_trace(
    switch: PoolMode, sidecar: Sidecar, api: Api, pool: Json
) -> None:
    before = await asyncio.to_thread(api.read, pool)
    assert "schedulingMode" not in before["spec"]
    assert await switch.model() == before["spec"]["model"]["name"]
    await switch.set(FIRST_COME)
    assert sidecar.mode_of_pool() == "FirstComeFirstServed"
    assert sidecar.asked == 2
    await switch.set(SchedulingMode.TIDEGATE)
    await switch.restore()
    after = await asyncio.to_thread(api.read, pool)
    assert after["spec"] == before["spec"]


async def test_restore_keeps_the_mode_that_the_pool_had_and_does_nothing_unasked(
    switch: PoolMode, sidecar: Sidecar, api: Api, pool: Json
) -> None:
    await asyncio.to_thread(api.merge, pool, {"spec": {"schedulingMode": "FirstComeFirstServed"}})
    await switch.restore()
    assert sidecar.mode_of_pool() == "FirstComeFirstServed"
    await switch.set(SchedulingMode.TIDEGATE)
    assert sidecar.mode_of_pool() == "Tidegate"
    await switch.restore()
    assert sidecar.mode_of_pool() == "FirstComeFirstServed"


async def test_sidecars_that_do_not_obey_are_an_error_in_time(
    switch: PoolMode, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar.obeys = False
    monkeypatch.setattr(pool_mode, "_SWITCH_SECONDS", 3.0)
    with pytest.raises(CommandError, match="sidecars do not report schedulingMode"):
        await switch.set(FIRST_COME)
    await switch.restore()
    assert sidecar.mode_of_pool() is None


async def test_what_kubectl_says_is_the_error(
    namespace: str, kubeconfig: Path, api_server: ControlPlane, crds: ControlPlane
) -> None:
    absent = PoolMode(kubeconfig, namespace, "absent", api_server.binaries.path("kubectl"))
    with pytest.raises(CommandError, match=r'kubectl get: .*"absent" not found'):
        await absent.set(FIRST_COME)
