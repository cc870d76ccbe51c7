"""A pool's fallback: its engines, its part of the policy, its condition and its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.custom_resources import Json, pool, tenant, tier
from tidegate_operator import api
from tidegate_operator.api.conditions import ConditionStatus, Reason
from tidegate_operator.compile import compile_pool
from tidegate_operator.events import events_of
from tidegate_operator.fallback import fallback_finding, fallback_groups, fallback_pool
from tidegate_operator.judge import judge
from tidegate_operator.kinds import SERVING_POOL
from tidegate_operator.pool_state import PodState
from tidegate_operator.rollout_plan import cold_digest
from tidegate_operator.shards import Previous

from tidegate.scheduling.contracts import (
    FALLBACK_GROUP,
    EngineGroupPolicy,
    EngineLimits,
    KvPool,
    Policy,
    Spill,
)

GROUPS = [
    {"name": "chat", "tiers": ["t0", "t1"], "spill": "Never"},
    {"name": "code", "tiers": ["t2"]},
]
KV = [
    {"name": "talk", "tiers": ["t0", "t1"], "percent": 60},
    {"name": "code", "tiers": ["t2"], "percent": 30},
    {"name": "rest", "tiers": ["t3"], "percent": 10},
]


def read(**spec: Any) -> api.ServingPool:
    parsed = api.parse(api.ServingPool, pool(router={}, **spec))
    assert isinstance(parsed, api.ServingPool), parsed
    return parsed


def policy(**spec: Any) -> Policy:
    tiers = [tier(f"t{n}", priority=-n) for n in range(4)]
    judgement = judge(tiers, [tenant("a")], {"acme": {}}, {})
    done = compile_pool(read(**spec), judgement, Previous(), may_share=False, now_seconds=9.0)
    assert done.policy is not None
    return done.policy


def test_its_engines_are_the_pools_but_for_what_it_says() -> None:
    whole = read(
        engine={"image": "vllm:1", "args": ["--a"], "nodeSelector": {"gpu": "big"}},
        fallback={"tiers": ["t0"], "engine": {"image": "vllm:2", "nodeSelector": {}}},
    )
    spare = fallback_pool(whole).spec.engine
    assert (spare.image, spare.args, spare.node_selector) == ("vllm:2", ["--a"], {})
    assert whole.spec.engine.image == "vllm:1"
    plain = read(fallback={"tiers": ["t0"]})
    assert fallback_pool(plain) == plain


def test_a_pool_has_its_group_and_one_that_it_has_no_more_goes() -> None:
    (group,) = fallback_groups(read(fallback={"tiers": ["t0"], "replicas": 2}), ())
    assert (group.name, group.replicas, group.tiers) == (FALLBACK_GROUP, 2, ("t0",))
    assert [g.replicas for g in fallback_groups(read(), {FALLBACK_GROUP: 2})] == [0]
    assert fallback_groups(read(), ()) == []


def test_only_what_its_pods_are_made_of_replaces_them() -> None:
    def spec(**fallback: Any) -> Json:
        spec: Json = pool(fallback={"tiers": ["t0"], **fallback})["spec"]
        return spec

    plain = cold_digest(spec(), FALLBACK_GROUP)
    assert plain == cold_digest(spec(replicas=3, tiers=["t1"]), FALLBACK_GROUP)
    other = spec(engine={"image": "vllm:2"})
    assert plain != cold_digest(other, FALLBACK_GROUP)
    assert cold_digest(spec(), "main") == cold_digest(other, "main")


def test_the_policy_says_where_tiers_are_at_home_and_what_runs_in_each_group() -> None:
    made = policy(
        engineGroups=GROUPS,
        kvPools=KV,
        engine={"image": "vllm:1", "args": ["--max-num-seqs=128"]},
        fallback={"tiers": ["t0"], "engine": {"args": ["--max-num-seqs=8"]}},
    )
    rest, code = KvPool("rest", ("t3",), 25), KvPool("code", ("t2",), 75)
    assert made.engine_groups == (
        # A tier that no group names is at home in the first.
        EngineGroupPolicy("chat", ("t0", "t1", "t3"), Spill.NEVER, None),
        EngineGroupPolicy("code", ("t2",), Spill.WHEN_IDLE, (KvPool("code", ("t2",), 100),)),
    )
    assert made.fallback == EngineGroupPolicy(
        FALLBACK_GROUP,
        ("t0",),
        kv_pools=(KvPool("talk", ("t0",), 100),),
        engine=EngineLimits(8, 8192),
    )
    spills = [GROUPS[0], GROUPS[1] | {"tiers": ["t2", "t3"]}]
    (_, second) = policy(engineGroups=spills, kvPools=KV).engine_groups
    assert second.kv_pools == (code, rest)


def test_a_pool_without_groups_has_a_policy_without() -> None:
    made = policy(kvPools=KV)
    assert made.engine_groups == ()
    assert made.fallback is None


def test_a_tier_that_the_fallback_names_and_nobody_serves_is_said() -> None:
    judgement = judge([tier("t0")], [tenant("a")], {"acme": {}}, {})
    done = compile_pool(
        read(fallback={"tiers": ["t0", "gone"]}),
        judgement,
        Previous(),
        may_share=False,
        now_seconds=9.0,
    )
    assert [fault.message for fault in done.faults] == [
        "spec.fallback: there is no TenantTier gone that is served here; create it, or remove it "
        "from the list"
    ]
    assert done.policy is not None
    assert done.policy.fallback is not None
    assert done.policy.fallback.tiers == ("t0",)


# --- its condition


def pod(group: str, *, ready: bool = True, **state: Any) -> PodState:
    return PodState(f"uid-{group}", f"chat-{group}-0", "127.0.0.2", ready, False, group, **state)


@pytest.mark.parametrize(
    ("pods", "replicas", "status", "reason", "message"),
    [
        pytest.param(
            [pod("chat"), pod(FALLBACK_GROUP)],
            1,
            ConditionStatus.FALSE,
            Reason.STANDS_BY,
            "1 of 1 pods stand by for t0",
            id="stands by",
        ),
        pytest.param(
            [pod("chat", ready=False), pod(FALLBACK_GROUP)],
            1,
            ConditionStatus.TRUE,
            Reason.NO_OTHER_POD_SERVES,
            "No pod of the engine groups serves: 1 of the fallback serve t0, and requests of other "
            "tiers are refused with 503",
            id="serves",
        ),
        pytest.param(
            [pod("chat"), pod(FALLBACK_GROUP, ready=False, fault="it crashes")],
            1,
            ConditionStatus.FALSE,
            Reason.PODS_FAILING,
            "it crashes",
            id="broken",
        ),
        pytest.param(
            [pod(FALLBACK_GROUP, ready=False, waiting="no node")],
            1,
            ConditionStatus.FALSE,
            Reason.NO_READY_PODS,
            "no node",
            id="not ready either",
        ),
        pytest.param(
            [pod("chat")], 0, ConditionStatus.FALSE, Reason.SCALED_TO_ZERO, "is 0", id="none"
        ),
    ],
)
def test_the_condition_says_whether_it_serves_or_why_it_could_not(
    pods: Sequence[PodState], replicas: int, status: ConditionStatus, reason: Reason, message: str
) -> None:
    spec = read(fallback={"tiers": ["t0"], "replicas": replicas})
    (finding,) = fallback_finding(spec, pods)
    assert (finding.status, finding.reason) == (status, reason)
    assert message in finding.message


def test_a_pool_without_one_says_nothing_of_it() -> None:
    assert fallback_finding(read(), [pod("chat")]) == []


# --- its events


def status(value: str | None, reason: str = "StandsBy", other: str = "True") -> Json:
    time = "2026-11-30T15:00:00Z"
    ready = {"type": "Ready", "status": other, "lastTransitionTime": time}
    fallback = {
        "type": "Fallback",
        "status": value,
        "reason": reason,
        "message": "because",
        "lastTransitionTime": time,
    }
    return {"conditions": [ready] if value is None else [ready, fallback]}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param("False", "True", ["Warning"], id="begins to serve"),
        pytest.param("True", "False", ["Normal"], id="is over"),
        pytest.param(None, "False", [], id="new, and nothing is wrong"),
        pytest.param(None, "True", ["Warning"], id="new, and serves"),
        pytest.param("True", "True", [], id="no change"),
        pytest.param("True", None, [], id="the pool has none any more"),
    ],
)
def test_a_change_is_told_once(before: str | None, after: str | None, told: list[str]) -> None:
    made = events_of(SERVING_POOL, pool(), status(before, other="False"), status(after))
    assert [event["type"] for event in made] == told
    for event in made:
        # Back within the same second is another event.
        name = f"chat.fallback.{str(after).lower()}.6b0d8f70"
        assert event["metadata"] == {"name": name, "namespace": "acme"}
        assert event["involvedObject"]["uid"] == "pool-acme-chat"
        assert (event["reason"], event["message"]) == ("StandsBy", "because")
