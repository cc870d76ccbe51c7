"""Each reason that a condition may give, provoked, and what it says to who is on call.

From the objects through judging, compiling, reconciling and status, with objects in memory in the
place of an API server. A condition type or a reason that no scene shows fails here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.custom_resources import key_secret, pool, tenant, tier
from support.object_server import Server, served
from tidegate_operator import api
from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.conditions import ConditionType, Reason, pending_conditions
from tidegate_operator.autoscale.decision import Decision
from tidegate_operator.autoscale.pool_scaler import PoolScaler
from tidegate_operator.compile import compile_pool
from tidegate_operator.conditions import merge_conditions
from tidegate_operator.engine_groups import engine_groups, too_few
from tidegate_operator.findings import with_faults
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.kinds import SERVICE, SERVING_POOL
from tidegate_operator.metrics import Metrics
from tidegate_operator.names import COMPONENT_LABEL, ROUTED_SINCE_ANNOTATION, ROUTER
from tidegate_operator.pool_state import PodState
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.reconciled import Heard, PoolState
from tidegate_operator.routing import NO_ROUTE, Route, plan_route
from tidegate_operator.settings import Settings
from tidegate_operator.shards import Previous
from tidegate_operator.slo.promises import Promise, slo_finding
from tidegate_operator.status import (
    Delivered,
    pool_state_status,
    tenant_state_status,
    tier_state_status,
)
from tidegate_operator.world import World

from tidegate.scheduling.contracts import FALLBACK_GROUP, SloMetric, SloObjective

Json = dict[str, Any]
NOW = 1_800_000_000.0
IMAGE = "sidecar:1"
KEY_REF = [{"name": "main", "secretRef": {"name": "keys", "key": "k"}}]
LONG_KEY = "k" * 43
SETTLED = {
    "metadata": {"generation": 1},
    "status": {"observedGeneration": 1, "currentRevision": "r", "updateRevision": "r"},
}
ROLLING: Json = {"metadata": {"generation": 2}, "status": {}}
READY_POD = PodState("u", "chat-0", "10.0.0.1", ready=True, terminating=False)
FAULTY_POD = PodState(
    "u", "chat-0", None, ready=False, terminating=False, fault="container engine is in OOM"
)
APPLIED = Delivered(ready=1)
SPARE_POD = replace(READY_POD, name="chat-fallback-0", group=FALLBACK_GROUP)
ROUTER_POD = replace(READY_POD, name="chat-router-0")
SINCE = "2026-01-01T00:00:00Z"
TO_ROUTER: Json = {
    "metadata": {"annotations": {ROUTED_SINCE_ANNOTATION: SINCE}},
    "spec": {"selector": {COMPONENT_LABEL: ROUTER}},
}


def judged(tiers: Sequence[Json], tenants: Sequence[Json], *secrets: Json) -> Judgement:
    data = {(s["metadata"]["namespace"], s["metadata"]["name"]): s["data"] for s in secrets}
    return judge(tiers, tenants, {"acme": {}}, data)


FINE = judged([tier("t0")], [tenant("a")])


def of_tenant(judgement: Judgement, *pools: str) -> list[Json]:
    made = tenant_state_status({}, judgement.tenants["acme/a"], pools, NOW)
    return list(made["conditions"])


def of_tier(spec: Json) -> list[Json]:
    judgement = judged([spec], [])
    verdict = judgement.tiers[spec["metadata"]["name"]]
    return list(tier_state_status({}, verdict, [], 0, NOW)["conditions"])


def of_pool(
    obj: Json,
    judgement: Judgement = FINE,
    *,
    pods: Sequence[PodState] = (READY_POD,),
    delivered: Delivered = APPLIED,
    stateful_set: Json = SETTLED,
    operator_image: str = IMAGE,
    route: Route = NO_ROUTE,
    routers: Sequence[PodState] = (),
    scaler: PoolScaler | None = None,
) -> list[Json]:
    """The conditions of a pool that reconciling has gone through, with these pods."""
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    compiled = compile_pool(read, judgement, Previous(), may_share=False, now_seconds=NOW)
    groups = tuple(engine_groups(read))
    faults = (*compiled.faults, *([fault] if (fault := too_few(read)) else []))
    state = PoolState(
        ("acme", "chat"),
        1,
        read,
        compiled,
        groups,
        {group.name: stateful_set for group in groups},
        route=route,
        delivery=Delivery(1, b"", "t"),
        sidecar_image=IMAGE,
        faults=faults,
        findings=with_faults(compiled.findings, faults),
    )
    made = pool_state_status(
        {}, state, pods, delivered, operator_image, NOW, scaler, routers=routers
    )
    return list(made["conditions"])


def of_reconciled(server: Server, *specs: Json) -> list[Json]:
    """The conditions of a pool that had these specs one after the other."""

    async def reconciled() -> PoolState:
        world = World(server, ())  # type: ignore[arg-type]
        reconciler = Reconciler(server, world, Settings(), Metrics())  # type: ignore[arg-type]
        for spec in specs:
            server.put(SERVING_POOL, spec)
            world.mark_all()
            state = await reconciler.reconcile(("acme", "chat"), Heard())
        assert state is not None
        return state

    state = asyncio.run(reconciled())
    return list(pool_state_status({}, state, [READY_POD], APPLIED, IMAGE, NOW)["conditions"])


def refusing(**refusals: Any) -> Server:
    """An API server that refuses these."""
    server = served()
    for name, what in refusals.items():
        setattr(server, name, what)
    return server


def claimed(size: str) -> Json:
    source = {"huggingFace": {"repo": "m"}}
    cache = {"volumeClaimTemplate": {"size": size}}
    return pool(model={"name": "m", "source": source, "cache": cache})


def routed(pods: Sequence[PodState], *, wanted: bool = True, **live: Any) -> list[Json]:
    """Of a pool that has a router, or had one, whose next step depends on ``live``."""
    route = plan_route(
        wanted,
        live.get("service"),
        routers_ready=sum(pod.ready for pod in pods),
        strangers=live.get("strangers", ()),
        older_sidecars=False,
        unsigned_served=False,
        now_seconds=NOW,
    )
    spec = {"router": {"replicas": 1}} if wanted else {}
    return of_pool(pool(**spec), route=route, routers=pods)


def scaled(decision: Decision) -> list[Json]:
    scaler = PoolScaler({"main": 2}, {})
    scaler.decisions = {"main": decision}
    return of_pool(pool(replicas=2), scaler=scaler)


def two_groups(**spec: Any) -> Json:
    return pool(engineGroups=[{"name": "chat", "tiers": ["t0"]}, {"name": "code"}], **spec)


def gpus(asked: int, tensor: int) -> Json:
    return pool(
        engine={
            "image": "v:1",
            "parallelism": {"tensor": tensor},
            "resources": {"limits": {"nvidia.com/gpu": asked}},
        }
    )


def of_promise(attained_percent: float | None, silent: str | None = None) -> list[Json]:
    promise = Promise("acme/chat", "t0", SloObjective(SloMetric.END_TO_END, 1.0, 99.0))
    findings = slo_finding(
        [replace(promise, attained_percent=attained_percent, silent=silent)],
        "runbooks",
        of_tier=True,
    )
    return merge_conditions([], findings, 1, NOW)


SCENES: dict[str, list[Json]] = {
    "Accepted Pending": pending_conditions(),
    "Ready Pending": pending_conditions(),
    "Accepted Accepted": of_tenant(FINE, "acme/chat"),
    "ResolvedRefs Resolved": of_tenant(FINE, "acme/chat"),
    "Ready Ready": of_tenant(FINE, "acme/chat"),
    "Ready NoPool": of_tenant(FINE),
    "Ready Held": of_tenant(judged([tier("t0")], [tenant("a", stop="Hold")]), "acme/chat"),
    "Accepted Invalid": of_tier(tier("t0", priority="high")),
    "ResolvedRefs TierNotFound": of_tenant(judged([], [tenant("a")])),
    "ResolvedRefs TierInvalid": of_tenant(judged([tier("t0", priority="x")], [tenant("a")])),
    "Accepted TierNotAllowed": of_tenant(
        judged([tier("t0", allowedNamespaces={"matchLabels": {"x": "y"}})], [tenant("a")])
    ),
    "Accepted WeightNotAllowed": of_tenant(judged([tier("t0")], [tenant("a", weight=5)])),
    "Accepted RateLimitNotAllowed": of_tenant(
        judged(
            [tier("t0", rateLimits=[{"name": "m", "requests": 5, "per": "Minute"}])],
            [tenant("a", rateLimits=[{"name": "m", "requests": 9, "per": "Minute"}])],
        )
    ),
    "ResolvedRefs SecretNotFound": of_tenant(judged([tier("t0")], [tenant("a", apiKeys=KEY_REF)])),
    "ResolvedRefs SecretKeyMissing": of_tenant(
        judged([tier("t0")], [tenant("a", apiKeys=KEY_REF)], key_secret("keys", {"z": LONG_KEY}))
    ),
    "Accepted KeyTooShort": of_tenant(
        judged([tier("t0")], [tenant("a", apiKeys=KEY_REF)], key_secret("keys", {"k": "short"}))
    ),
    "Accepted KeyConflict": of_tenant(
        judged(
            [tier("t0")],
            [
                tenant("b", apiKeys=tenant("a")["spec"]["apiKeys"], created="2025-01-01T00:00:00Z"),
                tenant("a"),
            ],
        )
    ),
    "Accepted NoKeys": of_tenant(judged([tier("t0")], [tenant("a", apiKeys=[])])),
    "Accepted NamespaceNotAllowed": of_pool(pool(tenants={"namespaceSelector": {}})),
    "Accepted OverCommitted": of_pool(
        pool(), judged([tier("t0", reservedPercent=60), tier("t1", reservedPercent=60)], [])
    ),
    "Accepted TooFewReplicas": of_pool(two_groups(replicas=1)),
    "Accepted NoTiers": of_pool(pool(), judged([], [])),
    "Accepted NoTenants": of_pool(pool(), judged([tier("t0")], [])),
    "Ready NoTenants": of_pool(pool(), judged([tier("t0")], [])),
    "Ready NoReadyPods": of_pool(pool(), pods=()),
    "Available NoReadyPods": of_pool(pool(), pods=()),
    "Available PodsReady": of_pool(pool()),
    "Progressing PodsReady": of_pool(pool()),
    "Progressing PodsFailing": of_pool(pool(), pods=(FAULTY_POD,)),
    "Ready PodsFailing": of_pool(pool(), pods=(FAULTY_POD,)),
    "Progressing Scaling": of_pool(pool(replicas=2)),
    "Ready Scaling": of_pool(pool(replicas=2)),
    "Progressing RollingOut": of_pool(pool(), stateful_set=ROLLING),
    "Ready RollingOut": of_pool(pool(), stateful_set=ROLLING),
    "Ready ScaledToZero": of_pool(pool(replicas=0), pods=()),
    "GPUMismatch GPUsIdle": of_pool(gpus(4, 2)),
    "GPUMismatch TooFewGPUs": of_pool(gpus(2, 4)),
    "UnusualPrefillBudget BudgetTooSmall": of_pool(pool(prefill={"budgetPercent": 5})),
    "UnusualPrefillBudget BudgetTooLarge": of_pool(pool(prefill={"budgetPercent": 80})),
    "GroupsNotRouted NoRouter": of_pool(two_groups(replicas=2)),
    "TierWithoutKV NoKVBlocks": of_pool(
        pool(kvPools=[{"name": "all", "tiers": ["t0"], "percent": 100}]),
        judged([tier("t0"), tier("t1")], [tenant("a")]),
    ),
    "SharedStateMissing SharedStateUnset": of_pool(pool(replicas=2)),
    "SharedStateMissing SharedStateUnavailable": of_pool(
        pool(), delivered=Delivered(ready=1, cut_off=("pod chat-0: connection refused",))
    ),
    "EngineMetricsMissing MetricsUnreadable": of_pool(
        pool(),
        delivered=Delivered(ready=1, unread_engines=("pod chat-0: GET /metrics answers 404",)),
    ),
    "PolicyApplied PolicyApplied": of_pool(pool()),
    "PolicyApplied PolicyPending": of_pool(
        pool(), delivered=Delivered(ready=1, behind=("chat-0",))
    ),
    "PolicyApplied PolicyRefused": of_pool(
        pool(),
        delivered=Delivered(ready=1, behind=("chat-0",), refusals=("pod chat-0: 422 tiers",)),
    ),
    "Ready ApplyFailed": of_reconciled(refusing(refused={SERVICE}), pool()),
    "Accepted PodRefused": of_reconciled(
        refusing(refuses_pods="admission webhook: no such runtime class"), pool()
    ),
    "Accepted PodTemplateConflict": of_reconciled(
        served(), pool(engine={"image": "v:1", "podTemplate": {"spec": {"restartPolicy": "Never"}}})
    ),
    "Progressing ImmutableFieldChange": of_reconciled(served(), claimed("1Gi"), claimed("2Gi")),
    "Routed Routed": routed([ROUTER_POD], service=TO_ROUTER),
    "Routed RouterNotReady": routed([], service=TO_ROUTER),
    "Available RouterNotReady": routed([], service=TO_ROUTER),
    "Ready RouterNotReady": routed([], service=TO_ROUTER),
    "Routed RouterJoining": routed([], service={"spec": {}}),
    "Routed RouterLeaving": routed([ROUTER_POD], wanted=False, service=TO_ROUTER),
    "Fallback StandsBy": of_pool(pool(fallback={"tiers": ["t0"]}), pods=(READY_POD, SPARE_POD)),
    "Fallback NoOtherPodServes": of_pool(pool(fallback={"tiers": ["t0"]}), pods=(SPARE_POD,)),
    "Autoscaling ScalingActive": scaled(Decision(2, "QueueWait: 0.2 of what is promised")),
    "Autoscaling ScalingHeld": scaled(Decision(2, "Alerts: no answer in time", held=True)),
    "SLOMet PrometheusUnavailable": of_promise(None, "http://prometheus:9090: no answer in time"),
    "SLOMet ObjectivesMet": of_promise(99.5),
    "SLOMet ObjectiveMissed": of_promise(98.5),
    "SLOMet NoRequests": of_promise(None),
    "UpgradeAvailable UpgradeAvailable": of_pool(pool(), operator_image="sidecar:2"),
}
"""What shows each, by condition type and reason."""

MENDED_BY_A_PERSON = [pair for pair in SCENES if re.match("(Accepted|ResolvedRefs) ", pair)]


def shown(pair: str) -> Json:
    kind, reason = pair.split()
    conditions = {c["type"]: c for c in SCENES[pair]}
    assert conditions[kind]["reason"] == reason, conditions[kind]
    return dict(conditions[kind])


@pytest.mark.parametrize("pair", SCENES)
def test_it_is_given_with_a_message_that_fits_a_terminal(pair: str) -> None:
    message = shown(pair)["message"]
    assert 5 < len(message) <= 1_000
    assert not re.search(r"[{}]|<|0x|Error\(", message), message


@pytest.mark.parametrize("pair", MENDED_BY_A_PERSON)
def test_what_a_person_must_mend_names_the_field(pair: str) -> None:
    told = shown(pair)
    if told["status"] == "False":
        assert "spec." in told["message"], told["message"]


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("Routed Routed", "1 of 1 router pods serve"),
        ("Routed RouterNotReady", "0 of 1 router pods serve"),
        (
            "Routed RouterJoining",
            "Clients come to the engines' pods themselves; that waits for a pod of the router to "
            "be ready",
        ),
        (
            "Routed RouterLeaving",
            "The router goes; that waits for the sidecars to know that clients come without it",
        ),
        ("Fallback StandsBy", "1 of 1 pods stand by for t0"),
        (
            "Fallback NoOtherPodServes",
            "No pod of the engine groups serves: 1 of the fallback serve t0, and requests of other "
            "tiers are refused with 503",
        ),
        (
            "Autoscaling ScalingActive",
            "spec.replicas is ignored; 2 pods are wanted; QueueWait: 0.2 of what is promised",
        ),
        (
            "Autoscaling ScalingHeld",
            "no pod is taken away while data are missing; Alerts: no answer in time",
        ),
        (
            "SLOMet PrometheusUnavailable",
            "acme/chat: http://prometheus:9090: no answer in time",
        ),
        (
            "Ready ApplyFailed",
            "Service chat-engines was refused: not like this; Service chat was refused: not like "
            "this",
        ),
        (
            "Accepted PodRefused",
            "spec.engine: the cluster refuses such pods, so those that run stay as they are: "
            "admission webhook: no such runtime class",
        ),
        (
            "EngineMetricsMissing MetricsUnreadable",
            "Engines do not say how full they are, so that their gates go by what streams show "
            "alone and open more slowly: pod chat-0: GET /metrics answers 404; set "
            "spec.engine.image to one whose metrics have these (GET /engine/metrics on port 8001 "
            "of a pod shows them)",
        ),
    ],
)
def test_what_who_is_on_call_reads(pair: str, told: str) -> None:
    assert shown(pair)["message"] == told


def test_every_reason_is_shown() -> None:
    assert {str(reason) for reason in Reason} - {pair.split()[1] for pair in SCENES} == set()


def test_every_condition_type_is_shown() -> None:
    assert {str(kind) for kind in ConditionType} - {pair.split()[0] for pair in SCENES} == set()
