"""Autoscaling of a pool: its API, its engine groups, its status, and one look of its loop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from support.custom_resources import pool
from tidegate_operator import api
from tidegate_operator.api.common import parse
from tidegate_operator.api.conditions import ConditionStatus, Reason
from tidegate_operator.api.status import ScalingStatus, ScalingStep
from tidegate_operator.autoscale import runtime
from tidegate_operator.autoscale.decision import Decision, Step, StepReason
from tidegate_operator.autoscale.policy import DOWN, UP, Pace, ScalingSignal
from tidegate_operator.autoscale.pool_scaler import GroupNow, PoolScaler
from tidegate_operator.autoscale.prometheus import Told
from tidegate_operator.autoscale.runtime import PoolAutoscaler
from tidegate_operator.autoscale.signals import Alert, Burn
from tidegate_operator.autoscale.status import scaling_finding, scaling_status, steps_by_group
from tidegate_operator.engine_groups import engine_groups, too_few

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

PAID = TierPolicy("paid", slo_objectives=(SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.0),))
ADDRESS = "http://prometheus:9090"


def scaled(**spec: Any) -> api.ServingPool:
    parsed = parse(api.ServingPool, pool(**({"autoscaling": {"maxPerGroup": 4}} | spec)))
    assert isinstance(parsed, api.ServingPool)
    return parsed


def test_what_is_left_out_is_the_default() -> None:
    spec = scaled().spec.autoscaling
    assert spec is not None
    alone = spec.resolved(prometheus=False)
    assert (alone.group.minimum, alone.group.maximum, alone.most) == (1, 4, None)
    assert alone.group.signals == (ScalingSignal.QUEUE_WAIT,)
    assert (alone.group.up, alone.group.down) == (UP, DOWN)
    assert set(spec.resolved(prometheus=True).group.signals) == set(ScalingSignal)


def test_what_is_said_counts() -> None:
    spec = scaled(
        autoscaling={
            "minPerGroup": 2,
            "maxPerGroup": 4,
            "maxReplicas": 6,
            "signals": ["Alerts"],
            "scaleUp": {"window": "15s", "maxStep": 2},
            "scaleDown": {"window": "1h", "cooldown": "0s"},
        }
    ).spec.autoscaling
    assert spec is not None
    found = spec.resolved(prometheus=True)
    assert (found.group.minimum, found.most) == (2, 6)
    assert found.group.signals == (ScalingSignal.ALERTS,)
    assert found.group.up == Pace(15.0, UP.cooldown_seconds, 2)
    assert found.group.down == Pace(3600.0, 0.0, DOWN.max_step)


GROUPS = [{"name": "chat", "tiers": ["paid"], "share": 9}, {"name": "code"}]


@pytest.mark.parametrize(
    ("running", "decided", "counts"),
    [
        ({}, None, [1, 1]),
        ({"chat": 3}, None, [3, 1]),
        ({"chat": 3, "code": 9}, None, [3, 4]),
        ({"chat": 3, "code": 2}, {"chat": 2}, [2, 2]),
        ({"chat": 3, "code": 2}, {"chat": 9, "code": 0}, [4, 1]),
        ({"main": 4}, None, [3, 1]),
        ({"chat": 1, "draft": 3}, None, [1, 3]),
        ({"main": 4, "chat": 3}, {"chat": 3, "code": 1}, [3, 1]),
    ],
    ids=[
        "new",
        "one is new",
        "within bounds",
        "decided",
        "decided before the bounds",
        "they replace one",
        "one has another name",
        "the first of them exists",
    ],
)
def test_groups_have_what_was_decided_and_before_that_what_they_have(
    running: dict[str, int], decided: dict[str, int] | None, counts: list[int]
) -> None:
    """`replicas` and `share` are for pools that are not scaled."""
    served = scaled(replicas=1, engineGroups=GROUPS)
    assert [group.replicas for group in engine_groups(served, running, decided)] == counts
    assert too_few(served) is None


def test_a_pool_without_groups_is_one() -> None:
    (group,) = engine_groups(scaled(replicas=0), {"main": 2})
    assert (group.name, group.replicas) == ("main", 2)


def test_steps_outlive_the_operator_in_the_status() -> None:
    steps = {
        "chat": [
            Step(1000.0, 1, 2, StepReason.ALERTS, "a"),
            Step(3000.0, 2, 1, StepReason.CALM, "c"),
        ],
        "code": [Step(2000.0, 1, 3, StepReason.QUEUE_WAIT, "b" * 600)],
    }
    told = scaling_status(PoolScaler({"chat": 1, "code": 3}, steps))
    assert told is not None
    assert told["desired"] == 4
    assert [entry["message"][0] for entry in told["history"]] == ["c", "b", "a"]
    back = steps_by_group(ScalingStatus.model_validate(told))
    assert back["chat"] == steps["chat"]
    assert len(back["code"][0].text) == 512
    assert scaling_status(None) is None
    assert steps_by_group(None) == {}


def test_a_reason_of_another_version_is_taken_for_bounds() -> None:
    when = datetime(2026, 11, 30, tzinfo=UTC)
    step = ScalingStep(
        time=when, group="main", from_replicas=1, to_replicas=2, reason="Later", message=""
    )
    (found,) = steps_by_group(ScalingStatus(history=[step]))["main"]
    assert found.reason is StepReason.BOUNDS


def test_the_condition_says_what_is_wanted_or_missing() -> None:
    scaler = PoolScaler({"chat": 2, "code": 1}, {})
    scaler.decisions = {"chat": Decision(2, "calm"), "code": Decision(1, "neither")}
    (finding,) = scaling_finding(scaler)
    assert (finding.status, finding.reason) == (ConditionStatus.TRUE, Reason.SCALING_ACTIVE)
    assert finding.message == (
        "spec.replicas is ignored; 3 pods are wanted; group chat: calm; group code: neither"
    )
    scaler.decisions["code"] = Decision(1, "Alerts: away", held=True)
    (finding,) = scaling_finding(scaler)
    assert (finding.status, finding.reason) == (ConditionStatus.FALSE, Reason.SCALING_HELD)
    assert "group code: Alerts: away" in finding.message
    assert scaling_finding(None) == []


class Asked:
    """Stands in for the questions to a Prometheus: what each is answered, and their number."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.count = 0

    async def __call__(self, *arguments: object) -> Told:
        self.count += 1
        return self.told


