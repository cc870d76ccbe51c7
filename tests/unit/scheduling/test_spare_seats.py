"""Seats kept free: how many, for whom, and that they do what the theory says."""

from __future__ import annotations

import heapq
import random

import pytest

from tidegate.scheduling.contracts import SchedulingMode, TierPolicy
from tidegate.scheduling.spare_seats import MOST_FIND_NONE, SpareSeats, spare_seats

SEATS = 64
GOLD = TierPolicy(name="gold", priority=10, reserved_percent=10)
SILVER = TierPolicy(name="silver", priority=5, reserved_percent=20)
BATCH = TierPolicy(name="batch")


def of(*tiers: TierPolicy, mode: SchedulingMode = SchedulingMode.TIDEGATE) -> SpareSeats:
    spare = SpareSeats()
    spare.apply_policy(mode, tiers)
    return spare


def traffic(spare: SpareSeats, tier: str, every: int, seconds: float = 60.0) -> float:
    """Ten ends a second, and an arrival of the tier with every so many of them."""
    now = 0.0
    for number in range(int(seconds * 10)):
        now = number / 10
        end(spare, now)
        if number % every == 0:
            spare.arrived(tier, 1, now)
    return now


def end(spare: SpareSeats, now: float) -> None:
    """One request of the batch tier comes and goes."""
    spare.dispatched("x", "batch", 1)
    spare.ended("x", now)


def held_back(
    spare: SpareSeats, seats: int, in_flight: int, gold: int = 0, now: float = 60.0
) -> list[str]:
    """With so many sequences in flight, ``gold`` of them of that tier."""
    tiers = ["gold"] * gold + ["batch"] * (in_flight - gold)
    for number, tier in enumerate(tiers):
        spare.dispatched(f"f{number}", tier, 1)
    found = spare.held_back(seats, now)
    kept, spare._arrivals = spare._arrivals, {}  # these ends are no traffic
    for number in range(in_flight):
        spare.ended(f"f{number}", 0.0)
    spare._arrivals = kept
    return found


@pytest.mark.parametrize(("load", "kept"), [(0.01, 1), (0.1, 1), (0.3, 2), (0.5, 4), (0.7, 7)])
def test_the_least_number_that_one_in_ten_finds_taken(load: float, kept: int) -> None:
    assert spare_seats(load) == kept
    assert load**kept <= MOST_FIND_NONE
    assert kept == 1 or load ** (kept - 1) > MOST_FIND_NONE


def test_a_lower_tier_leaves_them_and_the_tier_itself_does_not() -> None:
    spare = of(GOLD, BATCH)
    traffic(spare, "gold", 4)
    assert held_back(spare, SEATS, SEATS - 3) == []
    assert held_back(spare, SEATS, SEATS - 2) == ["batch"]
    assert held_back(spare, SEATS, SEATS) == ["batch"]


def test_a_reserved_tier_leaves_room_for_a_higher_one_only() -> None:
    spare = of(GOLD, SILVER, BATCH)
    traffic(spare, "silver", 2)
    assert held_back(spare, SEATS, SEATS - 4) == ["batch"]
    traffic(spare, "gold", 2)
    assert held_back(spare, SEATS, SEATS - 1) == ["silver", "batch"]


def test_no_more_than_the_reservation_and_never_the_last_seat_of_an_idle_engine() -> None:
    spare = of(GOLD, BATCH)
    traffic(spare, "gold", 1)  # as many as the engine ends
    assert held_back(spare, SEATS, SEATS - 7) == []
    assert held_back(spare, SEATS, SEATS - 6) == ["batch"]  # 10% of 64
    assert held_back(spare, 9, 8) == []  # less than a seat
    whole = of(TierPolicy(name="gold", priority=1, reserved_percent=100), BATCH)
    traffic(whole, "gold", 1)
    assert held_back(whole, SEATS, 1) == ["batch"]
    assert held_back(whole, SEATS, 0) == []
    assert held_back(whole, 1, 0) == []


def test_who_holds_its_reservation_is_left_nothing_more() -> None:
    """However much it sends: all others may hold the rest of the engine."""
    spare = of(GOLD, BATCH)
    traffic(spare, "gold", 1)
    assert held_back(spare, SEATS, SEATS - 2, gold=4) == ["batch"]
    assert held_back(spare, SEATS, SEATS - 3, gold=4) == []
    assert held_back(spare, SEATS, SEATS, gold=6) == []


def test_who_sends_nothing_any_more_is_left_nothing() -> None:
    spare = of(GOLD, BATCH)
    now = traffic(spare, "gold", 4)
    assert held_back(spare, SEATS, SEATS - 1)
    assert held_back(spare, SEATS, SEATS - 1, now=now + 60.0)
    assert held_back(spare, SEATS, SEATS - 1, now=now + 180.0) == []  # though nothing has ended
    for number in range(2_000):
        end(spare, now + number / 10)
    assert held_back(spare, SEATS, SEATS, now=now + 200.0) == []


@pytest.mark.parametrize("ready", [0, 1, 2, 8])
def test_who_stands_ready_for_a_seat_is_held_back_for_others_only(ready: int) -> None:
    """More are in flight than there are seats where many end in each step."""
    spare = of(GOLD, BATCH)
    assert held_back(spare, SEATS, SEATS + ready) == []
    traffic(spare, "batch", 1)  # nobody with a reservation sends anything
    assert held_back(spare, SEATS, SEATS + ready) == []
    traffic(spare, "gold", 4)
    assert held_back(spare, SEATS, SEATS + ready) == ["batch"]
    assert held_back(spare, SEATS, SEATS + ready, gold=6) == []


@pytest.mark.parametrize("mode", [SchedulingMode.SHADOW, SchedulingMode.FIRST_COME_FIRST_SERVED])
def test_none_where_the_arrival_alone_counts(mode: SchedulingMode) -> None:
    spare = of(GOLD, BATCH, mode=mode)
    traffic(spare, "gold", 2)
    assert held_back(spare, SEATS, SEATS) == []


@pytest.mark.parametrize("keeps", [True, False])
def test_in_a_full_engine_few_arrivals_have_to_wait_for_a_seat(keeps: bool) -> None:
    """Poisson arrivals of a tier that keeps to half of its share, a quarter of all; batch takes
    whatever it may at once."""
    draw = random.Random(1)
    gold = TierPolicy(name="gold", priority=10, reserved_percent=50)
    spare = of(gold, BATCH) if keeps else of(BATCH)
    ends: list[tuple[float, str]] = []
    arrivals = found_none = waiting = number = 0
    now = next_arrival = 0.0

    def send(tier: str) -> None:
        nonlocal number
        number += 1
        spare.dispatched(f"r{number}", tier, 1)
        heapq.heappush(ends, (now + draw.expovariate(1 / 6.0), f"r{number}"))

    while now < 600.0:
        while "batch" not in spare.held_back(SEATS, now) and len(ends) < SEATS:
            send("batch")
        if next_arrival <= ends[0][0]:
            now, next_arrival = next_arrival, next_arrival + draw.expovariate(2.5)
            spare.arrived("gold", 1, now)
            arrivals += now > 60.0
            found_none += now > 60.0 and len(ends) == SEATS
            waiting += 1
        else:
            now, ended = heapq.heappop(ends)
            spare.ended(ended, now)
        while waiting and len(ends) < SEATS:
            waiting -= 1
            send("gold")
    if keeps:
        assert found_none < 1.5 * MOST_FIND_NONE * arrivals
    else:
        assert found_none > 0.9 * arrivals
