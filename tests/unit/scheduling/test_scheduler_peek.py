"""A host that must make room first asks what would go next, and pays nothing for asking."""

from __future__ import annotations

from types import SimpleNamespace

from tidegate.scheduling.contracts import QueueLimits
from tidegate.scheduling.scheduler import Scheduler


def test_peek_is_what_next_dispatches_and_charges_nothing(build: SimpleNamespace) -> None:
    tier = build.tier(unit="Tokens", quantum=100)
    asked, plain = (Scheduler(build.policy([tier], {"a": {}, "b": {}}), 0.0) for _ in range(2))
    for scheduler in (asked, plain):
        for i in range(20):
            scheduler.submit(build.request(f"a{i}", "a", prompt=30 + i), 0.0)
            scheduler.submit(build.request(f"b{i}", "b", prompt=250 - i), 0.0)
    for _ in range(40):
        peeked = [asked.peek(1.0) for _ in range(3)]
        dispatched, expected = asked.next(1.0), plain.next(1.0)
        assert dispatched is not None
        assert expected is not None
        assert peeked == [dispatched] * 3
        assert dispatched.id == expected.id
    assert asked.peek(1.0) is None


def test_peek_gives_nothing_that_waited_too_long(build: SimpleNamespace) -> None:
    tier = build.tier(queue=QueueLimits(max_wait_seconds=10.0))
    scheduler = Scheduler(build.policy([tier], {"a": {}}), 0.0)
    scheduler.submit(build.request("a0", "a"), 0.0)
    assert scheduler.peek(11.0) is None
    assert [request.id for request, _ in scheduler.expire(11.0)] == ["a0"]
