"""The controller without an API server: what is revoked acts soon, whatever fails beside it."""

from __future__ import annotations

import asyncio
import base64
import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.custom_resources import Json, digest, pool, tenant, tier
from support.object_server import Server, served
from tidegate_operator import shards
from tidegate_operator.controller import JUDGING, Controller
from tidegate_operator.kinds import (
    NAMESPACE,
    NETWORK_POLICY,
    PROMETHEUS_RULE,
    SECRET,
    SERVICE,
    SERVING_POOL,
    STATEFUL_SET,
    TENANT,
    TENANT_TIER,
)
from tidegate_operator.metrics import Metrics
from tidegate_operator.settings import Settings


def decoded_keys(server: Server) -> str:
    return base64.b64decode(server.keys()).decode()


def controller(server: Server, **settings: Any) -> Controller:
    return Controller(server, Settings(**settings), Metrics())  # type: ignore[arg-type]


async def within(seconds: float, check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)
    return found


def revoke(server: Server, running: Controller) -> None:
    """A user's apply, and the watch event of it."""
    revoked = tenant("a", apiKeys=[])
    revoked["metadata"]["generation"] = 2
    server.put(TENANT, revoked)
    running.on_event(TENANT, "MODIFIED", copy.deepcopy(revoked))


async def test_a_refused_child_does_not_put_off_a_revocation() -> None:
    """A pool in back-off, as its Service is refused again and again."""
    server = served()
    server.refused.add(SERVICE)
    running = controller(server)
    # As after many failures: the next try of this pool is a minute away.
    running._queue._failures["acme", "chat"] = 20
    async with running:
        await within(10, server.keys, "the policy is written, whatever else is refused")
        await within(10, lambda: running._queue._timers, "the pool backs off")
        before = server.keys()
        revoke(server, running)
        await within(5, lambda: server.keys() != before, "the revoked key is gone")


async def test_after_an_outage_nothing_waits_out_its_back_off() -> None:
    server = served()
    running = controller(server)
    async with running:
        await within(10, server.keys, "the policy is written")
        before = server.keys()
        server.away = True
        running._queue._failures[JUDGING] = 20
        running._queue._failures["acme", "chat"] = 20
        running.resync()
        running._queue.put(("acme", "chat"))
        await within(10, lambda: len(running._queue._timers) == 2, "both back off")
        server.away = False
        revoke(server, running)
        await within(5, lambda: server.keys() != before, "the revoked key is gone")


async def test_a_status_is_about_the_generation_that_was_judged() -> None:
    """A LIST has shown a newer spec; until that is judged, nothing may be said of it."""
    server = served()
    running = controller(server)
    async with running:
        await within(10, lambda: "status" in server.objects[TENANT, "acme", "a"], "the status")
        newer = tenant("a", tierRef={"name": "nowhere"})
        newer["metadata"]["generation"] = 2
        state = running._statuses.state(TENANT, ("acme", "a"), newer)
        assert state is not None
        assert state["observedGeneration"] == 1
        assert {c["observedGeneration"] for c in state["conditions"]} == {1}


async def test_a_status_that_another_wrote_over_is_put_right_at_the_next_resync() -> None:
    """Such as a former leader that woke up with what it had in hand."""
    server = served()
    running = controller(server, scrape_seconds=1000.0)
    keys = ((TENANT, "acme", "a"), (TENANT_TIER, "", "t0"), (SERVING_POOL, "acme", "chat"))
    async with running:

        def told() -> bool:
            return all((server.objects[key].get("status") or {}).get("conditions") for key in keys)

        await within(10, told, "the first statuses")
        await asyncio.sleep(0.5)
        before = {key: copy.deepcopy(server.objects[key]["status"]) for key in keys}
        for key in keys:
            server.objects[key]["status"] = {"observedGeneration": 0}
        running.resync()
        await within(
            10,
            lambda: all(
                server.objects[key]["status"].get("observedGeneration") == 1 for key in keys
            ),
            "every status is right again",
        )
        assert {key: set(server.objects[key]["status"]) for key in keys} == {
            key: set(status) for key, status in before.items()
        }


