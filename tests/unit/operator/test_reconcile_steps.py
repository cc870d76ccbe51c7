"""One reconcile after another without an API server: what is refused on the way breaks nothing."""

from __future__ import annotations

from typing import Any

from support.custom_resources import Json, pool
from support.object_server import Server, served
from tidegate_operator.api.conditions import Reason
from tidegate_operator.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    ROLE,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVING_POOL,
    STATEFUL_SET,
    TENANT_TIER,
    Kind,
)
from tidegate_operator.metrics import Metrics
from tidegate_operator.names import COMPONENT_LABEL, ROUTED_SINCE_ANNOTATION, ROUTER
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.reconciled import Heard, PoolState
from tidegate_operator.settings import Settings
from tidegate_operator.status import addresses
from tidegate_operator.world import World

KEY = ("acme", "chat")
OF_ROUTER = (SERVICE_ACCOUNT, ROLE, POD_DISRUPTION_BUDGET, NETWORK_POLICY, DEPLOYMENT)


async def reconciled(server: Server, heard: Heard | None = None, **spec: Any) -> PoolState:
    """The pool `chat` with this spec, as a reconcile of an operator just started leaves it."""
    server.put(SERVING_POOL, pool(**spec))
    world = World(server, ())  # type: ignore[arg-type]
    reconciler = Reconciler(server, world, Settings(), Metrics())  # type: ignore[arg-type]
    state = await reconciler.reconcile(KEY, heard or Heard())
    assert state is not None
    return state


def in_force(state: PoolState) -> Heard:
    """All sidecars run what was delivered last."""
    assert state.delivery is not None
    return Heard(in_force=state.delivery.generation)


def of_router(server: Server) -> set[Kind]:
    return {kind for kind in OF_ROUTER if (kind, "acme", "chat-router") in server.objects}


def service(server: Server) -> Json:
    return server.objects[SERVICE, "acme", "chat"]


def leads_to_router(server: Server) -> bool:
    return bool(service(server)["spec"]["selector"][COMPONENT_LABEL] == ROUTER)


def admin_peers(server: Server) -> str:
    """Who may ask the engines' pods at their admin port."""
    return str(server.objects[NETWORK_POLICY, "acme", "chat"]["spec"]["ingress"][-1])


async def leaving(server: Server) -> Heard:
    """A pool whose router may go: all sidecars know."""
    await reconciled(server, router={})
    assert leads_to_router(server)
    assert of_router(server) == set(OF_ROUTER)
    waiting = await reconciled(server)
    assert waiting.route.waits_for_sidecars
    return in_force(waiting)


async def test_a_router_goes_when_its_pool_does_without() -> None:
    server = served()
    told = await leaving(server)
    gone = await reconciled(server, told)
    assert not leads_to_router(server)
    assert of_router(server) == set()
    assert not gone.route.has_router


async def test_a_router_stays_while_the_service_that_leads_to_it_cannot_be_changed() -> None:
    """Such as for a loadBalancerClass that may not change: without the router nobody could call."""
    server = served()
    told = await leaving(server)
    server.refused.add(SERVICE)
    stuck = await reconciled(server, told)
    assert leads_to_router(server)
    assert of_router(server) == set(OF_ROUTER)
    assert ROUTER in admin_peers(server)
    assert stuck.route.leads
    assert "refused" in stuck.route.waits_for
    assert not stuck.route.waits_for_sidecars, "nothing that a sidecar says brings it on"
    server.refused.clear()
    await reconciled(server, in_force(stuck))
    assert of_router(server) == set()


async def test_a_router_goes_as_well_from_a_pool_that_lost_its_tiers() -> None:
    """What it served last is served on, so its sidecars must know that clients come without it."""
    server = served()
    await reconciled(server, router={})
    del server.objects[TENANT_TIER, "", "t0"]
    waiting = await reconciled(server)
    assert waiting.compiled is not None
    assert waiting.compiled.policy is not None
    assert not waiting.compiled.policy.routed
    assert leads_to_router(server)
    await reconciled(server, in_force(waiting))
    assert not leads_to_router(server)


async def test_a_router_stays_while_nobody_may_read_where_the_service_leads() -> None:
    server = served()
    told = await leaving(server)
    server.forbidden.add(SERVICE)
    await reconciled(server, told)
    assert of_router(server) == set(OF_ROUTER)
    assert ROUTER in admin_peers(server)


async def test_a_service_that_cannot_be_changed_leads_where_it_led() -> None:
    server = served()
    await reconciled(server)
    server.refused.add(SERVICE)
    joining = await reconciled(server, router={})
    assert not joining.route.leads
    assert addresses(joining) == ["http://chat.acme.svc:8000"]


async def test_a_hand_that_writes_beside_the_service_makes_no_router() -> None:
    """Its annotation alone would send clients to pods that do not exist."""
    server = served()
    since = {"annotations": {ROUTED_SINCE_ANNOTATION: "2026-01-01T00:00:00Z"}}
    await reconciled(server, service=since)
    again = await reconciled(server, service=since)
    assert not again.route.leads
    assert not leads_to_router(server)


async def test_nothing_is_left_of_a_router_whose_pods_were_refused() -> None:
    server = served()
    await reconciled(server)
    server.refuses_pods = "no PriorityClass of that name"
    await reconciled(server, router={})
    assert DEPLOYMENT not in of_router(server)
    assert of_router(server)
    await reconciled(server)
    assert of_router(server) == set()


async def test_keys_of_routers_that_were_taken_away_come_back() -> None:
    """With new ones, whoever reads them first would refuse what the others sign."""
    server = served()
    name = (SECRET, "acme", "chat-identity")
    first = await reconciled(server, router={})
    keys = server.objects[name]["data"]
    heard = Heard(identity_keys=first.identity_keys)
    del server.objects[name]
    again = await reconciled(server, heard, router={})
    assert server.objects[name]["data"] == keys
    assert again.identity_keys == first.identity_keys
    server.objects[name]["data"] = {"keys": ""}
    await reconciled(server, heard, router={})
    assert server.objects[name]["data"] == keys
    del server.objects[name]
    await reconciled(server, router={})
    assert server.objects[name]["data"] != keys, "an operator that has seen none draws them anew"


async def test_nothing_is_left_of_a_group_whose_pods_were_refused() -> None:
    server = served()
    await reconciled(server)
    server.refuses_pods = "no PriorityClass of that name"
    await reconciled(server, engineGroups=[{"name": "code"}])
    await reconciled(server)
    left = {(kind.name, name) for kind, _, name in server.objects if name == "chat-code"}
    assert left == set()


async def test_engines_come_whoever_may_not_read_deployments() -> None:
    """As with the rights of an operator of before."""
    server = served()
    server.forbidden.add(DEPLOYMENT)
    assert not (await reconciled(server)).faults
    assert (STATEFUL_SET, *KEY) in server.objects
    del server.objects[STATEFUL_SET, "acme", "chat"]
    state = await reconciled(server, router={})
    assert (STATEFUL_SET, *KEY) in server.objects
    (fault,) = state.faults
    assert fault.reason is Reason.APPLY_FAILED
    assert "Deployment chat-router was refused" in fault.message
