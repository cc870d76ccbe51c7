"""A router before a pool that serves, and away again: one step after another, by what there is."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.router import RouterSpec
from tidegate_operator.conditions import timestamp
from tidegate_operator.findings import Finding
from tidegate_operator.names import COMPONENT_LABEL, ROUTED_SINCE_ANNOTATION
from tidegate_operator.pool_state import PodState
from tidegate_operator.routing import (
    NO_ROUTE,
    SETTLE_SECONDS,
    Route,
    is_routed,
    knows_routers,
    plan_route,
    speaks_tls,
    with_router,
)

NOW = 1_000_000.0
SINCE = timestamp(NOW)


def service(since: str | None = None, scheme: str = "http") -> dict[str, Any]:
    annotations = {} if since is None else {"annotations": {ROUTED_SINCE_ANNOTATION: since}}
    component = "engine" if since is None else "router"
    spec = {"selector": {COMPONENT_LABEL: component}, "ports": [{"name": scheme, "port": 8000}]}
    return {"metadata": {"name": "chat"} | annotations, "spec": spec}


def plan(wanted: bool, live: dict[str, Any] | None, **seen: Any) -> Route:
    given = {"routers_ready": 0, "strangers": (), "older_sidecars": False}
    given |= {"unsigned_served": False, "now_seconds": NOW}
    return plan_route(wanted, live, **(given | seen))


def test_there_step_by_step() -> None:
    joining = plan(True, service())
    assert not joining.leads
    assert "ready" in joining.waits_for
    assert not is_routed(True, service())
    # A pod that does not know the routers' keys would refuse what they signed.
    waiting = plan(True, service(), routers_ready=1, strangers=["chat-0"])
    assert not waiting.leads
    assert "chat-0" in waiting.waits_for
    # Those of an older sidecar are not replaced by themselves.
    older = plan(True, service(), routers_ready=1, strangers=["chat-0"], older_sidecars=True)
    assert not older.leads
    assert "spec.sidecar.image" in older.waits_for
    led = plan(True, service(), routers_ready=1)
    assert led == Route(True, SINCE)
    # Only what the Service says already becomes the policy's.
    assert is_routed(True, service(SINCE))
    soon = plan(True, service(SINCE), now_seconds=NOW + SETTLE_SECONDS - 1)
    assert (soon.since, soon.settled) == (SINCE, False)
    settled = plan(True, service(SINCE), now_seconds=NOW + SETTLE_SECONDS)
    assert settled == Route(True, SINCE, settled=True)


def test_without_a_router_that_is_ready_a_pool_that_is_routed_stays_so() -> None:
    """Its sidecars ask for signatures."""
    assert plan(True, service(SINCE), strangers=["chat-0"]).leads


def test_back_step_by_step() -> None:
    assert not is_routed(False, service(SINCE))
    leaving = plan(False, service(SINCE))
    assert (leaving.since, leaving.wanted, leaving.has_router) == (SINCE, False, True)
    assert not leaving.settled  # ways past the router are open again
    assert plan(False, service(SINCE), unsigned_served=True) == NO_ROUTE
    assert plan(False, service()) == NO_ROUTE


def test_a_new_pool_has_no_client_of_before() -> None:
    assert is_routed(True, None)
    first = plan(True, None)
    assert first.leads
    again = plan(True, service(first.since))
    assert again == Route(True, first.since, settled=True)
    assert plan(False, None) == NO_ROUTE
    assert not is_routed(False, None)


@pytest.mark.parametrize("written", ["", "soon", "2026-01-01T00:00:00"])
def test_a_time_that_cannot_be_read_begins_anew(written: str) -> None:
    assert plan(True, service(written), routers_ready=1).since == SINCE


def test_a_pod_knows_routers_by_its_volumes() -> None:
    assert knows_routers({"spec": {"volumes": [{"name": "policy"}, {"name": "identity"}]}})
    assert not knows_routers({"spec": {"volumes": [{"name": "policy"}]}})
    assert not knows_routers({"spec": {}})


def test_clients_speak_as_the_routers_do_that_are_ready() -> None:
    old, new = ({"spec": {"volumes": [{"name": name}]}} for name in ("policy", "tls"))
    for wanted in (True, False):
        for live in (None, service(), service(SINCE, "http"), service(SINCE, "https")):
            assert [speaks_tls(wanted, pods, live) for pods in ([old, old], [new])] == [False, True]
            assert speaks_tls(wanted, [old, new], live) is wanted


def test_while_no_router_is_ready_clients_go_on_as_they_were_told() -> None:
    for wanted in (True, False):
        assert speaks_tls(wanted, [], service(SINCE, "https"))
        assert not speaks_tls(wanted, [], service(SINCE, "http"))
        # Nobody came by the router before.
        assert speaks_tls(wanted, [], None) is speaks_tls(wanted, [], service()) is wanted


TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
ENGINES = [
    Finding(ConditionType.PROGRESSING, FALSE, Reason.PODS_READY, "as wanted"),
    Finding(ConditionType.AVAILABLE, TRUE, Reason.PODS_READY, "2 of 2 pods serve"),
    Finding(ConditionType.READY, TRUE, Reason.READY, "2 of 2 pods serve"),
]
LED = Route(True, SINCE, settled=True)


def router_pod(number: int, *, ready: bool = True, fault: str | None = None) -> PodState:
    return PodState(f"u{number}", f"chat-router-{number}", "10.0.0.9", ready, False, fault=fault)


def judged(route: Route, *pods: PodState) -> dict[str, tuple[ConditionStatus, str]]:
    router = RouterSpec(replicas=2) if route.wanted else None
    return {f.type: (f.status, f.reason) for f in with_router(ENGINES, route, router, pods)}


def test_conditions_of_a_pool_whose_router_serves() -> None:
    assert judged(LED, router_pod(0), router_pod(1)) == {
        "Progressing": (FALSE, "PodsReady"),
        "Available": (TRUE, "PodsReady"),
        "Ready": (TRUE, "Ready"),
        "Routed": (TRUE, "Routed"),
    }
    one = judged(LED, router_pod(0), router_pod(1, ready=False))
    assert one["Ready"] == (TRUE, "Ready")
    assert one["Progressing"] == (TRUE, "Scaling")


def test_nobody_can_call_a_pool_whose_router_is_away() -> None:
    found = judged(LED, router_pod(0, ready=False))
    assert found["Available"] == (FALSE, "RouterNotReady")
    assert found["Ready"] == (UNKNOWN, "RouterNotReady")
    assert found["Routed"] == (FALSE, "RouterNotReady")
    broken = judged(LED, router_pod(0, ready=False, fault="it crashes"))
    assert broken["Ready"] == (FALSE, "RouterNotReady")  # a person must mend it


def test_meanwhile_the_pool_serves() -> None:
    joining = judged(Route(True, waits_for="a pod of the router to be ready"))
    assert joining["Ready"] == (TRUE, "Ready")
    assert joining["Routed"] == (UNKNOWN, "RouterJoining")
    failing = judged(Route(True, waits_for="x"), router_pod(0, ready=False, fault="it crashes"))
    assert (failing["Ready"], failing["Routed"]) == ((TRUE, "Ready"), (FALSE, "RouterJoining"))
    leaving = judged(Route(since=SINCE, waits_for="x"), router_pod(0))
    assert (leaving["Ready"], leaving["Routed"]) == ((TRUE, "Ready"), (UNKNOWN, "RouterLeaving"))
    assert "Routed" not in judged(NO_ROUTE)
