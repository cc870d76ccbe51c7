"""Each reason that a condition may give, provoked, and what it says to who is on call.

From the objects through judging, compiling and status, without an API server; the few that need one
are provoked by the tests that `PROVOKED_ELSEWHERE` names. A condition type or a reason that nobody
provokes fails here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.custom_resources import key_secret, pool, tenant, tier
from tidegate_operator import api
from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.conditions import ConditionType, Reason, pending_conditions
from tidegate_operator.compile import compile_pool
from tidegate_operator.conditions import merge_conditions
from tidegate_operator.engine_groups import engine_groups, too_few
from tidegate_operator.findings import with_faults
from tidegate_operator.judge import Judgement, judge
from tidegate_operator.pool_state import PodState
from tidegate_operator.reconciled import PoolState
from tidegate_operator.shards import Previous
from tidegate_operator.slo.promises import Promise, slo_finding
from tidegate_operator.status import (
    Delivered,
    pool_state_status,
    tenant_state_status,
    tier_state_status,
)

from tidegate.scheduling.contracts import SloMetric, SloObjective

Json = dict[str, Any]
TESTS = Path(__file__).resolve().parents[2]
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
        delivery=Delivery(1, b"", "t"),
        sidecar_image=IMAGE,
        faults=faults,
        findings=with_faults(compiled.findings, faults),
    )
    made = pool_state_status({}, state, pods, delivered, operator_image, NOW)
    return list(made["conditions"])


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


def of_promise(attained_percent: float | None) -> list[Json]:
    promise = Promise("acme/chat", "t0", SloObjective(SloMetric.END_TO_END, 1.0, 99.0))
    findings = slo_finding(
        [replace(promise, attained_percent=attained_percent)], "runbooks", of_tier=True
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
    "SLOMet ObjectivesMet": of_promise(99.5),
    "SLOMet ObjectiveMissed": of_promise(98.5),
    "SLOMet NoRequests": of_promise(None),
    "UpgradeAvailable UpgradeAvailable": of_pool(pool(), operator_image="sidecar:2"),
}
"""What shows each, by condition type and reason."""

PROVOKED_ELSEWHERE = {
    Reason.APPLY_FAILED: "integration/operator/test_operator_changes.py",
    Reason.POD_TEMPLATE_CONFLICT: "integration/operator/test_pods_as_asked.py",
    Reason.POD_REFUSED: "integration/operator/test_pods_as_asked.py",
    Reason.IMMUTABLE_FIELD_CHANGE: "integration/operator/test_pods_as_asked.py",
}
"""By the API server's answers."""
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


def test_every_reason_is_provoked_by_a_test() -> None:
    provoked = {pair.split()[1] for pair in SCENES}
    for reason, where in PROVOKED_ELSEWHERE.items():
        assert f'"{reason}"' in (TESTS / where).read_text(), f"{where} no longer provokes {reason}"
        provoked.add(reason)
    assert {str(reason) for reason in Reason} - provoked - by_other_tests(Reason) == set()


def test_every_condition_type_is_shown_by_a_test() -> None:
    provoked = {pair.split()[0] for pair in SCENES}
    assert {str(kind) for kind in ConditionType} - provoked - by_other_tests(ConditionType) == set()


def by_other_tests(members: type[Reason] | type[ConditionType]) -> set[str]:
    """Those that other tests of the operator compare with, as the code or the API names them."""
    folders = [TESTS / kind for kind in ("unit/operator", "integration/operator", "e2e")]
    others = [path for folder in folders for path in folder.glob("test_*.py")]
    text = "\n".join(path.read_text() for path in others if path != Path(__file__))
    return {
        str(member)
        for member in members
        if re.search(rf'{members.__name__}\.{member.name}\b|"{member}"', text)
    }
