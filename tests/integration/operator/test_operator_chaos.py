"""An API server that fails in every way that one does, between an operator and the real one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.custom_resources import pool, tenant, tier
from support.faulty_api_server import (
    EXPIRED,
    Call,
    Fault,
    FaultyApiServer,
    Holding,
    answering,
    losing_answers,
    silent_watches,
    watches_that_say,
)
from support.operator_cluster import QUICK, OperatorCluster, eventually
from tidegate_operator.kube import Kube, load_configuration
from tidegate_operator.metrics import Metrics
from tidegate_operator.process import Process
from tidegate_operator.settings import Settings

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def broken_watches_are_collected() -> Iterator[None]:
    """kopf leaves the connection of a watch that breaks within a line to the collector: here, so
    that no later test is blamed for it."""
    yield
    gc.collect()


RESYNC_SECONDS = 2.0


def writes(call: Call) -> bool:
    return call.is_write and not call.is_lease


def watches(call: Call) -> bool:
    return call.is_watch


def all_but_watches(call: Call) -> bool:
    return not call.is_watch and not call.is_lease


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and how many calls must have met it before it ends."""

    name: str
    fault: Callable[[], Fault]
    hits: int = 2
    blocks: bool = False
    """Nothing can be written while it lasts."""


FAULTS = (
    Case(
        "409 on writes",
        lambda: answering(writes, 409, "Conflict", "the object has been modified"),
        blocks=True,
    ),
    Case(
        "422 on writes",
        lambda: answering(writes, 422, "Invalid", "denied by a policy of the cluster"),
        blocks=True,
    ),
    Case(
        "429 with Retry-After",
        lambda: answering(all_but_watches, 429, "TooManyRequests", "slow down", Retry_After="1"),
        blocks=True,
    ),
    Case(
        "503 on everything",
        lambda: answering(all_but_watches, 503, "ServiceUnavailable", "etcd has no leader"),
        blocks=True,
    ),
    Case("answers to writes that are lost", lambda: losing_answers(writes)),
    Case("410 on watches", lambda: answering(watches, 410, "Expired", "too old")),
    Case("410 within watches", lambda: watches_that_say(EXPIRED)),
    Case("watches that end in the middle of a line", lambda: watches_that_say(b'{"type": "ADD')),
    Case("429 on watches", lambda: answering(watches, 429, "TooManyRequests", "slow down")),
    Case("silent watches", silent_watches),
)