async def test_a_tenant_is_told_at_once_where_its_tier_moved() -> None:
    """The address of before may be gone long before its status is next written for its figures."""
    server = served()

    def homes(generation: int, **tiers: list[str]) -> Json:
        groups = [{"name": name, "tiers": tiers.get(name, [])} for name in ("one", "two")]
        made = pool(replicas=2, engineGroups=groups)
        made["metadata"]["generation"] = generation
        return made

    def called() -> Any:
        return (server.objects[TENANT, "acme", "a"].get("status") or {}).get("addresses")

    server.put(SERVING_POOL, homes(1, one=["t0"]))
    async with controller(server, scrape_seconds=1000.0) as running:
        await within(10, lambda: called() == ["http://chat-one.acme.svc:8000"], "its home")
        moved = homes(2, two=["t0"])
        server.put(SERVING_POOL, moved)
        running.on_event(SERVING_POOL, "MODIFIED", copy.deepcopy(moved))
        await within(10, lambda: called() == ["http://chat-two.acme.svc:8000"], "its new home")
        odd = pool(schedulingMode="FromTheFuture")
        odd["metadata"]["generation"] = 3
        server.put(SERVING_POOL, odd)
        running.on_event(SERVING_POOL, "MODIFIED", odd)
        state = running._pools["acme", "chat"]
        await within(10, lambda: state.state and state.state.pool is None, "it cannot be read")
        assert state.address_of("acme/a") == "http://chat-two.acme.svc:8000", "nothing moved"


async def test_a_label_of_a_namespace_says_which_tiers_a_pool_has() -> None:
    """Of a pool that lists none: with the last tier that may be claimed there goes whoever did."""
    server = served()
    server.put(TENANT_TIER, tier("t0", allowedNamespaces={"matchLabels": {"plan": "paid"}}))
    async with controller(server) as running:

        def accepted() -> Any:
            status = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            found = [c for c in status.get("conditions", ()) if c["type"] == "Accepted"]
            return found and found[0]["reason"]

        def label(version: int, **labels: str) -> None:
            metadata = {"name": "acme", "uid": "n", "resourceVersion": str(version)}
            server.put(NAMESPACE, {"metadata": metadata | {"labels": labels}})
            running.on_event(NAMESPACE, "MODIFIED", {"metadata": metadata | {"labels": labels}})

        await within(10, lambda: accepted() == "NoTiers", "nobody may claim it")
        assert not server.keys()
        label(2, plan="paid")
        await within(10, lambda: accepted() == "Accepted", "the label came")
        assert digest("demo-acme-a") in decoded_keys(server)
        label(3)
        await within(10, lambda: accepted() == "NoTiers", "the label went")
        assert digest("demo-acme-a") not in decoded_keys(server)


async def test_a_pool_that_cannot_be_read_serves_no_revoked_key() -> None:
    """As after going back to an operator that does not know a field's value."""
    server = served()
    server.put(TENANT, tenant("b"))
    running = controller(server)
    async with running:
        await within(10, server.keys, "the policy is written")
        odd = pool(schedulingMode="FromTheFuture")
        odd["metadata"]["generation"] = 2
        server.put(SERVING_POOL, odd)
        running.on_event(SERVING_POOL, "MODIFIED", odd)

        def told() -> Any:
            conditions = (server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}).get(
                "conditions", ()
            )
            return [c for c in conditions if c["reason"] == "Invalid"]

        await within(10, told, "the pool says what is wrong")
        before = server.keys()
        revoke(server, running)
        await within(5, lambda: server.keys() != before, "the revoked key is gone")
        assert digest("demo-acme-a") not in decoded_keys(server)
        assert digest("demo-acme-b") in decoded_keys(server)
        assert running._statuses.state(TENANT, ("acme", "b"), tenant("b"))["pools"] == ["acme/chat"]  # type: ignore[index]


async def test_a_pool_of_too_many_tenants_serves_no_revoked_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = served()
    server.put(TENANT, tenant("b"))
    running = controller(server)
    async with running:
        await within(10, server.keys, "the policy is written")
        monkeypatch.setattr(shards, "SHARDS", 1)
        monkeypatch.setattr(shards, "SHARD_BYTES", 2_000)
        for number in range(30):
            server.put(TENANT, tenant(f"more-{number}"))
        before = server.keys()
        revoke(server, running)
        await within(5, lambda: server.keys() != before, "the revoked key is gone")
        assert digest("demo-acme-a") not in decoded_keys(server)
        assert digest("demo-acme-b") in decoded_keys(server)

        def refused() -> Any:
            status = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            found = [c for c in status.get("conditions", ()) if c["type"] == "Accepted"]
            return [c for c in found if c["status"] == "False"]

        (found,) = await within(10, refused, "the pool says so")
        assert "spread them over more pools" in found["message"]


