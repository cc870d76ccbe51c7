"""Whether clients of a pool come by its router, and how it gets there and back. Pure.

Theory of operation. A router may be added to a pool that runs and be taken away again, and no
request is refused for it. Either way what is to serve next serves before what served goes:

* *There.* The engines' pods take signed requests and API keys alike. When a router's pod is ready
  and all engines' pods know the routers' keys, the pool's Service leads to the router, and says
  since when (an annotation). Only then the policy says that all comes by the router; a sidecar
  takes clients that come by old ways for a while longer and sends them the new one. Last, once
  every node must know the Service as it is now (:data:`SETTLE_SECONDS`), ways past the router are
  closed: the Services of engine groups go, and the network lets the router alone reach the tenants'
  port.
* *Back.* First the ways past the router are opened, and the policy takes clients without it; when
  all sidecars run that policy, the Service leads to the engines' pods, and the router goes.

A pool that is new has no client from before: its Service leads to the router from the first.

Whether clients speak TLS follows from the router's pods that are ready, not from the spec: where
the certificate is missing, those of before go on as they were. While none is ready, it stays as it
was.

Everything is read from live objects, so a restarted or a second operator goes on where one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.router import RouterSpec
from tidegate_operator.conditions import timestamp
from tidegate_operator.findings import Finding, joined
from tidegate_operator.names import (
    COMPONENT_LABEL,
    IDENTITY,
    ROUTED_SINCE_ANNOTATION,
    ROUTER,
    TLS,
)
from tidegate_operator.pool_state import PodState

Json = dict[str, Any]

SETTLE_SECONDS = 60.0
"""Until every node of a cluster knows where a Service leads."""
ROUTED_SINCE_VERSION = 2
"""The version of the policy that says whether there is a router."""
HTTPS = "https"
"""The scheme, and so the name of the pool's Service's port."""
_FROM_THE_FIRST = timestamp(0.0)
_SIDECARS = "the sidecars to know that clients come without it"


@dataclass(frozen=True, slots=True)
class Route:
    """How clients come to a pool."""

    wanted: bool = False
    """The spec names a router."""
    since: str | None = None
    """Since when the pool's Service leads to the router; unset: it does not."""
    settled: bool = False
    """Nobody comes past the router any more."""
    waits_for: str = ""
    """Why it is not as wanted yet."""
    tls: bool = False
    """The router speaks TLS with clients."""

    @property
    def leads(self) -> bool:
        """Whether the pool's Service leads to the router."""
        return self.since is not None

    @property
    def scheme(self) -> str:
        """Of the URLs by which clients call the pool's Service."""
        return HTTPS if self.leads and self.tls else "http"

    @property
    def has_router(self) -> bool:
        """Whether there is one, or may be: to serve, to begin with, or until that is known."""
        return self.wanted or self.leads or bool(self.waits_for)

    @property
    def waits_for_sidecars(self) -> bool:
        """Its removal goes on once all of them run the newest policy."""
        return self.waits_for == _SIDECARS


NO_ROUTE = Route()


def is_routed(wanted: bool, service: Json | None) -> bool:
    """Whether the policy is to say that all comes by the router; ``service`` is the pool's as it
    is, unset: there is none yet."""
    return wanted and (service is None or _since(service) is not None)


def plan_route(
    wanted: bool,
    service: Json | None,
    *,
    routers_ready: int,
    strangers: Sequence[str],
    older_sidecars: bool,
    unsigned_served: bool,
    now_seconds: float,
) -> Route:
    """The next step. ``strangers`` are ready pods of engines that do not know the routers' keys,
    with ``older_sidecars`` all of them for the version of their sidecar; ``unsigned_served``: all
    sidecars are known to run a policy under which they serve clients without a router."""
    since = _FROM_THE_FIRST if service is None else _since(service)
    if not wanted:
        if since is None or service is None or unsigned_served:
            return NO_ROUTE
        return Route(since=since, waits_for=_SIDECARS)
    if since is not None:
        age_seconds = now_seconds - datetime.fromisoformat(since).timestamp()
        return Route(True, since, settled=age_seconds >= SETTLE_SECONDS)
    if strangers:
        text = f"pods that know the router's keys; others are replaced: {joined(strangers)}"
        if older_sidecars:
            text = "sidecars that know of routers; set spec.sidecar.image to the operator's version"
        return Route(True, waits_for=text)
    if not routers_ready:
        return Route(True, waits_for="a pod of the router to be ready")
    return Route(True, timestamp(now_seconds))


