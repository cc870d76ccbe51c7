"""Fluid GPS and start-time fair queueing, the references: by hand and against each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.simulator.fluid_gps import FluidJob, finish_times
from tidegate.simulator.start_time_fair_queueing import StartTimeFairQueueing


def test_a_fluid_is_shared_and_what_one_leaves_goes_to_the_other() -> None:
    jobs = [FluidJob("a", 0.0, 10.0), FluidJob("b", 0.0, 5.0), FluidJob("a", 1.0, 1.0)]
    assert finish_times(jobs, 1.0) == pytest.approx([15.0, 10.0, 16.0])
    assert finish_times(jobs, 1.0, {"b": 4.0}) == pytest.approx([15.0, 6.25, 16.0])


def test_one_request_takes_no_more_than_its_rate() -> None:
    jobs = [FluidJob("a", 0.0, 2.0), FluidJob("b", 0.0, 2.0)]
    assert finish_times(jobs, 10.0, job_rate=0.5) == pytest.approx([4.0, 4.0])
    # a's two take 0.5 each, b gets the rest of 1.25.
    jobs = [FluidJob("a", 0.0, 1.0), FluidJob("a", 0.0, 1.0), FluidJob("b", 0.0, 1.0)]
    first, second, third = finish_times(jobs, 1.25, job_rate=0.5)
    assert (first, third) == pytest.approx((2.0, 2.0))
    assert second == pytest.approx(2.0 + (1.0 - 0.5) / 0.5)


def test_idle_time_is_skipped_and_nonsense_refused() -> None:
    assert finish_times([FluidJob("a", 3.0, 1.0), FluidJob("a", 9.0, 1.0)], 1.0) == [4.0, 10.0]
    assert finish_times([], 1.0) == []
    with pytest.raises(ValueError, match="positive"):
        finish_times([], 0.0)


jobs = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 20)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(jobs, st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)))
def test_a_fluid_works_whenever_it_can_and_no_schedule_beats_its_end(
    rows: list[tuple[str, int, int]], weights: dict[str, int]
) -> None:
    fluid = [FluidJob(tenant, float(at), float(cost)) for tenant, at, cost in rows]
    ends = finish_times(fluid, 1.0, dict(weights))
    busy_until = 0.0
    for job in sorted(fluid, key=lambda each: each.arrival):
        busy_until = max(busy_until, job.arrival) + job.cost
    assert max(ends) == pytest.approx(busy_until)
    assert all(end >= job.arrival + job.cost - 1e-9 for end, job in zip(ends, fluid, strict=True))


@settings(max_examples=80, deadline=None)
@given(jobs)
def test_start_time_fair_queueing_on_one_server_keeps_its_bound(
    rows: list[tuple[str, int, int]],
) -> None:
    """All there from the beginning: two that wait differ by at most one cost of each."""
    queue: StartTimeFairQueueing[tuple[str, int]] = StartTimeFairQueueing()
    left = dict.fromkeys("abc", 0)
    largest = dict.fromkeys("abc", 0)
    for tenant, _, cost in rows:
        queue.push(tenant, (tenant, cost))
        left[tenant] += 1
        largest[tenant] = max(largest[tenant], cost)
    served = dict.fromkeys("abc", 0)
    while (first := queue.first()) is not None:
        tenant, cost = first
        assert queue.pop(cost) is first
        served[tenant] += cost
        left[tenant] -= 1
        for one in "abc":
            for other in "abc":
                if left[one] and left[other]:
                    assert served[one] - served[other] <= largest[one] + largest[other]
    assert not any(left.values())
    with pytest.raises(IndexError):
        queue.pop()


def test_weights_credit_and_late_charges_move_the_tags() -> None:
    queue: StartTimeFairQueueing[str] = StartTimeFairQueueing(credit=30.0)
    queue.set_weight("heavy", 4.0)
    for number in range(3):
        queue.push("heavy", f"h{number}")
        queue.push("other", f"o{number}")
    assert queue.pop(100.0) == "h0"
    assert queue.pop(10.0) == "o0"
    queue.charge("other", 30.0)
    assert (queue.tag("heavy"), queue.tag("other")) == (25.0 - 30.0, 40.0 - 30.0)
    assert queue.pop(400.0) == "h1"
    assert queue.pop(1.0) == "o1"
    assert queue.virtual_time == 10.0
    queue.push("late", "l0")
    assert queue.tag("late") == 10.0 - 30.0
    assert queue.first() == "l0"
