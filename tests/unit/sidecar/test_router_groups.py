"""Which engine group serves a request, what moves, and that neither flaps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_sidecar.router.groups import FULL_FROM, Groups, Placement, Route
from tidegate_sidecar.router.steadiness import (
    FIRST_WAIT_SECONDS,
    LASTING_SECONDS,
    LONGEST_WAIT_SECONDS,
    REST_SECONDS,
    Comeback,
    Level,
)

from tidegate.scheduling.contracts import (
    FALLBACK_GROUP,
    POLICY_VERSION,
    EngineGroupPolicy,
    ModelPolicy,
    Policy,
    Spill,
    TierPolicy,
)

HOMES = {"talk": "chat", "script": "code", "misc": "plain"}
SEATS = 10


@dataclass
class Pod:
    name: str
    group: str
    in_hand: int = 0
    queued: int = 0
    congested: bool = False
    seats: int | None = SEATS

    @property
    def load(self) -> float:
        return 1.0 if self.congested else self.in_hand / SEATS


def pod(group: str, in_hand: int = 0, queued: int = 0, number: int = 0) -> Pod:
    return Pod(f"{group}-{number}", group, in_hand + queued, queued, queued > 0)


def policy(
    stays: frozenset[str] = frozenset(), fallback: tuple[str, ...] | None = ("talk",)
) -> Policy:
    return Policy(
        POLICY_VERSION,
        1,
        "ns/pool",
        ModelPolicy("m"),
        tiers=tuple(TierPolicy(tier) for tier in (*HOMES, "stray")),
        engine_groups=tuple(
            EngineGroupPolicy(group, (tier,), Spill.NEVER if group in stays else Spill.WHEN_IDLE)
            for tier, group in HOMES.items()
        ),
        fallback=None if fallback is None else EngineGroupPolicy(FALLBACK_GROUP, fallback),
    )


def groups(stays: frozenset[str] = frozenset()) -> Groups:
    made = Groups()
    made.apply(policy(stays))
    return made


def placed(among: Groups, tier: str, now: float, *pods: Pod) -> tuple[Placement, set[str]] | None:
    """Where a request of the tier goes, and the groups of the pods that it may go to."""
    among.look(pods, now)
    route = among.route(tier, pods)
    return None if route is None else (route.placement, {one.group for one in route.pods})


def test_a_tier_is_served_at_home_and_one_without_a_home_anywhere() -> None:
    among = groups()
    all_of_them = [pod(group) for group in HOMES.values()]
    for tier, home in HOMES.items():
        assert placed(among, tier, 0.0, *all_of_them) == (Placement.HOME, {home})
    assert placed(among, "stray", 0.0, *all_of_them) == (Placement.HOME, set(HOMES.values()))


def test_a_busy_home_spills_to_idle_capacity_alone() -> None:
    among = groups()
    home = pod("chat", in_hand=SEATS)
    idle, half, full = pod("code", 1), pod("plain", 6), pod("plain", 8)
    assert placed(among, "talk", 0.0, home, idle, half) == (Placement.SPILLED, {"code", "plain"})
    assert placed(among, "talk", 1.0, home, idle, full) == (Placement.SPILLED, {"code"})
    assert placed(among, "talk", 1.5, home, idle, half) == (
        Placement.SPILLED,
        {"code"},
    ), "plain was full and has not half of its seats free yet"
    assert placed(among, "talk", 2.0, home, pod("code", 9), full) == (Placement.HOME, {"chat"})
    second = pod("chat", in_hand=3, number=1)
    assert placed(among, "talk", 5.0, home, second, idle) == (Placement.HOME, {"chat"})


def test_a_group_that_keeps_its_requests_keeps_them_while_it_has_a_pod() -> None:
    among = groups(stays=frozenset({"chat"}))
    assert placed(among, "talk", 0.0, pod("chat", 90, 50), pod("code")) == (
        Placement.HOME,
        {"chat"},
    )
    assert placed(among, "talk", 1.0, pod("code")) == (Placement.AWAY, {"code"})


def test_a_home_that_went_again_is_trusted_after_a_while_and_only_where_there_is_better() -> None:
    among, idle = groups(), pod("code")
    home = Placement.HOME, {"chat"}
    assert placed(among, "talk", 0.0, pod("chat"), idle) == home
    assert placed(among, "talk", 1.0, idle) == (Placement.AWAY, {"code"})
    # A return after a short life waits; where others are full it does not.
    assert placed(among, "talk", 2.0, pod("chat"), idle) == (Placement.AWAY, {"code"})
    assert placed(among, "talk", 2.5, pod("chat"), pod("code", 9)) == home
    assert placed(among, "talk", 2.0 + FIRST_WAIT_SECONDS, pod("chat"), idle) == home


def test_the_fallback_serves_its_tiers_when_nobody_else_does_and_gives_them_back_at_once() -> None:
    among, spare = groups(), pod(FALLBACK_GROUP)
    long = LASTING_SECONDS
    assert placed(among, "talk", 0.0, pod("chat"), spare) == (Placement.HOME, {"chat"})
    assert placed(among, "talk", long, pod("plain"), spare) == (Placement.AWAY, {"plain"})
    assert placed(among, "talk", long + 1, spare) == (Placement.FALLBACK, {FALLBACK_GROUP})
    assert placed(among, "misc", long + 1, spare) is None
    assert placed(among, "talk", long + 1) is None
    assert placed(among, "talk", long + 2, pod("plain"), spare) == (Placement.AWAY, {"plain"})
    # It is gone again: the next return must last. Who has no other way goes there at once.
    assert placed(among, "talk", long + 3, spare) == (Placement.FALLBACK, {FALLBACK_GROUP})
    assert placed(among, "talk", long + 4, pod("plain"), spare) == (
        Placement.FALLBACK,
        {FALLBACK_GROUP},
    )
    assert placed(among, "misc", long + 4, pod("plain"), spare) == (Placement.HOME, {"plain"})
    assert placed(among, "talk", long + 4, pod("plain")) == (Placement.AWAY, {"plain"})
    later = long + 4 + FIRST_WAIT_SECONDS
    assert placed(among, "talk", later, pod("plain"), spare) == (Placement.AWAY, {"plain"})


def test_a_pool_without_groups_has_one_home_and_its_fallback() -> None:
    among = Groups()
    among.apply(
        Policy(
            POLICY_VERSION,
            1,
            "ns/pool",
            ModelPolicy("m"),
            tiers=(TierPolicy("talk"),),
            fallback=EngineGroupPolicy(FALLBACK_GROUP, ("talk",)),
        )
    )
    main, spare = pod("main", 99, 99), pod(FALLBACK_GROUP)
    assert placed(among, "talk", 0.0, main, spare) == (Placement.HOME, {"main"})
    assert placed(among, "talk", 1.0, spare) == (Placement.FALLBACK, {FALLBACK_GROUP})


def test_what_waits_moves_to_where_there_is_room() -> None:
    among = groups()
    busy, free = pod("chat", SEATS, queued=30), pod("chat", number=1)
    among.look([busy, free], 0.0)
    assert among.to_hand_back([busy, free]) == {"chat-0": 15}, "evened out within its group"
    other, third = pod("code", 2), pod("plain", 7)
    among.look([busy, other, third], 1.0)
    room = int(FULL_FROM * SEATS) * 2 - 2 - 7
    assert among.to_hand_back([busy, other, third]) == {"chat-0": room}
    assert groups_at_rest(frozenset({"chat"}), busy, other) == {}
    assert groups_at_rest(frozenset(), busy, pod("code", SEATS, queued=4)) == {}


def test_an_engine_of_one_seat_takes_one_that_waits() -> None:
    among, busy, single = groups(), pod("chat", SEATS, queued=3), pod("code")
    single.seats = 1
    among.look([busy, single], 0.0)
    assert among.to_hand_back([busy, single]) == {"chat-0": 1}
    single.in_hand = 1
    assert among.to_hand_back([busy, single]) == {}


def groups_at_rest(stays: frozenset[str], *pods: Pod) -> dict[str, int]:
    among = groups(stays)
    among.look(pods, 0.0)
    return among.to_hand_back(pods)


def test_the_fallback_hands_all_back_once_a_group_serves() -> None:
    among, spare = groups(), pod(FALLBACK_GROUP, SEATS, queued=7)
    among.look([spare], 0.0)
    assert among.to_hand_back([spare]) == {}
    among.look([spare, pod("plain")], 1.0)
    assert among.to_hand_back([spare, pod("plain")]) == {f"{FALLBACK_GROUP}-0": 7}


def test_seats_that_nobody_knows_are_busy_by_their_queue_and_idle_when_empty() -> None:
    among = groups()
    home, other = pod("chat", 500), pod("code")
    home.seats = other.seats = None
    assert placed(among, "talk", 0.0, home, other) == (Placement.HOME, {"chat"})
    home.congested = True
    assert placed(among, "talk", 1.0, home, other) == (Placement.SPILLED, {"code"})


# --- whatever comes

GROUPS = (*HOMES.values(), FALLBACK_GROUP)
moments = st.tuples(
    st.floats(0.01, 3.0),
    st.lists(
        st.builds(
            Pod,
            name=st.just("p"),
            group=st.sampled_from(GROUPS),
            in_hand=st.integers(0, 12),
            congested=st.booleans(),
        ),
        max_size=6,
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(moments, min_size=1, max_size=12), st.sets(st.sampled_from([*HOMES.values()])))
def test_nobody_is_refused_who_may_be_served_and_nobody_leaves_home_without_reason(
    steps: list[tuple[float, list[Pod]]], stays: set[str]
) -> None:
    among, now = groups(frozenset(stays)), 0.0
    for seconds, serving in steps:
        now += seconds
        among.look(serving, now)
        for tier, home in HOMES.items():
            route = among.route(tier, serving)
            usable = [p for p in serving if p.group != FALLBACK_GROUP or tier == "talk"]
            assert (route is not None) == bool(usable)
            if route is not None:
                check(route, tier, home, serving, home in stays)


def check(route: Route[Pod], tier: str, home: str, serving: list[Pod], stays: bool) -> None:
    there = [p for p in serving if p.group == home]
    served_by = {p.group for p in route.pods}
    assert route.pods
    if route.placement is Placement.HOME:
        assert served_by == {home}
    elif route.placement is Placement.FALLBACK:
        assert served_by == {FALLBACK_GROUP}
        assert tier == "talk"
    else:
        assert not served_by & {home, FALLBACK_GROUP}
        assert not (stays and there), "it may not leave"
    if route.placement is Placement.SPILLED:
        assert there
    if there and route.placement in (Placement.SPILLED, Placement.AWAY):
        assert all(p.load < FULL_FROM for p in route.pods), "nothing is taken from those at home"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(0.0, 1.5)), max_size=200))
def test_a_level_rises_at_most_once_in_its_rest(steps: list[tuple[float, float]]) -> None:
    level, now, rises = Level(1.0, 0.8), 0.0, []
    for seconds, load in steps:
        now += seconds
        was = level.high
        if level.look(load, now) and not was:
            rises.append(now)
        assert level.high or load < 1.0, "it rises at once"
        assert not (was and not level.high and load > 0.8), "between the two it stays as it is"
    assert all(b - a >= REST_SECONDS for a, b in pairwise(rises))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.booleans()), max_size=200))
def test_who_flaps_returns_ever_more_rarely(steps: list[tuple[float, bool]]) -> None:
    comeback, now, returns = Comeback(), 0.0, []
    for seconds, present in steps:
        now += seconds
        was = comeback.used
        if comeback.look(present, now) and not was:
            returns.append(now)
        assert present or not comeback.used
    for number, (a, b) in enumerate(pairwise(returns)):
        # Of lives that were short: the n-th return waits twice as long as the one before.
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0**number)
        assert b - a >= min(wait, LASTING_SECONDS) - 1e-6 or returns_lasted(returns[: number + 2])


def returns_lasted(returns: list[float]) -> bool:
    """Whether a life may have been long enough to begin anew."""
    return any(b - a >= LASTING_SECONDS for a, b in pairwise(returns))


def test_the_first_return_is_at_once_and_a_lasting_one_forgives() -> None:
    comeback = Comeback()
    assert comeback.look(True, 0.0)
    assert not comeback.look(False, LASTING_SECONDS)
    assert comeback.look(True, LASTING_SECONDS + 0.1)
    comeback.look(False, LASTING_SECONDS + 0.2)
    assert not comeback.look(True, LASTING_SECONDS + 0.3)
    assert comeback.look(True, LASTING_SECONDS + 0.3 + FIRST_WAIT_SECONDS)
    late = 2 * LASTING_SECONDS + 1.0 + FIRST_WAIT_SECONDS
    assert not comeback.look(False, late)
    assert comeback.look(True, late)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_a_main_pod_that_flaps_for_ten_minutes_costs_few_changes(seconds: float) -> None:
    among, spare, main = groups(), pod(FALLBACK_GROUP), pod("chat")
    changes, last, now, there = 0, None, 0.0, True
    while now < 600:
        where = placed(among, "talk", now, *([main, spare] if there else [spare]))
        assert where is not None
        changes += last is not None and where != last
        last, now, there = where, now + seconds, not there
    assert changes <= 2 * (7 + 600 / LONGEST_WAIT_SECONDS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 0.4), st.integers(0, 15)), max_size=150))
def test_a_home_begins_to_spill_at_most_once_in_its_rest(steps: list[tuple[float, int]]) -> None:
    among, idle, now, begun, last = groups(), pod("code"), 0.0, [], Placement.HOME
    for seconds, in_hand in steps:
        now += seconds
        where = placed(among, "talk", now, pod("chat", in_hand), idle)
        assert where is not None
        if where[0] is Placement.SPILLED and last is Placement.HOME:
            begun.append(now)
        last = where[0]
        assert in_hand < SEATS or last is Placement.SPILLED, "it never waits for that"
    assert all(b - a >= REST_SECONDS for a, b in pairwise(begun))
