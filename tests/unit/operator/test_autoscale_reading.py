"""What is read for a scaling decision: the sidecars' queues, and a Prometheus' answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidegate_operator.autoscale.capacity import Capacity
from tidegate_operator.autoscale.decision import StepReason
from tidegate_operator.autoscale.load import GroupLoad, group_load, wait_limit_seconds
from tidegate_operator.autoscale.policy import PoolScaling, ScalingPolicy, ScalingSignal
from tidegate_operator.autoscale.pool_scaler import GroupNow, PoolScaler
from tidegate_operator.autoscale.prometheus import Told, interpret
from tidegate_operator.autoscale.signals import Alert, Burn
from tidegate_operator.figures import Reading
from tidegate_operator.slo.recorded import recorded
from tidegate_operator.slo.rules import BUDGET_ALERT

from tidegate.scheduling.contracts import (
    LATENCY_BOUNDS_SECONDS,
    EngineStatus,
    GateStatus,
    Histogram,
    SidecarStatus,
    SloMetric,
    SloObjective,
    TierPolicy,
    TierStatus,
)

Json = dict[str, Any]
TTFT = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 0.5, 99.0)
PAID = TierPolicy("paid", slo_objectives=(TTFT,))
CODE = TierPolicy("code", slo_objectives=(replace(TTFT, metric=SloMetric.END_TO_END),))
FREE = TierPolicy("free")


def waits(*seconds: float) -> Histogram:
    """A histogram of these waits."""
    counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
    for value in seconds:
        counts[sum(bound < value for bound in LATENCY_BOUNDS_SECONDS)] += 1
    return Histogram(counts=tuple(counts), sum=sum(seconds))


def reading(
    at: float,
    *tiers: TierStatus,
    started_at: float = 0.0,
    not_started: int = 0,
    kv_used: float | None = 0.2,
) -> Reading:
    status = SidecarStatus(
        1,
        "team/chat",
        started_at,
        1,
        engine=EngineStatus(True, kv_used_ratio=kv_used),
        gate=GateStatus(4, not_started),
        tiers=tiers,
    )
    return Reading(at, 1e9 + at, status)


def tier(name: str, tokens: int, queue: Histogram | None = None, queued: int = 0) -> TierStatus:
    return TierStatus(
        name, queued=queued, service_tokens_total=tokens, queue_seconds=queue or waits()
    )


def load(pods: dict[str, list[Reading]], *tiers: TierPolicy, now: float = 100.0) -> GroupLoad:
    found = group_load(pods, tiers, now)
    assert isinstance(found, GroupLoad), found
    return found


def test_the_load_is_the_difference_of_two_readings_of_each_pod_summed() -> None:
    """10 requests of 300 tokens in 30 s on each of two pods, five of each still waiting."""
    before, after = waits(*[0.01] * 90), waits(*[0.01] * 90, *[0.3] * 10)
    pods = {
        name: [reading(60, tier("paid", 999)), reading(70, tier("paid", 1000, before)),
               reading(100, tier("paid", 4000, after, queued=5), not_started=busy)]
        for name, busy in (("a", 0), ("b", 2))
    }  # fmt: skip
    found = load(pods, PAID, FREE)
    assert found.rate.served == 200.0
    assert found.rate.queued_tokens == 10 * 300
    assert found.rate.queue_growth == pytest.approx(10 / 30 * 300)
    assert found.rate.busy == pytest.approx((0.2 + 1.0) / 2)
    (wait,) = found.waits
    assert wait.tier == "paid"
    assert 0.2 < (wait.wait_seconds or 0) <= 0.3
    assert found.short


def test_those_that_were_refused_for_their_wait_count_and_others_do_not() -> None:
    """30 of 40 were, in 30 s; what was before does not count."""
    done = {"throttled": 5, "queue_wait_exceeded": 2, "rate_limited": 9}
    more = {"throttled": 25, "queue_wait_exceeded": 12, "rate_limited": 99}
    before = replace(tier("paid", 1000, waits()), requests_total=done)
    after = replace(tier("paid", 4000, waits(*[0.01] * 10)), requests_total=more)
    found = load({"a": [reading(70, before), reading(100, after)]}, PAID)
    (wait,) = found.waits
    assert wait.refused_ratio == 30 / 40
    assert wait.budget_ratio == pytest.approx(0.01)
    assert found.rate.refused == 1.0 * 300
    assert found.rate.demand == 100.0 + 300.0
    assert found.short


def test_a_tier_that_went_and_came_back_is_counted_from_zero() -> None:
    before = replace(tier("paid", 9000, waits(*[0.01] * 90)), requests_total={"throttled": 50})
    after = tier("paid", 3000, waits(*[0.01] * 10), queued=2)
    found = load({"a": [reading(70, before), reading(100, after)]}, PAID)
    assert found.rate.served == 100.0
    assert not found.short


def test_what_one_pod_can_serve_is_seen_of_those_that_are_short() -> None:
    """The second was added a moment ago, and clients that keep their connections do not know it:
    what it serves is no measure of what it could."""
    short = [reading(70, tier("paid", 0)), reading(100, tier("paid", 3000, waits(*[0.4] * 10)))]
    idle = [reading(70, tier("paid", 0)), reading(100, tier("paid", 300, waits(0.01)))]
    found = load({"a": short, "b": idle}, PAID)
    assert found.rate.served == 110.0
    assert found.rate.short_pod == 100.0
    assert load({"b": idle}, PAID).rate.short_pod is None
    capacity = Capacity()
    capacity.observe(0.0, found.rate, 2, short=True, window=60.0)
    assert capacity.per_pod == 100.0


def test_what_a_tier_without_a_promise_does_is_no_load() -> None:
    pods = {
        "a": [
            reading(70, tier("free", 0)),
            reading(100, tier("free", 9000, waits(99.0), queued=500)),
        ]
    }
    found = load(pods, FREE)
    assert (found.waits, found.rate.served, found.rate.queued_tokens) == ((), 0, 0)


def test_requests_that_wait_where_none_was_dispatched_have_waited_long_enough() -> None:
    pods = {"a": [reading(70, tier("paid", 0)), reading(100, tier("paid", 0, queued=3))]}
    assert load(pods, PAID).short
    assert not load({"a": [reading(70), reading(100, tier("paid", 0))]}, PAID).short


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        ([], "was not read lately"),
        ([reading(100)], "was not read lately"),
        ([reading(60), reading(69)], "was not read lately"),
        ([reading(70, started_at=1.0), reading(100, started_at=2.0)], "was not read lately"),
    ],
    ids=["never", "once", "long ago", "restarted"],
)
def test_a_sidecar_that_says_nothing_makes_the_whole_unknown(
    readings: list[Reading], why: str
) -> None:
    good = [reading(70, tier("paid", 0)), reading(100, tier("paid", 0))]
    found = group_load({"good": good, "bad": readings}, [PAID], 100.0)
    assert isinstance(found, str)
    assert "pod bad" in found
    assert why in found
    assert group_load({}, [PAID], 100.0) == "no pod serves"


def test_an_engine_that_tells_no_cache_is_of_unknown_use() -> None:
    pods = {"a": [reading(70), reading(100, kv_used=None)]}
    assert load(pods, PAID).rate.busy is None


def test_the_wait_that_a_promise_bears() -> None:
    assert wait_limit_seconds(PAID) == 0.25
    both = replace(PAID, slo_objectives=(TTFT, SloObjective(SloMetric.END_TO_END, 9.0, 99.0)))
    assert wait_limit_seconds(both) == 0.25
    gaps = replace(PAID, slo_objectives=(SloObjective(SloMetric.INTER_TOKEN_LATENCY, 0.1, 99.0),))
    assert wait_limit_seconds(gaps) is None


# --- Prometheus


def vector(*values: tuple[str, str, float | str]) -> list[Json]:
    return [
        {"metric": {"tier": tier, "objective": objective}, "value": [1000.0, str(value)]}
        for tier, objective, value in values
    ]


def told(
    short: float | str = 0.02, long: float | str = 0.01, at: float | None = 990.0, **firing: str
) -> Told:
    """Of one objective; ``at``: when it was recorded, None: never."""
    name = ("paid", "TimeToFirstToken")
    times = vector((*name, at)) if at is not None else []
    alerts = [{"metric": firing, "value": [1000.0, "1"]}] if firing else []
    ratios = [vector((*name, ratio)) if at is not None else [] for ratio in (short, long)]
    return interpret(recorded(ratios, times, 1000.0), alerts, [PAID, FREE])


def test_ratios_become_burn_rates_of_the_objective_in_force() -> None:
    found = told()
    (burn,) = found.burns
    assert isinstance(burn, Burn)
    assert (burn.tier, burn.objective) == ("paid", "TimeToFirstToken")
    assert (burn.short, burn.long) == (pytest.approx(2.0), pytest.approx(1.0))
    assert found.alerts == []


def test_alerts_say_for_how_long_they_look_back() -> None:
    found = told(alertname=BUDGET_ALERT, severity="page", tier="paid")
    (alert,) = found.alerts
    assert isinstance(alert, Alert)
    assert (alert.name, alert.tier) == (BUDGET_ALERT, "paid")
    assert alert.lookback_seconds == 31 * 60
    (unknown,) = told(alertname="Other", severity="page", tier="paid").alerts
    assert isinstance(unknown, Alert)
    assert unknown.lookback_seconds == 361 * 60


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (told(at=None), "has no series for TimeToFirstToken of tier paid"),
        (told(short="NaN"), "has no number"),
        (told(long="+Inf"), "has no number"),
        (told(at=1000.0 - 3600), "is too old"),
        (told(at=1000.0 + 3600), "is too old"),
        (told(at=float("nan")), "is too old"),
        (interpret(recorded([], [], 0.0), [], [FREE]), "no tier is promised anything"),
    ],
    ids=["empty", "NaN", "infinite", "an hour stale", "a clock ahead", "no time", "no promise"],
)
def test_without_fresh_numbers_nothing_is_known_of_alerts_either(answer: Told, why: str) -> None:
    assert isinstance(answer.burns, str)
    assert why in answer.burns
    assert answer.alerts == answer.burns


# --- the groups of a pool

CALM_READINGS = [reading(70, tier("paid", 0)), reading(100, tier("paid", 0))]
SCALING = PoolScaling(ScalingPolicy(1, 5))


def groups(*sizes: int) -> list[GroupNow]:
    homes = {"chat": PAID, "code": CODE}
    return [
        GroupNow(name, [home], {f"{name}-{number}": CALM_READINGS for number in range(size)})
        for (name, home), size in zip(homes.items(), sizes, strict=True)
    ]


def fires(tier: str) -> Told:
    burns = [Burn(t.name, str(t.slo_objectives[0].metric), 0.0, 0.0) for t in (PAID, CODE)]
    return Told(burns, [Alert(BUDGET_ALERT, "page", tier, 0.0)])


def test_the_home_of_the_tier_that_alerts_grows_and_no_other() -> None:
    scaler = PoolScaler({"chat": 2, "code": 2}, {})
    scaler.decide(1000.0, 100.0, groups(2, 2), fires("code"), SCALING)
    assert scaler.sizes == {"chat": 2, "code": 3}
    ((name, step),) = scaler.steps()
    assert (name, step.reason) == ("code", StepReason.ALERTS)


def test_all_groups_together_have_at_most_what_the_pool_may_have() -> None:
    scaler = PoolScaler({"chat": 3, "code": 2}, {})
    told = Told(fires("").burns, [Alert(BUDGET_ALERT, "page", t, 0.0) for t in ("paid", "code")])
    scaling = replace(SCALING, most=6)
    for now in (1000.0, 2000.0):
        scaler.decide(now, 100.0, groups(3, 2), told, scaling)
        assert scaler.sizes == {"chat": 4, "code": 2}
    assert "4 pods are the most" in scaler.decisions["chat"].text


def test_a_group_without_a_promise_keeps_its_pods_and_says_why() -> None:
    scaler = PoolScaler({"free": 3}, {})
    only_alerts = PoolScaling(ScalingPolicy(1, 5, signals=(ScalingSignal.ALERTS,)))
    group = GroupNow("free", [FREE], {"a": CALM_READINGS})
    for now in range(0, 5000, 5):
        scaler.decide(float(now), 100.0, [group], fires("paid"), only_alerts)
    assert scaler.sizes == {"free": 3}
    assert scaler.decisions["free"].held
    assert "no tier that is at home here" in scaler.decisions["free"].text


def test_groups_come_with_what_they_have_and_go() -> None:
    scaler = PoolScaler({"chat": 2, "old": 1}, {})
    scaler.adopt({"chat": 7, "code": 3})
    assert scaler.sizes == {"chat": 2, "code": 3}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Told("Prometheus does not answer", "Prometheus does not answer"), "does not answer"),
        (told(at=None), "has no series"),
        (told(short="NaN"), "has no number"),
        (told(at=1000.0 - 3600), "is too old"),
    ],
    ids=["away", "empty", "NaN", "an hour stale"],
)
def test_whatever_a_prometheus_lacks_no_pod_goes_until_it_is_well(said: Told, why: str) -> None:
    """Two hours of calm, by the sidecars: then ten minutes in which everything says so."""
    scaler = PoolScaler({"chat": 3}, {})
    for now in range(0, 7200, 60):
        scaler.decide(float(now), 100.0, groups(3, 0), said, SCALING)
        decision = scaler.decisions["chat"]
        assert (decision.desired, decision.held) == (3, True)
        assert why in decision.text
    well = told(short=0.0, long=0.0)
    for now in range(7200, 7200 + 605, 5):
        scaler.decide(float(now), 100.0, groups(3, 0), well, SCALING)
    assert scaler.sizes == {"chat": 2}