def as_it_stays(route: Route, service: Json | None) -> Route:
    """The route where the API server refuses the change of the pool's Service that goes with it;
    ``service`` is the one there was."""
    since = None if service is None else _since(service)
    if since == route.since:
        return route
    waits_for = "the pool's Service, whose change is refused"
    return replace(route, since=since, settled=False, waits_for=waits_for)


def knows_routers(pod: Json) -> bool:
    """Whether a pod, or a template of pods, has the routers' keys."""
    return _has_volume(pod, IDENTITY)


def speaks_tls(wanted: bool, ready: Sequence[Json], service: Json | None) -> bool:
    """Whether the router speaks TLS with clients, by its ready pods; as the spec wants it where
    some are replaced already. While none is ready it is as the pool's Service says that leads to
    it, so that nobody is told otherwise for a moment."""
    found = {_has_volume(pod, TLS) for pod in ready}
    if len(found) == 1:
        return found.pop()
    if found or service is None or _since(service) is None:
        return wanted
    return any(port.get("name") == HTTPS for port in service["spec"].get("ports") or ())


def _has_volume(pod: Json, name: str) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any(volume["name"] == name for volume in volumes)


def with_router(
    findings: Sequence[Finding],
    route: Route,
    router: RouterSpec | None,
    pods: Sequence[PodState],
) -> list[Finding]:
    """A pool's conditions with what its router means for them; ``pods`` are the router's."""
    if not route.wanted and not route.leads:
        return list(findings)
    wanted_pods = 0 if router is None else router.pods
    living = [pod for pod in pods if not pod.terminating]
    ready = sum(pod.ready for pod in living)
    broken = [f"router pod {pod.name}: {pod.fault}" for pod in living if pod.fault]
    waits = [f"router pod {pod.name}: {pod.waiting}" for pod in living if pod.waiting]
    routed = _routed(route, f"{ready} of {wanted_pods} router pods serve", ready, broken, waits)
    made = [*findings, routed]
    if route.leads and not ready:
        return [_without_router(finding, routed, failing=bool(broken)) for finding in made]
    if route.wanted and (len(living), ready) != (wanted_pods, wanted_pods):
        return [_moving(finding, routed) for finding in made]
    return made


def _routed(
    route: Route, count: str, ready: int, broken: Sequence[str], waits: Sequence[str]
) -> Finding:
    kind, detail = ConditionType.ROUTED, [*broken, *waits]
    if not route.wanted:
        text = f"The router goes; that waits for {route.waits_for}"
        return Finding(kind, ConditionStatus.UNKNOWN, Reason.ROUTER_LEAVING, text)
    if not route.leads:
        status = ConditionStatus.FALSE if broken else ConditionStatus.UNKNOWN
        text = f"Clients come to the engines' pods themselves; that waits for {route.waits_for}"
        return Finding(kind, status, Reason.ROUTER_JOINING, joined([text, *detail]))
    if not ready:
        text = joined([count, *detail])
        return Finding(kind, ConditionStatus.FALSE, Reason.ROUTER_NOT_READY, text)
    return Finding(kind, ConditionStatus.TRUE, Reason.ROUTED, joined([count, *detail]))


def _without_router(finding: Finding, routed: Finding, *, failing: bool) -> Finding:
    """Whoever else is ready, nobody can call the pool."""
    false = ConditionStatus.FALSE
    if finding.type is ConditionType.AVAILABLE and finding.status is not false:
        return Finding(finding.type, false, routed.reason, routed.message)
    if finding.type is ConditionType.READY and finding.status is ConditionStatus.TRUE:
        status = false if failing else ConditionStatus.UNKNOWN
        return Finding(finding.type, status, routed.reason, routed.message)
    return finding


def _moving(finding: Finding, routed: Finding) -> Finding:
    if finding.type is ConditionType.PROGRESSING and finding.reason is Reason.PODS_READY:
        return Finding(finding.type, ConditionStatus.TRUE, Reason.SCALING, routed.message)
    return finding


def _since(service: Json) -> str | None:
    if (service["spec"].get("selector") or {}).get(COMPONENT_LABEL) != ROUTER:
        return None  # whatever a hand wrote beside it
    annotations = service["metadata"].get("annotations") or {}
    since = annotations.get(ROUTED_SINCE_ANNOTATION)
    try:
        return str(since) if since and datetime.fromisoformat(since).tzinfo else None
    except ValueError:  # a hand was at it
        return None