CALM = [Burn("paid", "TimeToFirstToken", 0.0, 0.0)]
PAGE = [Alert("TidegateErrorBudgetBurn", "page", "paid", 0.0)]


def groups_now() -> list[GroupNow]:
    return [GroupNow("main", [PAID], {"chat-0": ()})]


async def test_a_look_asks_at_its_own_pace_and_tells_what_it_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(Told(CALM, []))
    monkeypatch.setattr(runtime.prometheus, "ask", asked)
    calls: list[bool] = []
    async with aiohttp.ClientSession() as session:
        scaler = PoolAutoscaler("acme/chat", session, 5.0, calls.append)
        await scaler.look(groups_now)
        assert (asked.count, calls, scaler.sizes) == (0, [], None)
        spec = {"observability": {"prometheus": ADDRESS}}
        alerts = {"autoscaling": {"maxPerGroup": 4, "signals": ["Alerts"]}}
        scaler.serve(scaled(**spec, **alerts), [PAID], {"main": 1})
        await scaler.look(groups_now)
        await scaler.look(groups_now)
        assert (asked.count, calls, scaler.sizes) == (1, [False], {"main": 1})
        asked.told = Told(CALM, PAGE)
        await scaler.look(groups_now)
        assert scaler.sizes == {"main": 1}, "what was said stands until it is asked again"
        monkeypatch.setattr(runtime, "ASK_SECONDS", 0.0)
        await scaler.look(groups_now)
        assert (asked.count, calls[-1], scaler.sizes) == (2, True, {"main": 2})
        scaler.serve(scaled(**spec, autoscaling=None), [PAID], {"main": 1})
        await scaler.look(groups_now)
        assert (asked.count, scaler.sizes) == (2, None)


async def test_another_prometheus_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(Told("away", "away"))
    monkeypatch.setattr(runtime.prometheus, "ask", asked)
    async with aiohttp.ClientSession() as session:
        scaler = PoolAutoscaler("acme/chat", session, 5.0, lambda _: None)
        for address in (ADDRESS, ADDRESS, "http://other:9090"):
            scaler.serve(scaled(observability={"prometheus": address}), [PAID], {"main": 1})
            await scaler.look(groups_now)
    assert asked.count == 2
