"""The admin port: health, metrics, status, policy, drain, explanations, samples, engine probes.

Open to anybody: ``/healthz``, ``/readyz``, ``/drained``, ``/engine/startupz``, ``/engine/livez``;
they tell no more than health, and a kubelet's probes and hooks carry no token. Everything else
needs the bearer token, where one is configured.

``GET /drained`` is for the engine container's preStop hook: it answers when no new request is taken
and nothing is queued or in flight any more. Both containers of a pod are told to stop at about the
same time, so it first waits (``?begin_seconds=``, 10) for the drain to begin, which it announces
(:mod:`.departure`); if none does (the engine alone is restarted, or it is dead already), it answers
at once and holds nobody.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from tidegate.scheduling.contracts import POLICY_VERSION, dumps
from tidegate_sidecar.admin_port import METRICS_TYPE, admin_application, put_policy
from tidegate_sidecar.engine_watch import EngineWatch
from tidegate_sidecar.explain import explain_request, explain_tenant
from tidegate_sidecar.exposition import exposition
from tidegate_sidecar.openapi import sidecar_document
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.status import status_of

MAX_HANDED_BACK = 1_000_000
MAX_PODS = 100_000

_OPEN = frozenset({"/healthz", "/readyz", "/drained", "/engine/startupz", "/engine/livez"})


class Admin:
    """Handlers of the admin port."""

    def __init__(self, runtime: Runtime, watch: EngineWatch) -> None:
        self._runtime = runtime
        self._watch = watch

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = admin_application(
            self._runtime.settings.admin_token_file,
            _OPEN,
            sidecar_document(MAX_PODS, MAX_HANDED_BACK),
            lambda: exposition(self._runtime),
        )
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_put("/policy", self._put_policy)
        app.router.add_put("/pods", self._put_pods)
        app.router.add_get("/load", self._load)
        app.router.add_post("/hand-back", self._hand_back)
        app.router.add_post("/drain", self._drain)
        app.router.add_get("/drained", self._drained)
        app.router.add_get("/explain/requests/{id}", self._explain_request)
        app.router.add_get("/explain/tenants/{namespace}/{name}", self._explain_tenant)
        app.router.add_get("/profiles", self._profiles)
        app.router.add_get("/profiles/{name}", self._profile)
        app.router.add_get("/engine/startupz", self._engine_health)
        app.router.add_get("/engine/livez", self._engine_health)
        app.router.add_get("/engine/metrics", self._engine_metrics)
        return app

    async def _readyz(self, request: web.Request) -> web.Response:
        runtime = self._runtime
        parts = {
            "policy": runtime.in_force is not None,
            "engine": runtime.dispatcher.engine_ready,
            "draining": runtime.dispatcher.departure.begun,
        }
        return web.json_response(parts, status=200 if runtime.ready else 503)

    async def _status(self, request: web.Request) -> web.Response:
        status = status_of(self._runtime)
        if status is None:
            error = self._runtime.policy_error or "no policy is in force yet"
            answer = {"error": error, "reads_policy": POLICY_VERSION}
            return web.json_response(answer, status=503)
        return web.Response(text=dumps(status), content_type="application/json")

    async def _put_policy(self, request: web.Request) -> web.Response:
        return await put_policy(self._runtime, request)

    async def _put_pods(self, request: web.Request) -> web.Response:
        """``?ready=N``: how many pods of the pool serve."""
        try:
            ready = int(request.query.get("ready", ""))
        except ValueError:
            ready = 0
        if not 1 <= ready <= MAX_PODS:
            error = f"ready must be a number from 1 to {MAX_PODS}"
            return web.json_response({"error": error}, status=400)
        self._runtime.count_pods(ready)
        return web.json_response({"ready": ready})

    async def _load(self, request: web.Request) -> web.Response:
        """For routers: requests that wait, sequences that run, and how many run at once."""
        runtime = self._runtime
        scheduler, gate = runtime.dispatcher.scheduler, runtime.dispatcher.in_flight.gate
        in_force = runtime.in_force
        load = {
            "ready": runtime.ready,
            "queued": 0 if scheduler is None else scheduler.queued(),
            "running": 0 if gate is None else gate.in_flight,
            "seats": None if in_force is None else in_force.policy.engine.max_num_seqs,
        }
        return web.json_response(load)

    async def _hand_back(self, request: web.Request) -> web.Response:
        try:
            requests = int(request.query.get("requests", ""))
        except ValueError:
            requests = 0
        if not 1 <= requests <= MAX_HANDED_BACK:
            error = f"requests must be a number from 1 to {MAX_HANDED_BACK}"
            return web.json_response({"error": error}, status=400)
        if not self._runtime.callers.signed_only(self._runtime.dispatcher.loop.time()):
            error = "clients come here without a router, so nobody would take them"
            return web.json_response({"error": error}, status=409)
        return web.json_response({"handed_back": self._runtime.dispatcher.hand_back(requests)})

    async def _drain(self, request: web.Request) -> web.Response:
        self._runtime.begin_drain()
        return web.json_response({"draining": True, "in_hand": self._runtime.dispatcher.in_hand})

    async def _drained(self, request: web.Request) -> web.Response:
        try:
            begin_seconds = min(600.0, max(0.0, float(request.query.get("begin_seconds", "10"))))
        except ValueError:
            return web.json_response({"error": "begin_seconds must be a number"}, status=400)
        dispatcher = self._runtime.dispatcher
        departure = dispatcher.departure
        if not departure.begun and dispatcher.engine_ready:
            try:
                with departure.announced():
                    async with asyncio.timeout(begin_seconds):
                        await departure.wait_begun()
            except TimeoutError:
                return web.json_response({"draining": False})
        if departure.begun:
            await departure.wait_over()
            await dispatcher.idle()
        return web.json_response({"draining": departure.begun})

    async def _explain_request(self, request: web.Request) -> web.Response:
        explanation = explain_request(self._runtime, request.match_info["id"])
        if explanation is None:
            text = "no such request waits, runs or ended lately here"
            return web.json_response({"error": text}, status=404)
        return web.Response(text=dumps(explanation), content_type="application/json")

    async def _explain_tenant(self, request: web.Request) -> web.Response:
        name = f"{request.match_info['namespace']}/{request.match_info['name']}"
        explanation = explain_tenant(self._runtime, name)
        if explanation is None:
            return web.json_response({"error": "no such tenant is served here"}, status=404)
        return web.Response(text=dumps(explanation), content_type="application/json")

    async def _profiles(self, request: web.Request) -> web.Response:
        samples = [
            {
                "name": sample.name,
                "tier": sample.tier,
                "at": sample.at,
                "rows": sample.rows,
                "truncated": sample.truncated,
            }
            for sample in self._runtime.reports.profile.samples
        ]
        return web.json_response({"samples": samples})

    async def _profile(self, request: web.Request) -> web.Response:
        for sample in self._runtime.reports.profile.samples:
            if sample.name == request.match_info["name"]:
                return web.Response(body=sample.content, content_type="application/jsonl")
        return web.json_response({"error": "no such sample is kept"}, status=404)

    async def _engine_health(self, request: web.Request) -> web.Response:
        status = await self._watch.healthy()
        return web.json_response({"engine": status}, status=200 if status == 200 else 503)

    async def _engine_metrics(self, request: web.Request) -> web.Response:
        status, body = await self._watch.get("/metrics")
        if status != 200:
            return web.json_response({"error": "the engine gives no metrics"}, status=502)
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})
