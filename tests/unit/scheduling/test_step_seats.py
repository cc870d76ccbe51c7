"""Seats that are kept free for protected tiers: how many, for whom, and for how long."""

from dataclasses import replace

from support.step_host import T0, T3, StepHost, step_policy

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_seats import SeatHeadroom, headroom


def found_none(load: float, seats: int) -> float:
    """Of a birth-and-death chain, state by state: the part of arrivals that find no seat."""
    weights = [load**used for used in range(seats + 1)]
    return weights[-1] / sum(weights)


def test_as_many_are_kept_as_leave_one_of_twenty_to_find_none() -> None:
    for percent in range(1, 99):
        seats = headroom(percent / 100)
        assert found_none(percent / 100, seats) <= 0.05 < found_none(percent / 100, seats - 1)


def mixed(steps: int, t0_every: int, reserved: int = 0) -> tuple[StepHost, int]:
    """T3 takes all seats that it gets, and ends; a T0 comes now and then. The host, and the most
    T3 that ran after a late step."""
    tiers = (T0, replace(T3, reserved_percent=reserved))
    host, most = StepHost(step_policy(tiers, max_num_seqs=16)), 0
    for step in range(steps):
        while len(host.waiting) < 4:
            host.add("t3", 40, 60)
        if t0_every and step % t0_every == 5:
            host.add("t0", 40, 8)
        host.step()
        if step > steps // 2:
            most = max(most, [one.tier for one in host.running].count(1))
    return host, most


def test_none_is_kept_while_nobody_protected_comes() -> None:
    assert mixed(60, 0)[1] == 16


def test_protected_requests_that_come_find_seats_and_preempt_few() -> None:
    host, most = mixed(250, 7)
    late = host.plans[50:]
    entered = sum(1 for plan in late for one in plan.admit if not one.tier)
    assert entered >= 25
    assert sum(len(plan.preempt) for plan in late) <= 0.2 * entered
    assert 12 <= most <= 14, "an eighth is the most"


def test_a_tier_within_its_reserved_seats_is_not_kept_waiting_by_headroom() -> None:
    assert mixed(120, 7, reserved=100)[1] == 16


def test_headroom_ends_some_time_after_the_last_protected_entry() -> None:
    seats = SeatHeadroom(step_policy((T0, T3), max_num_seqs=64))
    first = [PlanRequest("r", 0, "t0", 0, 40, 8)]
    for _ in range(50):
        seats.begin(10)
        seats.planned(10, 0, first)
    assert seats.begin(10) == 8, "entries as often as ends: an eighth"
    kept = []
    for _ in range(2_000):
        seats.planned(10, 0, [])
        kept.append(seats.begin(9))
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == 8
    assert 0 < sum(seats > 0 for seats in kept) < 1_500
