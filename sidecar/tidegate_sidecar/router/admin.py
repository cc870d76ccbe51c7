"""The router's admin port: health, metrics, status, policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tidegate.scheduling.contracts import FALLBACK_GROUP, POLICY_VERSION
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.admin_port import admin_application, put_policy
from tidegate_sidecar.openapi import router_document
from tidegate_sidecar.router.groups import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from tidegate_sidecar.router.server import Router

_OPEN = frozenset({"/healthz", "/readyz"})


class RouterAdmin:
    """Handlers of the admin port."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Figures(router))

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = admin_application(
            self._router.settings.admin_token_file,
            _OPEN,
            router_document(),
            lambda: generate_latest(self._registry),
        )
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_put("/policy", self._put_policy)
        return app

    async def _readyz(self, request: web.Request) -> web.Response:
        router = self._router
        parts = {
            "policy": router.in_force is not None,
            "pods": len(router.pods.serving()),
            "draining": router.edge.departure.begun,
        }
        return web.json_response(parts, status=200 if router.ready else 503)

    async def _status(self, request: web.Request) -> web.Response:
        router = self._router
        in_force = router.in_force
        serving = {pod.name for pod in router.pods.serving()}
        return web.json_response(
            {
                "policy_generation": in_force.policy.generation if in_force else None,
                "policy_error": router.policy_error,
                "reads_policy": POLICY_VERSION,
                "in_hand": router.edge.in_hand,
                "pods": [
                    {
                        "name": pod.name,
                        "group": pod.group,
                        "serving": pod.name in serving,
                        "queued": pod.queued,
                        "in_hand": pod.in_hand,
                        "seats": pod.seats,
                        "requests": pod.requests,
                        "outstanding_tokens": pod.outstanding_tokens,
                    }
                    for pod in router.pods.pods
                ],
            }
        )

    async def _put_policy(self, request: web.Request) -> web.Response:
        return await put_policy(self._router, request)


class _Figures:
    """Counts of the router, as Prometheus reads them."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """All series, each from the start."""
        router, edge, pods = self._router, self._router.edge, self._router.pods
        ended = CounterMetricFamily(
            "tidegate_router_requests",
            "Requests by how the router's part in them ended; forwarded: answered by a pod.",
            labels=["outcome"],
        )
        for outcome in ("forwarded", *(o.value for o in Outcome if o is not Outcome.COMPLETED)):
            ended.add_metric([outcome], edge.ended[outcome])
        yield ended
        yield self._placed()
        yield CounterMetricFamily(
            "tidegate_router_retries",
            "Requests sent to a second pod because the first had no part in them.",
            value=edge.retries,
        )
        yield CounterMetricFamily(
            "tidegate_usage_records_dropped",
            "Usage records lost: the queue was full, or they could not be written.",
            value=0 if edge.usage is None else edge.usage.dropped_total,
        )
        yield CounterMetricFamily(
            "tidegate_router_handed_back",
            "Queued requests that a pod gave back because another one was free.",
            value=pods.handed_back,
        )
        states = GaugeMetricFamily("tidegate_router_pods", "Pods by state.", labels=["state"])
        serving = len(pods.serving())
        states.add_metric(["serving"], serving)
        states.add_metric(["resting"], len(pods.pods) - serving)
        yield states
        yield CounterMetricFamily(
            "tidegate_policy_reload_failures",
            "Policies that could not be applied.",
            value=router.policy_reload_failures,
        )
        generation = router.in_force.policy.generation if router.in_force else 0
        yield GaugeMetricFamily(
            "tidegate_policy_generation", "Of the policy in force.", value=generation
        )

    def _placed(self) -> Metric:
        """A series for each placement in each group of the policy and of the pods."""
        router = self._router
        placed = CounterMetricFamily(
            "tidegate_router_placed_requests",
            "Requests by the engine group that took them and what it is to them: home, spilled "
            "(home was busy), away (no pod of home served) or fallback (no other group served).",
            labels=["engine_group", "placement"],
        )
        policy = router.in_force.policy if router.in_force else None
        names = {pod.group for pod in router.pods.pods}
        names |= {group.name for group in policy.groups} if policy else set()
        for name in sorted(names | {group for group, _ in router.edge.placed}):
            for placement in Placement:
                if (placement is Placement.FALLBACK) is (name == FALLBACK_GROUP):
                    placed.add_metric([name, placement], router.edge.placed[name, placement])
        return placed
