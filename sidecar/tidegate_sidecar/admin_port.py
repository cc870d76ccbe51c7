"""What the admin ports of sidecar and router share: token, first routes, how a policy is posted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from tidegate.scheduling.contracts import Bundle, ContractError, loads
from tidegate_sidecar.auth import token_matches
from tidegate_sidecar.governed import Governed, StaleGenerationError

MAX_BUNDLE_BYTES = 64 << 20

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def token_guard(token_file: Path | None, open_paths: frozenset[str]) -> Middleware:
    """Asks for the bearer token, where there is one, on all but the open paths."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token_file is not None and request.path not in open_paths:
            # read each time: a rotated token is in force as soon as its file is
            token = await asyncio.to_thread(_read_token, token_file)
            if not token or not token_matches(request.headers.getall("Authorization", ()), token):
                return web.json_response(
                    {"error": "a valid bearer token is needed"},
                    status=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return await handler(request)

    return guard


def admin_application(
    token_file: Path | None,
    open_paths: frozenset[str],
    document: Mapping[str, Any],
    metrics: Callable[[], bytes],
) -> web.Application:
    """What every admin port serves: that it lives, what it is (``document``), and its metrics."""
    described = orjson.dumps(document)

    async def healthz(request: web.Request) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def openapi(request: web.Request) -> web.StreamResponse:
        return web.Response(body=described, content_type="application/json")

    async def exposed(request: web.Request) -> web.StreamResponse:
        return web.Response(body=metrics(), headers={"Content-Type": METRICS_TYPE})

    guard = token_guard(token_file, open_paths)
    app = web.Application(client_max_size=MAX_BUNDLE_BYTES, middlewares=[guard])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/openapi.json", openapi)
    app.router.add_get("/metrics", exposed)
    return app


async def put_policy(governed: Governed, request: web.Request) -> web.Response:
    """``PUT /policy``: a whole bundle; 422 where it cannot be, 409 where a newer one is."""
    try:
        bundle = loads(Bundle, await request.read(), "bundle")
        if bundle.policy.shard is not None or bundle.keys.shard is not None:
            raise ContractError("bundle: shards are for files; post the whole policy")
        applied = governed.apply(bundle)
    except ContractError as error:
        governed.policy_failed(str(error))
        return web.json_response({"error": str(error)}, status=422)
    except StaleGenerationError as error:
        return web.json_response({"error": str(error)}, status=409)
    return web.json_response({"generation": bundle.policy.generation, "applied": applied})


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
