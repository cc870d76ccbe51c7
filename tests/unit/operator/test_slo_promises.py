"""How promises are kept, what is left of their budgets, and the condition SLOMet."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_operator.api.conditions import ConditionStatus, Reason
from tidegate_operator.api.figures import LOWEST_BUDGET_PERCENT, Measured
from tidegate_operator.slo.promises import Kept, Promise, kept, promises_of, slo_finding, worst
from tidegate_operator.slo.recorded import FRESH_SECONDS, Recorded, recorded
from tidegate_operator.slo.slo_met import SloMet

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy

FIRST = SloObjective(SloMetric.TIME_TO_FIRST_TOKEN, 2.0, 99.5)
END = SloObjective(SloMetric.END_TO_END, 30.0, 99.0)
TIERS = (TierPolicy("t0", slo_objectives=(FIRST, END)), TierPolicy("t3"))
T0_FIRST, T0_END = ("t0", "TimeToFirstToken"), ("t0", "EndToEnd")
RUNBOOKS = "https://example.com/runbooks/"


def told(
    counts: dict[Any, tuple[int, int] | tuple[int, int, int]],
    budgets: Recorded | str | None = None,
) -> tuple[Promise, ...]:
    """``counts``: requests, those that kept it and, where it is told, those refused."""
    kept = {key: Kept(*count[:2], *(count[2:] or (None,))) for key, count in counts.items()}
    return promises_of("acme/chat", TIERS, kept, budgets)


def left(budgets: dict[Any, float], *, old: Any = None) -> Recorded:
    """What a Prometheus has; of the objective ``old`` it is too old."""
    times = dict.fromkeys(budgets, 1000.0) | {old: 999.0 - FRESH_SECONDS}
    return Recorded([budgets], times, 1000.0)


@pytest.mark.parametrize(
    ("requests", "good", "attained", "left"),
    [
        (1000, 1000, "100", 100),
        (1000, 999, "99.9", 80),
        (1000, 995, "99.5", 0),
        (1000, 990, "99", -100),
        (1_000_000, 994_999, "99.499", -1),
        (3, 0, "0", LOWEST_BUDGET_PERCENT),
        (0, 0, None, None),
    ],
)
def test_without_a_prometheus_the_sidecars_counters_tell(
    requests: int, good: int, attained: str | None, left: int | None
) -> None:
    promise, _ = told({T0_FIRST: (requests, good)})
    assert (promise.attained, promise.budget_left_percent) == (attained, left)
    assert promise.measured is Measured.SIDECAR_START
    assert promise.met == (None if left is None else left >= 0)


@pytest.mark.parametrize(
    ("budget", "attained"), [(1.0, "100"), (0.8, "99.9"), (0.0, "99.5"), (-1.0, "99")]
)
def test_a_prometheus_tells_over_the_objectives_window(budget: float, attained: str) -> None:
    promise, other = told({T0_FIRST: (10, 0)}, left({T0_FIRST: budget, T0_END: 0.5}))
    assert (promise.attained, promise.measured) == (attained, Measured.WINDOW)
    assert promise.budget_left_percent == round(100 * budget)
    assert promise.met is (budget >= 0)
    assert other.met


def test_a_promise_without_a_budget_is_spent_by_the_first_that_broke_it() -> None:
    whole = TierPolicy("t0", slo_objectives=(SloObjective(SloMetric.END_TO_END, 1.0, 100.0),))
    (promise,) = promises_of("a/b", [whole], {T0_END: Kept(1000, 999)}, None)
    assert (promise.met, promise.budget_left_percent) == (False, LOWEST_BUDGET_PERCENT)


def condition(promises: tuple[Promise, ...], *, of_tier: bool = False) -> tuple[Any, Any, str]:
    (found,) = slo_finding(promises, RUNBOOKS, of_tier=of_tier)
    return found.status, found.reason, found.message


def test_a_missed_objective_is_named_with_what_was_promised_and_where_to_look() -> None:
    missed = told({T0_FIRST: (1000, 987), T0_END: (1000, 1000)})
    status, reason, message = condition(missed)
    assert (status, reason) == (ConditionStatus.FALSE, Reason.OBJECTIVE_MISSED)
    assert message == (
        "TimeToFirstToken of tier t0: 98.7 percent within 2 s since the sidecars started, 99.5 are "
        "promised; `tidegate explain NAMESPACE/TENANT` says why; "
        "https://example.com/runbooks/error-budget-burn.md"
    )
    in_window = told({}, left({T0_FIRST: -2.0, T0_END: 1.0}))
    told_of_tier = condition(in_window, of_tier=True)[2]
    assert told_of_tier.startswith(
        "TimeToFirstToken in pool acme/chat: 98.5 percent within 2 s over 30d, 99.5 are promised"
    )


def test_it_says_how_many_were_refused_and_how_many_were_late() -> None:
    counts: Any = {T0_FIRST: (253, 71, 151), T0_END: (253, 253, 0)}
    since_start = condition(told(counts))[2]
    assert "t0: 28 percent within" in since_start  # of 28.0632
    assert "99.5 are promised (151 refused or failed, 31 late);" in since_start
    finer = TierPolicy("t0", slo_objectives=(SloObjective(SloMetric.END_TO_END, 1.0, 99.95),))
    missed = promises_of("a/b", [finer], {T0_END: Kept(100_000, 99_949)}, None)
    assert "99.94 percent within 1 s since the sidecars started, 99.95 are" in condition(missed)[2]
    in_window = condition(told(counts, left({T0_FIRST: -2.0, T0_END: 1.0})))[2]
    assert (
        "over 30d, 99.5 are promised (since the sidecars started 151 refused or failed, 31 late);"
    ) in in_window


def test_what_one_sidecar_does_not_tell_is_not_known_of_all() -> None:
    total = Kept()
    total.add(10, 5, 3)
    assert (total.refused, total.late) == (3, 2)
    total.add(10, 5, None)
    total.add(10, 5, 3)
    assert (total.requests, total.good, total.refused, total.late) == (30, 15, None, None)


def test_without_data_nobody_can_say() -> None:
    none = condition(told({}))
    assert none[:2] == (ConditionStatus.UNKNOWN, Reason.NO_REQUESTS)
    silent = condition(told({T0_FIRST: (9, 9)}, "Prometheus does not answer (OSError)"))
    assert silent == (
        ConditionStatus.UNKNOWN,
        Reason.PROMETHEUS_UNAVAILABLE,
        "acme/chat: Prometheus does not answer (OSError)",
    )
    # What nobody can say of one objective does not hide that another is missed.
    budgets = left({T0_FIRST: 0.5, T0_END: -1.0}, old=T0_FIRST)
    assert condition(told({}, budgets))[0] is ConditionStatus.FALSE
    assert condition(told({}, left({})))[1] is Reason.PROMETHEUS_UNAVAILABLE


def test_figures_go_on_since_the_start_where_prometheus_is_silent() -> None:
    promise, _ = told({T0_FIRST: (1000, 999)}, "Prometheus does not answer (OSError)")
    assert (promise.attained, promise.measured, promise.met) == (
        "99.9",
        Measured.SIDECAR_START,
        None,
    )


def test_what_is_kept_says_so_without_figures_that_change() -> None:
    some = condition(told({T0_FIRST: (9, 9)}))
    assert some[:2] == (ConditionStatus.TRUE, Reason.OBJECTIVES_MET)
    assert some[2] == "1 of 2 objectives are kept; no request counts for the others yet"
    every = told({T0_FIRST: (9, 9), T0_END: (9, 9)})
    assert condition(every)[2] == condition(told({T0_FIRST: (10, 10), T0_END: (10, 10)}))[2]
    assert slo_finding((), RUNBOOKS, of_tier=False) == []


def test_the_worst_is_that_with_the_least_budget_left_of_those_that_tell() -> None:
    good, bad = told({T0_FIRST: (1000, 1000)})[0], told({T0_FIRST: (1000, 990)})[0]
    unknown = told({})[0]
    assert worst([unknown, good, bad]) is bad
    assert worst([unknown, good]) is good
    assert worst([unknown]) is unknown
    assert kept([good]) != kept([bad])


def test_what_is_recorded_is_believed_while_it_is_whole_fresh_and_a_number() -> None:
    def vector(**values: float) -> list[dict[str, Any]]:
        return [
            {"metric": {"tier": name, "objective": "EndToEnd"}, "value": [0, value]}
            for name, value in values.items()
        ]

    nan = float("nan")
    one = vector(fresh=0.25, old=0.5, never=0.5, when=0.5, odd=nan, part=0.5)
    other = vector(fresh=0.75, old=0.5, never=0.5, when=0.5, odd=0.5)
    times = vector(fresh=900.0, old=700.0, when=nan, odd=999.0, part=999.0)
    found = recorded([one, other], times, 1000.0)
    assert found.of(("fresh", "EndToEnd")) == (0.25, 0.75)
    for tier, why in {
        "old": "what Prometheus has for EndToEnd of tier old is too old",
        "when": "what Prometheus has for EndToEnd of tier when is too old",
        "odd": "Prometheus has no number for EndToEnd of tier odd",
        **{tier: f"Prometheus has no series for EndToEnd of tier {tier}: it needs the pool's rules "
           "and metrics" for tier in ("never", "part", "none")},
    }.items():  # fmt: skip
        assert found.of((tier, "EndToEnd")) == why


def test_a_condition_turns_at_once_and_counts_at_its_pace() -> None:
    now = 0.0
    shown = SloMet(RUNBOOKS, 15.0, 60.0, clock=lambda: now)

    def message(good: int) -> str:
        found = shown.of_pool("acme/chat", told({T0_FIRST: (1000, good)}))
        assert found
        return found[0].message.split(" percent")[0]

    assert message(1000).startswith("1 of 2")
    assert message(990).endswith("99")
    now = 10.0
    assert message(980).endswith("99"), "not yet"
    now = 15.0
    assert message(980).endswith("98")
    now = 16.0
    assert message(1000).startswith("1 of 2"), "at once"
    shown.forget_pool("acme/chat")
    assert shown.of_pool("acme/chat", None) is None
    assert shown.of_pool("acme/chat", ()) == []


def test_a_tier_waits_for_word_of_all_its_pools() -> None:
    shown = SloMet(RUNBOOKS, 15.0, 60.0, clock=lambda: 0.0)
    missed = told({T0_FIRST: (1000, 900)})
    assert shown.of_tier("t0", [missed, None], partly=False) is None
    found = shown.of_tier("t0", [missed, None], partly=True)
    assert found
    assert found[0].status is ConditionStatus.FALSE
    assert shown.of_tier("t3", [missed], partly=False) == []
