"""Which request goes next: the acceptance scenarios of the core, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.scheduling.contracts import SchedulingMode
from tidegate.scheduling.request import Request, Usage
from tidegate.scheduling.scheduler import Scheduler


def submit(scheduler: Scheduler, requests: list[Request], now: float = 0.0) -> None:
    for request in requests:
        assert scheduler.submit(request, now) is None


def dispatch(scheduler: Scheduler, count: int, now: float = 1.0) -> list[Request]:
    """The next ``count`` requests, each ended at once as it was predicted."""
    order = []
    for _ in range(count):
        request = scheduler.next(now)
        assert request is not None
        order.append(request)
        usage = Usage(request.prompt_tokens, request.max_output_tokens)
        scheduler.finish(request.id, usage, now)
    return order


def test_five_requests_of_b_do_not_wait_behind_two_thousand_of_a(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy([build.tier()], {"a": "standard", "b": "standard"}), 0.0)
    submit(scheduler, [build.request(f"a{i}", "a") for i in range(2000)])
    for _ in range(50):
        assert scheduler.next(0.5) is not None
    submit(scheduler, [build.request(f"b{i}", "b") for i in range(5)], 1.0)
    order = [request.tenant for request in dispatch(scheduler, 20)]
    last_of_b = max(i for i, tenant in enumerate(order) if tenant == "b")
    assert order.count("b") == 5
    assert order[:last_of_b].count("a") <= 6


@pytest.mark.parametrize(("unit", "quantum"), [("Requests", 1), ("Tokens", 2048), ("Tokens", 1)])
def test_weights_give_shares(build: SimpleNamespace, unit: str, quantum: int) -> None:
    tenants = {"a": {"weight": 1}, "b": {"weight": 3}}
    scheduler = Scheduler(build.policy([build.tier(unit=unit, quantum=quantum)], tenants), 0.0)
    submit(scheduler, [build.request(f"a{i}", "a", 50, 30) for i in range(4000)])
    submit(scheduler, [build.request(f"b{i}", "b", 50, 30) for i in range(4000)])
    order = dispatch(scheduler, 2000)
    share = sum(request.tenant == "b" for request in order) / len(order)
    assert share == pytest.approx(0.75, rel=0.05)


def test_one_huge_request_queued_gets_its_share_plus_one_request(build: SimpleNamespace) -> None:
    policy = build.policy([build.tier(unit="Tokens", quantum=2048)], {"huge": {}, "small": {}})
    scheduler = Scheduler(policy, 0.0)
    submit(scheduler, [build.request(f"s{i}", "small", 100, 100) for i in range(4000)])
    submit(scheduler, [build.request("h0", "huge", 10_000, 10_000)])
    served = {"huge": 0, "small": 0}
    for number in range(1, 3000):
        (request,) = dispatch(scheduler, 1)
        served[request.tenant] += request.prompt_tokens + request.max_output_tokens
        if request.tenant == "huge":
            submit(scheduler, [build.request(f"h{number}", "huge", 10_000, 10_000)], 1.0)
        share = sum(served.values()) / 2
        assert served["huge"] <= share + 20_000
    assert served["huge"] >= sum(served.values()) / 2 - 20_000


def test_a_tenant_that_used_idle_capacity_is_not_punished(build: SimpleNamespace) -> None:
    policy = build.policy([build.tier(unit="Tokens", quantum=100)], {"a": {}, "b": {}})
    scheduler = Scheduler(policy, 0.0)
    submit(scheduler, [build.request(f"a{i}", "a", 50, 50) for i in range(1000)])
    dispatch(scheduler, 500)
    submit(scheduler, [build.request(f"b{i}", "b", 50, 50) for i in range(400)], 1.0)
    order = [request.tenant for request in dispatch(scheduler, 100)]
    assert order.count("a") >= 48


def test_over_prediction_while_alone_is_no_claim_later(build: SimpleNamespace) -> None:
    """A's outputs were predicted far too long while nobody else waited: its refunds, which come
    when B waits too, must not put it before B for all that it had been charged too much."""
    policy = build.policy([build.tier(unit="Tokens", quantum=100)], {"a": {}, "b": {}})
    scheduler = Scheduler(policy, 0.0)
    submit(scheduler, [build.request(f"a{i}", "a", 10, 10_000) for i in range(400)])
    flying = [scheduler.next(0.0) for _ in range(200)]
    submit(scheduler, [build.request(f"b{i}", "b", 10, 10_000) for i in range(400)], 1.0)
    for request in flying:
        assert request is not None
        scheduler.finish(request.id, Usage(10, 1), 1.0)
    order = []
    for _ in range(60):
        request = scheduler.next(2.0)
        assert request is not None
        order.append(request.tenant)
        scheduler.finish(request.id, Usage(10, 1), 2.0)
    assert order.count("b") >= 24


def test_a_tenant_at_its_limit_in_flight_is_skipped_and_keeps_its_turn(
    build: SimpleNamespace,
) -> None:
    policy = build.policy([build.tier(max_in_flight=2)], {"a": {}, "b": {}})
    scheduler = Scheduler(policy, 0.0)
    submit(scheduler, [build.request(f"a{i}", "a") for i in range(10)])
    assert [scheduler.next(0.0), scheduler.next(0.0)] != [None, None]
    assert scheduler.next(0.0) is None
    assert not scheduler.has_work()
    submit(scheduler, [build.request(f"b{i}", "b") for i in range(10)], 1.0)
    assert scheduler.has_work()
    assert [scheduler.next(1.0).tenant, scheduler.next(1.0).tenant] == ["b", "b"]  # type: ignore[union-attr]
    assert scheduler.next(1.0) is None
    scheduler.finish("a0", Usage(100, 100), 2.0)
    scheduler.finish("b0", Usage(100, 100), 2.0)
    after = scheduler.next(2.0)
    assert after is not None
    assert {after.tenant, scheduler.next(2.0).tenant} == {"a", "b"}  # type: ignore[union-attr]


def test_within_a_tenant_priority_then_deadline_then_arrival(build: SimpleNamespace) -> None:
    scheduler = Scheduler(build.policy(tenants={"a": {}}), 0.0)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("late", {"deadline": 90.0}),
        ("first", {}),
        ("second", {}),
        ("early", {"deadline": 80.0}),
        ("low", {"priority": -1, "deadline": 50.0}),
        ("high", {"priority": 1}),
    ]
    submit(scheduler, [build.request(id, "a", **fields) for id, fields in rows])
    order = [request.id for request in dispatch(scheduler, 6)]
    assert order == ["high", "early", "late", "first", "second", "low"]


def test_tiers_by_priority_negative_ones_last(build: SimpleNamespace) -> None:
    tiers = [build.tier("batch", priority=-5), build.tier("paid", priority=10), build.tier("free")]
    tenants = {"x": "batch", "y": "paid", "z": "free"}
    scheduler = Scheduler(build.policy(tiers, tenants), 0.0)
    for name in tenants:
        submit(scheduler, [build.request(f"{name}{i}", name) for i in range(3)])
    order = [request.tenant for request in dispatch(scheduler, 9)]
    assert order == ["y"] * 3 + ["z"] * 3 + ["x"] * 3


def test_a_tier_gets_its_reservation_from_a_higher_one(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3", reserved_percent=20)]
    scheduler = Scheduler(build.policy(tiers, {"paid": "t0", "free": "t3"}), 0.0)
    for name in ("paid", "free"):
        submit(scheduler, [build.request(f"{name}{i}", name) for i in range(2000)])
    order = [request.tenant for request in dispatch(scheduler, 1000)]
    for start in range(0, 900, 50):
        assert order[start : start + 100].count("free") >= 19
    assert order.count("free") <= 202


def test_a_tier_returning_from_idle_has_no_claim_to_the_past(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3", reserved_percent=20)]
    scheduler = Scheduler(build.policy(tiers, {"paid": "t0", "free": "t3"}), 0.0)
    submit(scheduler, [build.request(f"p{i}", "paid") for i in range(2000)])
    dispatch(scheduler, 1000)
    submit(scheduler, [build.request(f"f{i}", "free") for i in range(500)], 1.0)
    order = [request.tenant for request in dispatch(scheduler, 100)]
    assert 19 <= order.count("free") <= 21


def test_a_limit_holds_while_others_wait_and_only_then(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1, max_percent=60), build.tier("t3")]
    scheduler = Scheduler(build.policy(tiers, {"paid": "t0", "free": "t3"}), 0.0)
    submit(scheduler, [build.request(f"p{i}", "paid") for i in range(2000)])
    assert {request.tenant for request in dispatch(scheduler, 300)} == {"paid"}
    submit(scheduler, [build.request(f"f{i}", "free") for i in range(2000)], 1.0)
    order = [request.tenant for request in dispatch(scheduler, 1000)]
    assert order.count("paid") / 1000 == pytest.approx(0.6, rel=0.02)


def test_equal_priorities_share_evenly(build: SimpleNamespace) -> None:
    tiers = [build.tier("one"), build.tier("other")]
    scheduler = Scheduler(build.policy(tiers, {"x": "one", "y": "other"}), 0.0)
    submit(scheduler, [build.request(f"x{i}", "x", 300, 100) for i in range(2000)])
    dispatch(scheduler, 500)
    submit(scheduler, [build.request(f"y{i}", "y", 100, 100) for i in range(2000)], 1.0)
    order = [request.tenant for request in dispatch(scheduler, 600)]
    assert order.count("y") == pytest.approx(2 * order.count("x"), rel=0.05)


@pytest.mark.parametrize("mode", [SchedulingMode.FIRST_COME_FIRST_SERVED, SchedulingMode.SHADOW])
def test_arrival_order_is_one_queue_and_hot_both_ways(
    build: SimpleNamespace, mode: SchedulingMode
) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3")]
    tenants = {"a": "t3", "b": "t0"}
    tidegate = build.policy(tiers, tenants)
    arrival = build.policy(tiers, tenants, generation=2, scheduling_mode=mode)
    scheduler = Scheduler(tidegate, 0.0)
    submitted = []
    for i in range(30):
        name = "ab"[i % 3 == 2]
        submitted.append(build.request(f"{name}{i}", name, priority=i % 2))
    submit(scheduler, submitted)
    assert scheduler.apply_policy(arrival, 1.0) == []
    order = [request.id for request in dispatch(scheduler, 12)]
    assert order == [request.id for request in submitted[:12]]
    assert scheduler.apply_policy(tidegate, 2.0) == []
    order = [request.tenant for request in dispatch(scheduler, 18)]
    assert order == ["b"] * 6 + ["a"] * 12
    assert scheduler.queued() == scheduler.in_flight() == 0


def test_what_arrival_order_gave_is_not_held_against_a_tenant(build: SimpleNamespace) -> None:
    tidegate = build.policy([build.tier(unit="Tokens", quantum=200)], {"a": {}, "b": {}})
    arrival = build.policy(
        [build.tier(unit="Tokens", quantum=200)],
        {"a": {}, "b": {}},
        generation=2,
        scheduling_mode=SchedulingMode.FIRST_COME_FIRST_SERVED,
    )
    scheduler = Scheduler(arrival, 0.0)
    submit(scheduler, [build.request(f"a{i}", "a") for i in range(1000)])
    submit(scheduler, [build.request(f"b{i}", "b") for i in range(500)])
    assert {request.tenant for request in dispatch(scheduler, 500)} == {"a"}
    scheduler.apply_policy(tidegate, 1.0)
    order = [request.tenant for request in dispatch(scheduler, 100)]
    assert 48 <= order.count("a") <= 52


def test_shadow_serves_by_arrival_and_counts_where_fair_order_differs(
    build: SimpleNamespace,
) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3")]
    policy = build.policy(tiers, {"a": "t3", "b": "t0"}, scheduling_mode=SchedulingMode.SHADOW)
    scheduler = Scheduler(policy, 0.0)
    requests = [build.request(f"{name}{i}", name) for name in "ab" for i in range(10)]
    submit(scheduler, requests)
    assert [request.id for request in dispatch(scheduler, 20)] == [one.id for one in requests]
    assert (scheduler.shadow.dispatches, scheduler.shadow.other_tenant) == (20, 10)


def test_a_closed_tier_is_passed_over_and_keeps_its_claim(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3", reserved_percent=20)]
    scheduler = Scheduler(build.policy(tiers, {"paid": "t0", "free": "t3"}), 0.0)
    for name in ("paid", "free"):
        submit(scheduler, [build.request(f"{name}{i}", name) for i in range(10)])
    assert scheduler.next(0.0, {"t0", "t3"}) is None
    assert scheduler.has_work()
    assert scheduler.peek(0.0, {"t3"}).tenant == "paid"  # type: ignore[union-attr]
    order = [scheduler.next(0.0, {"t3"}).tenant for _ in range(3)]  # type: ignore[union-attr]
    assert order == ["paid"] * 3
    assert scheduler.next(0.0, {"t0"}).tenant == "free"  # type: ignore[union-attr]


def test_in_arrival_order_the_first_waits_for_its_gate(build: SimpleNamespace) -> None:
    policy = build.policy(
        [build.tier("t0"), build.tier("t3")],
        {"a": "t3", "b": "t0"},
        scheduling_mode=SchedulingMode.FIRST_COME_FIRST_SERVED,
    )
    scheduler = Scheduler(policy, 0.0)
    submit(scheduler, [build.request("a0", "a"), build.request("b0", "b")])
    assert scheduler.next(0.0, {"t3"}) is None
    assert scheduler.next(0.0, {"t0"}).id == "a0"  # type: ignore[union-attr]
