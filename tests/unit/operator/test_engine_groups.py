"""Groups and their pods: splitting, changing the set of groups, whose turn a rollout is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.engine_groups import (
    Group,
    engine_groups,
    former_groups,
    leading_group,
    too_few,
)
from tidegate_operator.fallback import fallback_groups
from tidegate_operator.group_rollout import GroupPlan, plan_groups
from tidegate_operator.render import render_children

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CHAT = {"name": "chat", "tiers": ["t0"], "share": 2}
CODE = {"name": "code", "tiers": ["t2"], "draft": {"method": "Ngram", "tokens": 4}}


def read(obj: Json) -> api.ServingPool:
    parsed = api.parse(api.ServingPool, obj)
    assert isinstance(parsed, api.ServingPool), parsed
    return parsed


def counts(obj: Json, running: dict[str, int] | None = None) -> dict[str, int]:
    return {group.name: group.replicas for group in engine_groups(read(obj), running)}


def test_a_pool_without_groups_is_one() -> None:
    assert counts(pool(replicas=5)) == {"main": 5}
    assert too_few(read(pool(replicas=1))) is None


def test_the_node_of_the_example_is_full() -> None:
    """Four engines of two GPUs on eight: conversation, code, without a draft, the fallback."""
    obj = yaml.safe_load((EXAMPLES / "8xh100" / "pool.yaml").read_text())
    parsed = read(obj)
    groups = [*engine_groups(parsed), *fallback_groups(parsed, ())]
    assert {group.name: group.replicas for group in groups} == {
        "chat": 1,
        "code": 1,
        "plain": 1,
        "fallback": 1,
    }
    gpus = parsed.spec.engine.tensor_parallel_size * sum(group.replicas for group in groups)
    assert gpus == 8
    assert [group.draft is not None for group in groups] == [True, True, False, False]


@pytest.mark.parametrize(
    ("replicas", "expected", "fault"),
    [
        (0, {"chat": 0, "code": 0}, False),
        (1, {"chat": 3, "code": 0}, True),
        (2, {"chat": 1, "code": 1}, False),
        (6, {"chat": 4, "code": 2}, False),
    ],
)
def test_replicas_over_groups(replicas: int, expected: dict[str, int], fault: bool) -> None:
    obj = pool(replicas=replicas, engineGroups=[CHAT, CODE])
    assert counts(obj, {"chat": 3}) == expected
    found = too_few(read(obj))
    assert (found is not None) is fault
    if found:
        assert found.reason == "TooFewReplicas"
        assert "1 for 2 engineGroups" in found.message


@given(st.integers(1, 9), st.integers(0, 9), st.randoms(use_true_random=False))
def test_another_set_of_groups_takes_over_pod_by_pod(total: int, old: int, dice: Any) -> None:
    """On a node that is full, and with never less serving than before but the pod that moves."""
    room = max(total, old)
    served = read(pool(replicas=total))
    wanted = [Group("main", total)]
    running, ready = {"old": old, "main": total}, 0
    steps = 0
    while "old" in running:
        steps += 1
        assert steps < 100
        former = former_groups(served, wanted, running, {"main": ready})
        kept = former[0].replicas
        assert kept <= running["old"]
        assert kept + ready >= min(old, total - 1)
        if kept:
            running["old"] = kept
        else:
            del running["old"]
        fits = min(total, room - kept)
        ready = dice.randint(ready, fits) if kept else total
        if kept and fits > ready:
            ready += 1
    assert ready == total


def test_nothing_takes_over_before_it_exists() -> None:
    """The cluster refuses the pods of the new group, or there are too few replicas for it."""
    served = read(pool(replicas=1, engineGroups=[CODE]))
    wanted = engine_groups(served, {"main": 1})
    assert former_groups(served, wanted, {"main": 1}, {"main": 1}) == [Group("main", 1)]
    assert former_groups(served, wanted, {"main": 1, "code": 1}, {"main": 1}) == [Group("main", 0)]
    short = read(pool(replicas=1, engineGroups=[CHAT, CODE]))
    running = {"main": 3, "chat": 0, "code": 0}
    wanted = engine_groups(short, running)
    assert [group.replicas for group in wanted] == [0, 0]
    assert former_groups(short, wanted, running, {"main": 3}) == [Group("main", 3)]


def test_the_pools_service_leads_to_the_first_group_that_serves() -> None:
    groups = [Group("chat", 2), Group("code", 1), Group("main", 1)]
    assert leading_group(groups, {}) == "chat"
    assert leading_group(groups, {"main": 1}) == "main"
    assert leading_group(groups, {"code": 1, "main": 1}) == "code"
    assert leading_group(groups, {"chat": 1, "code": 1}) == "chat"


# --- turns


def plans(obj: Json, live: dict[str, Json], former: tuple[Group, ...] = ()) -> dict[str, GroupPlan]:
    parsed = read(obj)
    groups = (*engine_groups(parsed), *former, *fallback_groups(parsed, ()))
    made = render_children(parsed, "sidecar:1", groups=groups)
    found = plan_groups(made.groups, live, [group.name for group in former], obj["spec"])
    return {plan.name: plan for plan in found}


def applied(obj: Json, live: dict[str, Json]) -> dict[str, Json]:
    """The StatefulSets after the plan was carried out, all pods of it that may having gone."""
    after = {}
    for name, plan in plans(obj, live).items():
        made = copy.deepcopy(plan.plan.workload)
        assert made is not None
        old = live.get(name)
        same = old is not None and old["spec"]["template"] == made["spec"]["template"]
        revision = old["status"]["updateRevision"] if same and old else made["spec"]["template"]
        held = made["spec"]["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
        current = old["status"]["currentRevision"] if held and old else revision
        made["metadata"]["generation"] = 1
        made["status"] = {
            "observedGeneration": 1,
            "currentRevision": current,
            "updateRevision": revision,
        }
        after[name] = made
    return after


def partitions(found: dict[str, GroupPlan]) -> dict[str, int]:
    sets = {name: plan.plan.workload for name, plan in found.items()}
    return {
        name: made["spec"]["updateStrategy"]["rollingUpdate"]["partition"]
        for name, made in sets.items()
        if made
    }


def test_a_change_of_the_engine_rolls_one_group_at_a_time() -> None:
    before = pool(replicas=3, engineGroups=[CHAT, CODE])
    live = applied(before, {})
    assert partitions(plans(before, live)) == {"chat": 0, "code": 0}
    after = pool(replicas=3, engineGroups=[CHAT, CODE], engine={"image": "vllm:2"})
    first = plans(after, live)
    assert partitions(first) == {"chat": 0, "code": 1}
    templates = {plan.plan.pod["spec"]["containers"][0]["image"] for plan in first.values()}
    assert templates == {"vllm:2"}
    live = applied(after, live)
    assert live["code"]["status"]["currentRevision"] != live["code"]["status"]["updateRevision"]
    rolling = copy.deepcopy(live)
    rolling["chat"]["status"]["currentRevision"] = "old"
    assert partitions(plans(after, rolling)) == {"chat": 0, "code": 1}
    assert partitions(plans(after, live)) == {"chat": 0, "code": 0}


def test_a_second_change_takes_the_turn_from_nobody() -> None:
    """`code` has a pod away when the engine changes again: `chat` waits for it."""
    before = pool(replicas=4, engineGroups=[CHAT, CODE | {"share": 2}])
    rolling = applied(before, {})
    rolling["code"]["status"]["currentRevision"] = "old"
    after = before | {"spec": before["spec"] | {"engine": {"image": "vllm:2"}}}
    assert partitions(plans(after, rolling)) == {"chat": 2, "code": 0}


def test_a_fallback_holds_up_no_change_and_is_replaced_last() -> None:
    """Its pod finds no node, as nothing is left for one that stands by."""
    fallback = {"tiers": ["t0"], "replicas": 1}
    before = pool(replicas=2, router={}, fallback=fallback)
    live = applied(before, {})
    live["fallback"]["status"]["currentRevision"] = "old"
    after = before | {"spec": before["spec"] | {"engine": {"image": "vllm:2"}}}
    assert partitions(plans(after, live)) == {"main": 0, "fallback": 1}
    live["main"] = applied(after, live)["main"]
    assert partitions(plans(after, live)) == {"main": 0, "fallback": 0}


def test_a_change_of_one_groups_draft_concerns_it_alone() -> None:
    live = applied(pool(replicas=3, engineGroups=[CHAT, CODE]), {})
    other = CODE | {"draft": {"method": "Ngram", "tokens": 5}}
    found = plans(pool(replicas=3, engineGroups=[CHAT, other]), live)
    assert found["chat"].plan.pod is None
    assert found["code"].plan.pod is not None
    assert partitions(found) == {"chat": 0, "code": 0}
    moved = plans(pool(replicas=3, engineGroups=[CHAT | {"tiers": ["t0", "t1"]}, CODE]), live)
    assert all(plan.plan.pod is None for plan in moved.values())


def test_a_former_group_keeps_its_pods_as_they_are_until_it_has_none() -> None:
    live = applied(pool(replicas=2), {})
    after = pool(replicas=2, engineGroups=[CHAT, CODE], engine={"image": "vllm:2"})
    found = plans(after, live, (Group("main", 1),))
    wanted = found["main"].plan.workload
    assert wanted is not None
    assert wanted["spec"]["template"] == live["main"]["spec"]["template"]
    assert wanted["spec"]["replicas"] == 1
    assert partitions(found)["main"] == 1, "none of them is replaced either"
    assert found["main"].plan.faults == ()
    assert not found["main"].removed
    assert plans(after, live, (Group("main", 0),))["main"].removed
