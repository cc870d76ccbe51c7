"""Why a request waits: positions, who goes before, and that this agrees with the decisions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import (
    BetweenTiers,
    Hold,
    LimitWindow,
    NoForecast,
    RateLimit,
    SchedulingMode,
    TierBefore,
)
from tidegate.scheduling.limit_window import Clocks
from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import Scheduler


def scheduler_of(build: SimpleNamespace, **policy: object) -> Scheduler:
    tiers = [build.tier("gold", priority=10), build.tier("free")]
    tenants = {"a": "gold", "b": "gold", "c": "free"}
    return Scheduler(build.policy(**{"tiers": tiers, "tenants": tenants, **policy}), 0.0)


def test_a_position_counts_its_tenants_requests_by_priority_deadline_and_arrival(
    build: SimpleNamespace,
) -> None:
    scheduler = scheduler_of(build)
    for name, fields in (
        ("plain", {}),
        ("urgent", {"priority": 5}),
        ("soon", {"deadline": 50.0}),
        ("last", {}),
    ):
        scheduler.submit(build.request(name, "a", **fields), 1.0)
    positions = {
        name: scheduler.standings.of_request(name, 2.0).position  # type: ignore[union-attr]
        for name in ("plain", "urgent", "soon", "last")
    }
    assert positions == {"urgent": 1, "soon": 2, "plain": 3, "last": 4}
    order = [request.id for _ in range(4) if (request := scheduler.next(2.0))]
    assert order == sorted(positions, key=lambda name: positions[name])
    assert scheduler.standings.of_request("plain", 2.0) is None  # it runs
    assert scheduler.standings.of_request("unknown", 2.0) is None


def test_who_stands_before_it_and_why(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(
        build,
        tiers=[build.tier("gold", priority=10), build.tier("free", reserved_percent=20)],
    )
    for number in range(3):
        scheduler.submit(build.request(f"a{number}", "a"), 0.0)
    scheduler.submit(build.request("b0", "b"), 0.0)
    scheduler.submit(build.request("c0", "c"), 0.0)
    standing = scheduler.standings.of_request("b0", 0.0)
    assert standing is not None
    assert [tenant.name for tenant in standing.next_tenants] == ["a"]
    assert [(t.name, t.why, t.queued) for t in standing.tiers_ahead] == [
        ("free", TierBefore.RESERVATION, 1)
    ]
    assert standing.tenant_share_percent == 50
    first = scheduler.next(0.0)
    assert first is not None
    assert first.id == "c0"  # the reservation is paid now; the priority is what remains
    standing = scheduler.standings.of_request("b0", 0.0)
    assert standing is not None
    assert standing.tiers_ahead == ()
    scheduler.submit(build.request("c1", "c"), 0.0)
    behind = scheduler.standings.of_request("c1", 0.0)
    assert behind is not None
    assert [(t.name, t.why) for t in behind.tiers_ahead] == [("gold", TierBefore.PRIORITY)]


def test_what_else_holds_it(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build, tiers=[build.tier("gold", max_in_flight=1), build.tier("free")])
    scheduler.submit(build.request("first", "a"), 0.0)
    standing = scheduler.standings.of_request("first", 0.0)
    assert standing is not None
    assert standing.hold is Hold.ENGINE
    scheduler.next(0.0)
    scheduler.submit(build.request("second", "a"), 0.0)
    standing = scheduler.standings.of_request("second", 0.0)
    assert standing is not None
    assert standing.hold is Hold.IN_FLIGHT_LIMIT
    assert standing.tenant_running == standing.tenant_max_in_flight == 1


def test_in_arrival_order_only_what_came_before_counts(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build, scheduling_mode=SchedulingMode.FIRST_COME_FIRST_SERVED)
    scheduler.submit(build.request("c0", "c"), 0.0)
    scheduler.submit(build.request("a0", "a"), 0.0)
    scheduler.submit(build.request("a1", "a", priority=9), 0.0)
    standing = scheduler.standings.of_request("a1", 0.0)
    assert standing is not None
    assert standing.ahead_in_arrival_order == 2
    assert standing.position == 2
    assert (standing.tiers_ahead, standing.tenants_ahead) == ((), 0)


def test_a_start_is_predicted_from_what_goes_before(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build)
    for number in range(6):
        scheduler.submit(build.request(f"a{number}", "a"), 0.0)
    last = scheduler.standings.of_request("a5", 0.0)
    assert last is not None
    assert last.starts_in_seconds is None  # nothing was measured
    for second in (1.0, 2.0, 3.0):
        request = scheduler.next(second)
        assert request is not None
        scheduler.finish(request.id, Usage(100, 10), second)
    near, far = (scheduler.standings.of_request(f"a{number}", 3.0) for number in (3, 5))
    assert near is not None
    assert far is not None
    assert near.starts_in_seconds is not None
    assert far.starts_in_seconds == pytest.approx(3 * near.starts_in_seconds)


def test_what_waits_for_the_engine_alone_is_predicted_no_moment(build: SimpleNamespace) -> None:
    policy = build.policy(tenants={"a": "standard", "b": "standard"})
    scheduler = Scheduler(policy, 0.0, timed=True)
    for number in range(6):
        scheduler.submit(build.request(f"a{number}", "a"), 0.0)
    for second in (1.0, 2.0, 3.0):
        request = scheduler.next(second)
        assert request is not None
        scheduler.finish(request.id, Usage(100, 10), second)
    scheduler.submit(build.request("b0", "b"), 3.0)
    peeked = scheduler.peek(3.0)
    assert peeked is not None
    assert peeked.id == "b0"
    for name, hold in (("b0", Hold.ENGINE), ("a3", None)):  # a3 waits for one that owes nothing
        first = scheduler.standings.of_request(name, 3.0)
        assert first is not None
        assert first.hold is hold
        assert first.starts_in_seconds is first.finishes_in_seconds is None
        assert first.no_forecast is NoForecast.ENGINE
    last = scheduler.standings.of_request("a5", 3.0)
    assert last is not None
    assert last.starts_in_seconds is not None
    assert last.starts_in_seconds > 0.5
    assert last.no_forecast is None


def test_limits_show_what_was_used(build: SimpleNamespace) -> None:
    limit = RateLimit(name="minute", per=LimitWindow.MINUTE, requests=10, tokens=5_000)
    scheduler = scheduler_of(
        build, tiers=[build.tier("gold", rate_limits=(limit,))] * 1, tenants={"a": "gold"}
    )
    assert scheduler.standings.limits_of("a", Clocks(0.0, 0.0))[0].requests_used == 0
    request = build.request("r", "a", prompt=100, output=50)
    assert scheduler.submit(request, 0.0, 0.0) is None
    scheduler.next(0.0)
    scheduler.progress("r", 1, 0.5)
    scheduler.finish("r", Usage(90, 20), 1.0)
    (use,) = scheduler.standings.limits_of("a", Clocks(1.0, 1.0))
    assert (use.requests_used, use.tokens_used, use.tokens) == (1, 110, 5_000)
    assert request.billed_tokens == 110
    assert scheduler.standings.limits_of("nobody", Clocks(1.0, 1.0)) == ()


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 5), st.integers(1, 2_000)),
        st.tuples(st.just("next"), st.just(0), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 5), st.integers(1, 400)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(moves=MOVES, weighted=st.booleans())
def test_nothing_stands_before_the_one_that_goes_next(
    build: SimpleNamespace, moves: list[tuple[str, int, int]], weighted: bool
) -> None:
    tiers = [
        build.tier("one", unit="Tokens", quantum=500, priority=5, max_percent=60),
        build.tier("two", unit="Tokens", quantum=500, priority=5, reserved_percent=20, weight=3),
        build.tier("three", unit="Tokens", quantum=500, reserved_percent=10, max_percent=50),
    ]
    names = [f"t{number}" for number in range(6)]
    scheduler = Scheduler(
        build.policy(
            tiers=tiers,
            tenants={name: tiers[number % 3].name for number, name in enumerate(names)},
            between_tiers=BetweenTiers.WEIGHTED if weighted else BetweenTiers.STRICT,
        ),
        0.0,
    )
    running: list[str] = []
    for now, (move, which, size) in enumerate(moves):
        if move == "submit":
            scheduler.submit(build.request(str(now), names[which], size, 50), float(now))
        elif move == "next" and (request := scheduler.next(float(now))):
            running.append(request.id)
        elif move == "finish" and running:
            scheduler.finish(running.pop(which % len(running)), Usage(size, size), float(now))
        waiting = [
            scheduler.standings.of_request(str(moved), float(now)) for moved in range(now + 1)
        ]
        first = scheduler.peek(float(now))
        assert (first is None) == (not any(waiting))
        if first is not None:
            standing = waiting[int(first.id)]
            assert standing is not None
            assert (standing.position, standing.tiers_ahead) == (1, ())
            assert (standing.hold, standing.tenants_ahead) == (Hold.ENGINE, 0)
