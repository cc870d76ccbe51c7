"""A router's pods as an API server tells of them: what it says late, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.fake_engine import until
from tidegate_sidecar.flags import SettingsError
from tidegate_sidecar.router.pod_watch import ApiServer, PodWatch

from tidegate.scheduling.contracts import ServingPod

pytestmark = pytest.mark.integration

SELECTOR = "tidegate.io/pool=chat,tidegate.io/component=engine"
PATH = "/api/v1/namespaces/acme/pods"
Json = dict[str, Any]


def pod(name: str, version: int, *, ready: bool = True, **metadata: Any) -> Json:
    labels = {"tidegate.io/engine-group": "code", "padding": "x" * 60}
    ports = [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}]
    return {
        "metadata": {"name": name, "resourceVersion": str(version), "labels": labels} | metadata,
        "spec": {"containers": [{"name": "engine"}, {"name": "sidecar", "ports": ports}]},
        "status": {
            "podIP": f"10.0.0.{int(name.rpartition('-')[2]) + 1}",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class FakeApiServer:
    """Lists what it holds, and watches until told otherwise."""

    def __init__(self) -> None:
        self.pods: list[Json] = []
        self.lists = 0
        self.watched_from: list[str] = []
        self.refuse: int | None = None
        """Status that every request gets; unset: it answers."""
        self.token = "first"
        self.url = ""
        self._watchers: list[asyncio.Queue[bytes | None]] = []
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    def tell(self, type: str, obj: Json) -> None:
        self.send(json.dumps({"type": type, "object": obj}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(data)

    def end_watches(self) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(None)

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.refuse is not None:
            return web.Response(status=self.refuse)
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.Response(status=401)
        assert request.query["labelSelector"] == SELECTOR
        if "watch" not in request.query:
            self.lists += 1
            found = {"metadata": {"resourceVersion": str(100 * self.lists)}, "items": self.pods}
            return web.json_response(found)
        self.watched_from.append(request.query["resourceVersion"])
        answer = web.StreamResponse()
        await answer.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            while (data := await queue.get()) is not None:
                await answer.write(data)
        finally:
            self._watchers.remove(queue)
        return answer


class Watched:
    """A watch of a fake API server, and the pods that it last told of."""

    def __init__(self, server: FakeApiServer, token: Path) -> None:
        self.server = server
        self.token = token
        self.watch = PodWatch(ApiServer(server.url, "acme", token), SELECTOR)
        self.pods: Sequence[ServingPod] = ()

    def see(self) -> list[str]:
        if (pods := self.watch.take()) is not None:
            self.pods = pods
        return [pod.name for pod in self.pods]

    async def becomes(self, *names: str) -> None:
        await until(lambda: self.see() == list(names))

    async def is_watching(self) -> None:
        await until(lambda: self.server.watched)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """Two pods, one of which is not ready."""
    server = FakeApiServer()
    server.pods = [pod("chat-0", 1), pod("chat-1", 2, ready=False)]
    await server.start()
    token = tmp_path / "token"
    token.write_text("first\n")
    made = Watched(server, token)
    following = asyncio.create_task(made.watch.follow())
    try:
        await made.becomes("chat-0")
        await made.is_watching()
        yield made
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await server.stop()


async def test_pods_come_change_and_go(watched: Watched) -> None:
    server = watched.server
    assert watched.see() == ["chat-0"]
    assert watched.watch.take() is None  # as it was
    server.tell("MODIFIED", pod("chat-1", 101))
    await watched.becomes("chat-0", "chat-1")
    server.tell("MODIFIED", pod("chat-0", 102, deletionTimestamp="2026-01-01T00:00:00Z"))
    await watched.becomes("chat-1")
    whole = json.dumps({"type": "ADDED", "object": pod("chat-2", 103)}).encode() + b"\n"
    server.send(whole[:70])
    server.send(whole[70:])  # a line comes in as many pieces as the network likes
    await watched.becomes("chat-1", "chat-2")
    server.tell("DELETED", pod("chat-1", 104))
    await watched.becomes("chat-2")
    server.tell("DELETED", pod("chat-2", 105))
    await watched.becomes()


async def test_what_a_pod_is_told_of(watched: Watched) -> None:
    watched.server.tell("MODIFIED", pod("chat-0", 101, labels={}))
    watched.server.tell("ADDED", pod("chat-2", 102))
    await watched.becomes("chat-0", "chat-2")
    first, second = watched.pods
    assert (first.group, second.group) == ("main", "code")
    assert second.address == "http://10.0.0.3:8000"
    assert second.admin_address == "http://10.0.0.3:8001"


async def test_a_watch_that_ends_goes_on_where_it_was(watched: Watched) -> None:
    server = watched.server
    server.tell("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "777"}})
    server.end_watches()
    await until(lambda: len(server.watched_from) == 2)
    assert server.watched_from == ["100", "777"]
    assert server.lists == 1
    await watched.is_watching()
    server.tell("ADDED", pod("chat-2", 778))
    await watched.becomes("chat-0", "chat-2")


@pytest.mark.parametrize("gone_as", ["event", "status"])
async def test_410_lists_all_anew(watched: Watched, gone_as: str) -> None:
    server = watched.server
    server.pods = [pod("chat-3", 150)]  # no event told of it, nor that the others went
    if gone_as == "event":
        server.tell("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
    else:
        server.refuse = 410
        server.end_watches()
        await until(lambda: not server.watched)
        await asyncio.sleep(0)
        server.refuse = None
    await watched.becomes("chat-3")
    assert server.lists >= 2
    assert server.watched_from[0] == "100"


@pytest.mark.parametrize("answer", [b"not JSON\n", b"{}\n", b'{"type": "ERROR", "object": {}}\n'])
async def test_an_answer_that_cannot_be_read_lists_anew(watched: Watched, answer: bytes) -> None:
    watched.server.pods = [pod("chat-3", 150)]
    watched.server.send(answer)
    await watched.becomes("chat-3")


async def test_while_the_api_server_is_away_the_pods_stay(watched: Watched) -> None:
    server = watched.server
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    await until(lambda: watched.watch._failures >= 2)
    assert watched.see() == ["chat-0"]
    server.pods = [pod("chat-1", 300)]
    server.token = "second"
    watched.token.write_text("second")  # the kubelet renewed it meanwhile
    await server.start(port)
    await watched.becomes("chat-1")


async def test_a_right_that_is_missing_is_waited_for(watched: Watched) -> None:
    server = watched.server
    server.refuse = 403
    server.end_watches()
    await until(lambda: watched.watch._failures >= 2)
    assert watched.see() == ["chat-0"]
    server.refuse = None
    await until(lambda: server.lists == 2)


def test_outside_of_a_cluster_the_cure_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--pods"):
        ApiServer.in_cluster({})
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(SettingsError, match="account"):
        ApiServer.in_cluster(inside, tmp_path / "none")
    (tmp_path / "namespace").write_text("acme\n")
    found = ApiServer.in_cluster(inside, tmp_path)
    assert (found.url, found.namespace) == ("https://[fd00::1]:443", "acme")