async def test_a_right_that_is_missing_is_said_by_the_pool_and_stops_nothing_else() -> None:
    server = served()
    server.forbidden.add(SERVICE)
    async with controller(server):

        def said() -> Any:
            status = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            found = [c for c in status.get("conditions", ()) if c["reason"] == "ApplyFailed"]
            return found and found[0]["message"]

        assert "Service chat was refused: get services: 403" in await within(10, said, "it says so")
        assert (STATEFUL_SET, "acme", "chat") in server.objects


async def test_a_quota_of_secrets_does_not_put_off_a_revocation() -> None:
    """An upgrade brings a Secret more; where the namespace may have none, the pool goes on."""
    server = served()
    async with controller(server) as running:
        await within(10, server.keys, "the policy is written")
        del server.objects[SECRET, "acme", "chat-cache-salt"]
        server.creates_secrets = False
        before = server.keys()
        revoke(server, running)
        await within(5, lambda: server.keys() != before, "the revoked key is gone")

        def said() -> Any:
            status = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            return [c for c in status.get("conditions", ()) if c["reason"] == "ApplyFailed"]

        (found,) = await within(10, said, "the pool says so")
        assert "Secret chat-cache-salt was refused: exceeded quota" in found["message"]


async def test_groups_whose_pods_the_cluster_refuses_take_nothing_over() -> None:
    server = served()
    async with controller(server) as running:
        engines = STATEFUL_SET, "acme", "chat"
        await within(10, lambda: engines in server.objects, "the engines")
        server.refuses_pods = "no PriorityClass of that name"
        grouped = pool(engineGroups=[{"name": "code", "tiers": ["t0"]}])
        grouped["metadata"]["generation"] = 2
        server.put(SERVING_POOL, grouped)
        running.on_event(SERVING_POOL, "MODIFIED", grouped)

        def said() -> Any:
            conditions = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            return [c for c in conditions.get("conditions", ()) if c["reason"] == "PodRefused"]

        await within(10, said, "the pool says so")
        assert server.objects[engines]["spec"]["replicas"] == 1
        assert "StatefulSet" not in server.deleted


async def test_no_pod_waits_for_the_monitoring() -> None:
    """Such as a webhook of the Prometheus operator that does not answer."""
    server = served()
    server.optional.add(PROMETHEUS_RULE)
    server.failing.add(PROMETHEUS_RULE)
    async with controller(server):

        def said() -> Any:
            status = server.objects[SERVING_POOL, "acme", "chat"].get("status") or {}
            return [c for c in status.get("conditions", ()) if c["reason"] == "ApplyFailed"]

        (found,) = await within(10, said, "the pool says so")
        assert "PrometheusRule chat was refused" in found["message"]
        assert (STATEFUL_SET, "acme", "chat") in server.objects


async def test_sidecars_are_told_before_what_may_fail_beside() -> None:
    server = served()
    async with controller(server) as running:
        await within(10, lambda: ("acme", "chat") in running._pools, "the pool is looked at")
        link = running._pools["acme", "chat"].link
        before = await within(10, lambda: link.delivery, "the first policy")
        server.failing.add(SERVICE)
        revoke(server, running)
        told = await within(5, lambda: link.delivery != before and link.delivery, "the next")
        assert digest("demo-acme-a") not in told.bundle.decode()


async def test_all_sidecars_are_told_before_any_pools_children_are_looked_at() -> None:
    """What takes time is the API server: a tier concerns every pool, and each has many children."""
    server = served()
    pools = ["chat", "code", "docs"]
    for name in pools[1:]:
        server.put(SERVING_POOL, pool(name))
    async with controller(server, workers=1, resync_seconds=1000.0) as running:
        await within(10, lambda: len(running._pools) == len(pools), "all are looked at")
        await within(10, lambda: not running._queue._running and not len(running._queue), "quiet")
        links = [running._pools["acme", name].link for name in pools]
        before = [link.delivery for link in links]
        untold: list[int] = []
        get = server.get

        async def looked(kind: Any, name: str, namespace: str = "") -> Any:
            assert kind is not SECRET, "one LIST shows those of a pool"
            if kind is NETWORK_POLICY:
                now = [link.delivery for link in links]
                untold.append(sum(told == was for told, was in zip(now, before, strict=True)))
            return await get(kind, name, namespace)

        server.get = looked  # type: ignore[method-assign]
        changed = tier("t0", priority=7)
        changed["metadata"]["generation"] = 2
        server.put(TENANT_TIER, changed)
        running.on_event(TENANT_TIER, "MODIFIED", copy.deepcopy(changed))
        await within(10, lambda: len(untold) >= len(pools), "all are looked at again")
        assert untold == [0] * len(pools)
