"""Health and metrics of the operator over HTTP.

``/healthz`` fails when the process leads and nothing was looked at for many resyncs: something
hangs, and a restart mends it. ``/readyz`` holds as soon as the process stands by for the Lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import generate_latest

from tidegate_operator.metrics import Metrics


@contextlib.asynccontextmanager
async def http_server(
    host: str, port: int, metrics: Metrics, stalled: Callable[[], str | None]
) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port. ``stalled`` says what hangs, if anything."""

    async def healthz(_: web.Request) -> web.Response:
        trouble = stalled()
        return web.Response(text=trouble or "ok", status=503 if trouble else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
