"""How leading ends: what writes stops first, and a watch that died starts anew."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import kopf
import pytest
from aiohttp import web
from tidegate_operator import process as process_module
from tidegate_operator import watch
from tidegate_operator.kinds import POD
from tidegate_operator.lease import Elector, LeadershipLost
from tidegate_operator.metrics import Metrics
from tidegate_operator.process import Process
from tidegate_operator.settings import Settings
from tidegate_operator.watch import Watcher


async def test_who_lost_the_lease_stops_writing_before_anything_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    class FakeController:
        def __init__(self, *_: Any) -> None: ...

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: Any) -> None:
            happened.append("writing stopped")

        async def failed(self) -> None:
            await asyncio.Event().wait()

    class FakeWatcher:
        def __init__(self, *_: Any) -> None: ...

        def start(self) -> None: ...

        async def stop(self) -> None:
            happened.append("watches stopped")

    async def acquire(self: Elector) -> None: ...

    async def hold(self: Elector) -> None:
        raise LeadershipLost("gone")

    async def release(self: Elector) -> None:
        happened.append("released")

    monkeypatch.setattr(process_module, "Controller", FakeController)
    monkeypatch.setattr(process_module, "Watcher", FakeWatcher)
    for method in (acquire, hold, release):
        monkeypatch.setattr(Elector, method.__name__, method)
    process = Process(Settings(), None, Metrics())  # type: ignore[arg-type]
    code = await asyncio.wait_for(process.run(None, asyncio.Event()), 10)  # type: ignore[arg-type]
    assert code == 1
    assert happened == ["writing stopped", "watches stopped", "watches stopped", "released"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError(), SystemExit(1)])
async def test_a_watch_that_ends_in_any_way_starts_anew(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = threading.Event()
    starts: list[int] = []

    async def operator(**_: Any) -> None:
        raise error

    def on_start() -> None:
        starts.append(1)
        if len(starts) > 2:
            again.set()

    monkeypatch.setattr(kopf, "operator", operator)
    monkeypatch.setattr(watch, "RESTART_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(watch, "CLOSE_SECONDS", 0.0)
    watcher = Watcher("test", {}, (), lambda *_: None, on_start, lambda: None)  # type: ignore[arg-type, return-value]
    watcher.start()
    try:
        assert await asyncio.to_thread(again.wait, 10.0)
    finally:
        await watcher.stop()


async def test_a_watch_that_dies_within_kopf_starts_anew_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf itself, before a server that no longer has what a watch asks for. For a stop flag that
    is no event of its loop it waits in a thread, and then the loop for that thread, for ever."""
    pods = {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list", "watch"]}
    answers: dict[str, Any] = {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": []},
        "/api/v1": {"resources": [pods]},
        "/api/v1/pods": {"metadata": {"resourceVersion": "1"}, "items": []},
    }
    starts: list[float] = []
    monkeypatch.setattr(watch, "RESTART_PAUSE_SECONDS", 0.01)

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.json_response({"code": 410, "kind": "Status"}, status=410)
        return web.json_response(answers[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connection = kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")
    watcher = Watcher(
        "test", {POD: ""}, (), lambda *_: None, lambda: starts.append(1), lambda: connection
    )
    watcher.start()
    try:
        async with asyncio.timeout(60):
            while len(starts) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await watcher.stop()
        await runner.cleanup()