async def test_under_every_fault_it_writes_nothing_wrong_and_goes_on_when_that_ends(
    cluster: OperatorCluster, namespace: str, tmp_path: Path
) -> None:
    await cluster.apply(
        tier("chaos0"),
        tenant("a", "chaos0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "chaos0"}]),
    )
    allowed = {
        f"PATCH {namespace}/secrets/chat-policy-0",
        f"PATCH {namespace}/servingpools/chat/status",
        f"PATCH {namespace}/tenants/a/status",
        "PATCH tenanttiers/chaos0/status",
    }
    async with FaultyApiServer(cluster.kubeconfig_of_operator()) as server:
        kubeconfig = server.kubeconfig(tmp_path / "faulty.kubeconfig")
        async with (
            cluster.pods(namespace) as pods,
            cluster.operator(kubeconfig, resync_seconds=RESYNC_SECONDS),
        ):
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            await cluster.condition_becomes("Tenant", "a", namespace, "Ready", "True")
            await cluster.quiet(RESYNC_SECONDS)
            (sidecar,) = pods.sidecars.values()

            def priority() -> int:
                assert sidecar.bundle is not None
                return int(sidecar.bundle.policy.tiers[0].priority)

            for number, case in enumerate(FAULTS, 1):
                server.inject(case.fault())
                server.break_watches()
                await cluster.apply(tier("chaos0", priority=number))
                await eventually(lambda: server.hits >= case.hits, f"{case.name} was met")  # noqa: B023
                if case.blocks:
                    assert server.writes == []
                    assert priority() == number - 1, "what is not stored is not served"
                else:
                    await eventually(lambda: priority() == number, f"the edit under {case.name}")  # noqa: B023
                server.inject(None)
                server.break_watches()
                await eventually(lambda: priority() == number, f"the edit after {case.name}")  # noqa: B023
                await cluster.condition_becomes(
                    "ServingPool", "chat", namespace, "PolicyApplied", "True"
                )
                assert set(server.writes) <= allowed, case.name
            await cluster.quiet(RESYNC_SECONDS)
            for kind, name, condition in (
                ("ServingPool", "chat", "Ready"),
                ("Tenant", "a", "Ready"),
            ):
                found = await cluster.condition(kind, name, namespace, condition)
                assert found is not None
                assert found[0] == "True", found
            assert len(pods.sidecars) == 1, "no pod was replaced"
            assert sidecar.generations == sorted(set(sidecar.generations))


LEASE = {
    "leader_election": True,
    "lease_duration_seconds": 10.0,
    "lease_renew_deadline_seconds": 7.0,
    "lease_retry_seconds": 1.0,
    "resync_seconds": RESYNC_SECONDS,
}


async def test_a_leader_cut_off_with_writes_on_their_way_harms_nobody(
    cluster: OperatorCluster, namespace: str, tmp_path: Path
) -> None:
    """Two leaders for a moment: what the first sent arrives when the second has gone on."""
    await cluster.apply(
        tier("cut0"),
        tenant("a", "cut0", namespace=namespace),
        pool(namespace=namespace, tiers=[{"name": "cut0"}]),
    )

    async def lease() -> Any:
        return (await cluster.get("Lease", "tidegate-operator", "tidegate-system") or {})["spec"]

    async with (
        FaultyApiServer(cluster.kubeconfig_of_operator()) as server,
        cluster.pods(namespace) as pods,
    ):
        configuration = await load_configuration(
            str(server.kubeconfig(tmp_path / "faulty.kubeconfig"))
        )
        settings = Settings(**(QUICK | LEASE | {"identity": "first"}))
        async with Kube(configuration) as kube:
            first = asyncio.create_task(
                Process(settings, configuration, Metrics()).run(kube, asyncio.Event())
            )
            await cluster.condition_becomes("Tenant", "a", namespace, "Ready", "True")
            await cluster.condition_becomes("ServingPool", "chat", namespace, "Ready", "True")
            (sidecar,) = pods.sidecars.values()
            # A conflict over the Lease, and a server that cannot say: neither is the end of it.
            for code, reason in ((409, "Conflict"), (500, "InternalError")):
                server.inject(answering(lambda call: call.is_lease, code, reason, "no"))
                await eventually(lambda: server.hits, f"{code} for the Lease", 10)
                server.inject(None)
            await cluster.quiet(RESYNC_SECONDS)
            assert not first.done()
            assert (await lease())["holderIdentity"].startswith("first_")
            held = Holding(lambda call: call.is_write or call.is_lease)
            server.inject(held.fault)
            await cluster.apply(tier("cut0", priority=1))
            await eventually(lambda: len(held.late) > 1, "a write is on its way")
            async with cluster.operator(**LEASE, identity="second") as second:
                assert await asyncio.wait_for(first, 35) == 1, "it ended by itself"
                await eventually(lambda: second.controller, "the second leads")
                await cluster.apply(tier("cut0", priority=2))
                await eventually(
                    lambda: [t.priority for t in sidecar.bundle.policy.tiers] == [2], "the edit"
                )
                await cluster.quiet(RESYNC_SECONDS)
                server.writes.clear()
                answers = await held.release()
                assert 409 in answers, "the old policy and the old Lease are too late"
                assert f"PATCH {namespace}/secrets/chat-policy-0" not in server.writes
                await cluster.quiet(RESYNC_SECONDS + 1)
                assert (await lease())["holderIdentity"].startswith("second_")
                await cluster.condition_becomes(
                    "ServingPool", "chat", namespace, "PolicyApplied", "True"
                )
                changed = await cluster.get("TenantTier", "cut0")
                assert changed is not None
                generation = changed["metadata"]["generation"]
                assert changed["status"]["observedGeneration"] == generation
                assert [t.priority for t in sidecar.bundle.policy.tiers] == [2]
                assert sidecar.generations == sorted(set(sidecar.generations))
