"""The queue of one tenant: who came first of all that wait, whatever goes next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import QueueLimits
from tidegate.scheduling.job import Job
from tidegate.scheduling.request import Request
from tidegate.scheduling.tenant_queue import TenantQueue

ANY_TENANT: Any = None


def job(order: int, priority: int = 0, deadline: float | None = None) -> Job:
    request = Request(str(order), "a", 1, 1, priority=priority, deadline=deadline)
    request.arrival = float(order)
    return Job(request, ANY_TENANT, order, float(order))


COMES = st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from([None, None, 5.0, 9.0]))
STEPS = st.lists(st.one_of(COMES, st.sampled_from(["goes", "leaves", "returns"])), max_size=60)


@settings(max_examples=60)
@given(STEPS, st.booleans(), st.integers(0, 60))
def test_who_came_first_is_known_whatever_goes_next(
    steps: list[Any], in_arrival_order: bool, reordered_at: int
) -> None:
    queue = TenantQueue(QueueLimits(), in_arrival_order)
    waiting: list[Job] = []
    taken: list[Job] = []
    for order, step in enumerate(steps):
        if order == reordered_at:
            queue.reorder(not in_arrival_order)
        if step == "goes" and waiting:
            taken.append(queue.take())
            waiting.remove(taken[-1])
        elif step == "leaves" and waiting:
            queue.remove(waiting.pop(len(waiting) // 2))
        elif step == "returns" and taken:
            back = taken.pop(0)
            back.waiting = True
            queue.enter(back)
            waiting.append(back)
        elif isinstance(step, tuple):
            waiting.append(job(order, *step))
            queue.enter(waiting[-1])
        first = min(waiting, key=lambda one: one.order, default=None)
        assert queue.oldest() is (None if first is None else first.request)


class Unwalked(TenantQueue):
    def __iter__(self) -> Iterator[Job]:
        raise AssertionError("a scrape walks all that waits")


def test_without_priorities_and_deadlines_nobody_is_asked_but_the_next() -> None:
    queue = Unwalked(QueueLimits(max_requests=1000), in_arrival_order=False)
    jobs = [job(order) for order in range(500)]
    for one in jobs:
        queue.enter(one)
    queue.remove(jobs[0])
    assert queue.take() is jobs[1]
    assert queue.oldest() is jobs[2].request
