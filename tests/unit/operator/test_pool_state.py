"""Progressing, Available and Ready from pods; conditions that move only when they must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.custom_resources import pool as custom_pool
from tidegate_operator.admin_port import Delivery
from tidegate_operator.api.common import parse
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.conditions import merge_conditions
from tidegate_operator.engine_groups import engine_groups
from tidegate_operator.findings import Fault, Finding
from tidegate_operator.json_merge import merge_patch, without_nulls
from tidegate_operator.pool_state import PodState, Rollout, pod_state, readiness, rollout
from tidegate_operator.reconciled import PoolState
from tidegate_operator.routing import Route
from tidegate_operator.status import Delivered, address_for, pool_state_status

NOW = 1_800_000_000.0


def pod(name: str = "p", **status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": name, "name": name}, "status": status}


def ready(ip: str = "10.0.0.1", group: str = "main") -> PodState:
    made = pod(podIP=ip, conditions=[{"type": "Ready", "status": "True"}])
    made["metadata"]["labels"] = {"tidegate.io/engine-group": group}
    return pod_state(made, NOW)


def waiting(reason: str) -> PodState:
    state = {"waiting": {"reason": reason, "message": "because"}}
    return pod_state(pod(containerStatuses=[{"name": "engine", "state": state}]), NOW)


def unscheduled(since: str) -> PodState:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "Insufficient nvidia.com/gpu",
        "lastTransitionTime": since,
    }
    return pod_state(pod(phase="Pending", conditions=[condition]), NOW)


SETTLED, ROLLING = Rollout(True), Rollout(False)
OVERCOMMITTED = Fault(ConditionType.ACCEPTED, Reason.OVERCOMMITTED, "too much")
UNKNOWN_TIER = Fault(ConditionType.RESOLVED_REFS, Reason.TIER_NOT_FOUND, "no t9")


@pytest.mark.parametrize(
    ("desired", "pods", "rolling", "faults", "expected"),
    [
        (1, [], SETTLED, (), "True Scaling | False NoReadyPods | Unknown NoReadyPods"),
        (1, [ready()], SETTLED, (), "False PodsReady | True PodsReady | True Ready"),
        (2, [ready()], SETTLED, (), "True Scaling | True PodsReady | True Scaling"),
        (1, [ready()], ROLLING, (), "True RollingOut | True PodsReady | True RollingOut"),
        (0, [], SETTLED, (), "False ScaledToZero | False ScaledToZero | Unknown ScaledToZero"),
        (
            1,
            [waiting("CrashLoopBackOff")],
            SETTLED,
            (),
            "False PodsFailing | False NoReadyPods | False PodsFailing",
        ),
        (
            2,
            [ready(), waiting("ImagePullBackOff")],
            ROLLING,
            (),
            "False PodsFailing | True PodsReady | True Ready",
        ),
        (
            1,
            [waiting("ContainerCreating")],
            SETTLED,
            (),
            "True Scaling | False NoReadyPods | Unknown NoReadyPods",
        ),
        (
            1,
            [ready()],
            SETTLED,
            (OVERCOMMITTED,),
            "False PodsReady | True PodsReady | False OverCommitted",
        ),
        (
            1,
            [ready()],
            SETTLED,
            (UNKNOWN_TIER,),
            "False PodsReady | True PodsReady | True Ready",
        ),
    ],
)
def test_readiness(
    desired: int, pods: list[PodState], rolling: Rollout, faults: tuple[Fault, ...], expected: str
) -> None:
    found = readiness(desired, pods, rolling, faults, tenants=1)
    assert " | ".join(f"{f.status} {f.reason}" for f in found) == expected


def test_a_pod_without_a_node_is_a_fault_only_after_a_while() -> None:
    young, old = unscheduled("2027-01-15T07:59:00Z"), unscheduled("2027-01-15T07:00:00Z")
    assert young.fault is None
    assert young.waiting is not None
    assert "nvidia.com/gpu" in young.waiting
    assert old.fault is not None


def test_a_pool_without_tenants_is_ready_and_says_so() -> None:
    found = readiness(1, [ready()], SETTLED, (), tenants=0)[2]
    assert (found.status, found.reason) == (ConditionStatus.TRUE, Reason.NO_TENANTS)


def test_a_rollout_is_settled_when_every_pod_has_the_newest_template_that_was_seen() -> None:
    def made(observed: int, current: str, update: str) -> dict[str, Any]:
        status = {
            "observedGeneration": observed,
            "currentRevision": current,
            "updateRevision": update,
        }
        return {"metadata": {"generation": 2}, "status": status}

    assert rollout(made(2, "b", "b")).settled
    assert not rollout(made(1, "b", "b")).settled
    assert not rollout(made(2, "a", "b")).settled
    assert not rollout(None).settled


def accepted(status: ConditionStatus, message: str = "m") -> Finding:
    return Finding(ConditionType.ACCEPTED, status, Reason.ACCEPTED, message)


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    first = merge_conditions([], [accepted(ConditionStatus.TRUE)], 1, NOW)
    again = merge_conditions(first, [accepted(ConditionStatus.TRUE, "other")], 2, NOW + 60)
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (again[0]["message"], again[0]["observedGeneration"]) == ("other", 2)
    turned = merge_conditions(again, [accepted(ConditionStatus.FALSE)], 2, NOW + 60)
    assert turned[0]["lastTransitionTime"] != first[0]["lastTransitionTime"]


def test_conditions_of_others_are_kept_and_ours_that_no_longer_apply_are_dropped() -> None:
    old = [{"type": "Foreign", "status": "True"}, {"type": "UpgradeAvailable", "status": "True"}]
    kept = merge_conditions(old, [accepted(ConditionStatus.TRUE)], 1, NOW)
    assert [condition["type"] for condition in kept] == ["Accepted", "Foreign"]


def test_a_merge_patch_holds_only_what_differs() -> None:
    live = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1], "gone": 1}
    assert merge_patch(live, {"a": 1, "b": {"c": 2, "d": 4}, "e": [2], "new": 0}) == {
        "b": {"d": 4},
        "e": [2],
        "gone": None,
        "new": 0,
    }
    assert merge_patch(live, live) == {}
    assert without_nulls({"a": None, "b": {"c": None}, "d": 0}) == {"d": 0}


def test_a_condition_that_another_version_wrote_is_no_obstacle() -> None:
    """After going back to an older operator, while a policy is under way."""
    old = {
        "conditions": [
            {
                "type": "PolicyApplied",
                "status": "True",
                "reason": "FromTheFuture",
                "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ]
    }
    read = parse(ServingPool, custom_pool())
    assert isinstance(read, ServingPool)
    state = PoolState(
        ("acme", "chat"), 1, read, None, delivery=Delivery(2, b"", "t"), sidecar_image="i"
    )
    delivered = Delivered(ready=1, behind=("chat-0",), pending_seconds=1.0)
    status = pool_state_status(old, state, [ready()], delivered, "i", NOW)
    found = {c["type"]: c for c in status["conditions"]}
    assert found["PolicyApplied"]["status"] in ("True", "Unknown")


@pytest.mark.parametrize(
    ("pods", "expected", "said"),
    [
        ([ready(group="chat"), ready(group="code")], "True Ready", "2 of 2 pods serve"),
        ([ready(group="chat")], "Unknown NoReadyPods", "1 of 2 pods serve, none of group code"),
        ([ready(group="chat"), waiting("CrashLoopBackOff")], "False PodsFailing", "CrashLoopBack"),
        ([], "Unknown NoReadyPods", "none of group chat, code"),
    ],
)
def test_a_pool_is_ready_when_each_group_has_a_pod_that_serves(
    pods: list[PodState], expected: str, said: str
) -> None:
    found = {f.type: f for f in readiness(2, pods, SETTLED, (), 1, ("chat", "code"))}
    summary = found[ConditionType.READY]
    assert f"{summary.status} {summary.reason}" == expected
    assert said in summary.message


def test_the_status_tells_of_each_group_and_tenants_where_to_call() -> None:
    groups = [{"name": "chat", "tiers": ["t0"]}, {"name": "code", "tiers": ["t2"], "share": 2}]
    read = parse(ServingPool, custom_pool(replicas=3, engineGroups=groups))
    assert isinstance(read, ServingPool)
    state = PoolState(("acme", "chat"), 1, read, None, tuple(engine_groups(read)))
    pods = [ready("10.0.0.1", "chat"), ready("10.0.0.2", "code"), waiting("ErrImagePull")]
    status = pool_state_status({}, state, pods, Delivered(0), "i", NOW)
    assert [(g["name"], g["desired"], g["readyReplicas"]) for g in status["engineGroups"]] == [
        ("chat", 1, 1),
        ("code", 2, 1),
    ]
    addresses = [address_for(state, tier) for tier in ("t0", "t2", "t9")]
    assert addresses == [
        "http://chat-chat.acme.svc:8000",
        "http://chat-code.acme.svc:8000",
        "http://chat.acme.svc:8000",
    ]
    warning = next(c for c in status["conditions"] if c["type"] == "GroupsNotRouted")
    assert "t2 at http://chat-code.acme.svc:8000" in warning["message"]
    led = replace(state, route=Route(True, "2026-01-01T00:00:00Z", tls=True))
    assert address_for(led, "t0") == "https://chat.acme.svc:8000"
    rows = pool_state_status({}, led, pods, Delivered(0), "i", NOW)["engineGroups"]
    assert rows[0]["address"] == addresses[0]  # past the router for a while
    single = PoolState(("acme", "chat"), 1, read_pool(custom_pool()), None)
    assert pool_state_status({}, single, pods, Delivered(0), "i", NOW)["engineGroups"] is None
    assert address_for(single, "t0") == "http://chat.acme.svc:8000"


def read_pool(obj: dict[str, Any]) -> ServingPool:
    read = parse(ServingPool, obj)
    assert isinstance(read, ServingPool)
    return read
