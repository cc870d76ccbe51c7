"""What happens to one request: limits, waits, cancel, requeue, settlement, policy changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidegate.scheduling.contracts import QueueLimits, Stop
from tidegate.scheduling.outcomes import Outcome
from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import HELD_RETRY_SECONDS, Scheduler


def scheduler_of(build: SimpleNamespace, **tier_fields: object) -> Scheduler:
    tiers = [build.tier(**tier_fields)]
    return Scheduler(build.policy(tiers, {"a": {}, "b": {}}), 0.0)


def test_o15_queue_limits_hold_and_come_back_exactly(build: SimpleNamespace) -> None:
    limits = QueueLimits(max_requests=10, max_bytes=1_048_576)
    scheduler = scheduler_of(build, queue=limits)
    for i in range(10):
        assert scheduler.submit(build.request(f"a{i}", "a", body_bytes=10), 0.0) is None
    assert scheduler.submit(build.request("a10", "a"), 0.0) is Outcome.QUEUE_FULL
    assert scheduler.submit(build.request("b0", "b", body_bytes=400_000), 0.0) is None
    assert scheduler.submit(build.request("b1", "b", body_bytes=400_000), 0.0) is None
    assert scheduler.submit(build.request("b2", "b", body_bytes=400_000), 0.0) is Outcome.QUEUE_FULL
    too_large = build.request("b3", "b", body_bytes=1_048_577)
    assert scheduler.submit(too_large, 0.0) is Outcome.BODY_TOO_LARGE
    assert scheduler.cancel("b0", 0.0)
    assert not scheduler.cancel("b0", 0.0)
    assert scheduler.submit(build.request("b4", "b", body_bytes=648_576), 0.0) is None
    for _ in range(12):
        assert scheduler.next(0.0) is not None
    assert [row.queued_bytes for row in scheduler.tenant_snapshots(1.0)] == [0, 0]


def test_waits_end_by_limit_or_deadline_whichever_is_first(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build, queue=QueueLimits(max_wait_seconds=10.0))
    scheduler.submit(build.request("slow", "a"), 0.0)
    scheduler.submit(build.request("urgent", "a", deadline=4.0), 0.0)
    scheduler.submit(build.request("relaxed", "a", deadline=40.0), 1.0)
    assert scheduler.submit(build.request("past", "a", deadline=1.0), 1.0) is (
        Outcome.DEADLINE_EXCEEDED
    )
    assert scheduler.next_expiry() == 4.0
    assert [(r.id, o) for r, o in scheduler.expire(4.0)] == [("urgent", Outcome.DEADLINE_EXCEEDED)]
    assert scheduler.next_expiry() == 10.0
    assert scheduler.next(10.5).id == "relaxed"  # type: ignore[union-attr]
    assert scheduler.next_expiry() is not None
    assert [(r.id, o) for r, o in scheduler.expire(10.5)] == [("slow", Outcome.QUEUE_WAIT_EXCEEDED)]
    assert scheduler.next_expiry() is None


def test_the_time_in_the_engine_is_no_wait(build: SimpleNamespace) -> None:
    """One that was preempted after longer than the longest wait still has what was left of it."""
    scheduler = scheduler_of(build, queue=QueueLimits(max_wait_seconds=10.0))
    assert scheduler.submit(build.request("a0", "a"), 0.0) is None
    for began, ended in ((4.0, 50.0), (53.0, 90.0)):
        assert scheduler.next(began) is not None
        assert scheduler.requeue("a0", ended, caused_by="standard") is None
    assert scheduler.next_expiry() == 93.0
    scheduler.apply_policy(scheduler.policy, 91.0)
    assert scheduler.expire(92.9) == []
    assert [outcome for _, outcome in scheduler.expire(93.0)] == [Outcome.QUEUE_WAIT_EXCEEDED]


def test_a_requeued_request_takes_its_old_place_and_owes_nothing(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build, unit="Tokens", quantum=100, queue=QueueLimits(max_requests=3))
    for i in range(3):
        scheduler.submit(build.request(f"a{i}", "a"), 0.0)
    scheduler.submit(build.request("b0", "b"), 0.0)
    first = scheduler.next(1.0)
    assert first is not None
    assert scheduler.submit(build.request("a3", "a"), 1.0) is None
    assert scheduler.requeue(first.id, 1.0) is None
    assert first.sequence is None
    assert scheduler.queued() == 5
    order = [scheduler.next(2.0).id for _ in range(5)]  # type: ignore[union-attr]
    assert order == ["a0", "b0", "a1", "a2", "a3"]


def test_an_id_in_use_and_a_negative_size_are_the_hosts_faults(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build)
    scheduler.submit(build.request("x", "a"), 0.0)
    with pytest.raises(ValueError, match="in use"):
        scheduler.submit(build.request("x", "b"), 0.0)
    with pytest.raises(ValueError, match="negative"):
        scheduler.submit(build.request("y", "b", prompt=-1), 0.0)
    with pytest.raises(KeyError):
        scheduler.finish("x", None, 0.0)
    assert scheduler.submit(build.request("z", "nobody"), 0.0) is Outcome.FORBIDDEN


@pytest.mark.parametrize(
    ("progress", "usage", "served"),
    [
        pytest.param([], None, 0, id="nothing seen, nothing billed"),
        pytest.param([0], None, 100, id="prefill seen"),
        pytest.param([1, 4], None, 105, id="what was seen"),
        pytest.param([1, 4], Usage(80, 7), 105, id="published totals never fall"),
        pytest.param([1, 4], Usage(120, 7), 127, id="the engine's figures"),
        pytest.param([], Usage(120, 0), 120, id="embeddings"),
    ],
)
def test_the_bill_is_what_the_engine_did(
    build: SimpleNamespace, progress: list[int], usage: Usage | None, served: int
) -> None:
    scheduler = scheduler_of(build)
    scheduler.submit(build.request("a", "a", prompt=100), 0.0)
    scheduler.next(0.0)
    for tokens in progress:
        scheduler.progress("a", tokens, 1.0)
    scheduler.finish("a", usage, 2.0)
    assert scheduler.tenant_snapshots(2.0)[0].service_tokens_total == served
    assert scheduler.tier_snapshots()[0].service_tokens_total == served


def test_hold_refuses_new_and_runs_queued_while_drain_drops_them(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build)
    for name in "ab":
        for i in range(2):
            scheduler.submit(build.request(f"{name}{i}", name), 0.0)
    running = scheduler.next(0.0)
    assert running is not None
    assert running.id == "a0"
    held = {"a": {"stop": Stop.HOLD_AND_DRAIN}, "b": {"stop": Stop.HOLD}}
    ended = scheduler.apply_policy(build.policy([build.tier()], held, generation=2), 1.0)
    assert [(r.id, o) for r, o in ended] == [("a1", Outcome.HELD)]
    assert scheduler.submit(build.request("b9", "b"), 1.0) is Outcome.HELD
    assert scheduler.retry_after_seconds("b", 1.0) == HELD_RETRY_SECONDS
    assert scheduler.requeue("a0", 1.0) is Outcome.HELD
    assert [scheduler.next(1.0).id for _ in range(2)] == ["b0", "b1"]  # type: ignore[union-attr]
    assert scheduler.next(1.0) is None


def test_a_tenant_that_leaves_the_policy(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build)
    for i in range(3):
        scheduler.submit(build.request(f"a{i}", "a"), 0.0)
    scheduler.next(0.0)
    scheduler.next(0.0)
    gone = build.policy([build.tier()], {"b": {}}, generation=2)
    assert [(r.id, o) for r, o in scheduler.apply_policy(gone, 1.0)] == [("a2", Outcome.FORBIDDEN)]
    assert scheduler.submit(build.request("a3", "a"), 1.0) is Outcome.FORBIDDEN
    assert scheduler.requeue("a0", 1.0) is Outcome.FORBIDDEN
    scheduler.finish("a1", Usage(10, 10), 2.0)
    assert [row.name for row in scheduler.tenant_snapshots(2.0)] == ["b"]
    assert (scheduler.queued(), scheduler.in_flight(), scheduler.has_work()) == (0, 0, False)


def test_a_changed_weight_acts_at_once_and_keeps_the_debt(build: SimpleNamespace) -> None:
    tier = build.tier(unit="Tokens", quantum=100)
    scheduler = Scheduler(build.policy([tier], {"a": {}, "b": {}}), 0.0)
    for name in "ab":
        for i in range(1000):
            scheduler.submit(build.request(f"{name}{i}", name), 0.0)

    def shares(count: int) -> float:
        tenants = []
        for _ in range(count):
            request = scheduler.next(1.0)
            assert request is not None
            tenants.append(request.tenant)
            scheduler.finish(request.id, Usage(100, 100), 1.0)
        return tenants.count("a") / count

    assert shares(100) == pytest.approx(0.5, abs=0.02)
    scheduler.apply_policy(build.policy([tier], {"a": {"weight": 4}, "b": {}}, generation=2), 1.0)
    assert shares(100) == pytest.approx(0.8, abs=0.03)
    assert scheduler.queued() == 1800


def test_a_tenant_moves_to_another_tier_with_its_queue(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3", max_in_flight=1)]
    scheduler = Scheduler(build.policy(tiers, {"a": "t3", "b": "t0"}), 0.0)
    for i in range(3):
        scheduler.submit(build.request(f"a{i}", "a"), 0.0)
        scheduler.submit(build.request(f"b{i}", "b"), 0.0)
    assert scheduler.next(0.0).id == "b0"  # type: ignore[union-attr]
    moved = build.policy(tiers[:1], {"a": "t0", "b": "t0"}, generation=2)
    assert scheduler.apply_policy(moved, 1.0) == []
    (row,) = scheduler.tier_snapshots()
    assert (row.queued, row.running) == (5, 1)
    order = [scheduler.next(1.0).id for _ in range(5)]  # type: ignore[union-attr]
    assert sorted(order[:4]) == ["a0", "a1", "b1", "b2"]


def test_a_shorter_wait_limit_acts_on_what_waits(build: SimpleNamespace) -> None:
    scheduler = scheduler_of(build)
    scheduler.submit(build.request("a0", "a"), 0.0)
    shorter = build.tier(queue=QueueLimits(max_wait_seconds=5.0))
    scheduler.apply_policy(build.policy([shorter], {"a": {}, "b": {}}, generation=2), 1.0)
    assert scheduler.next_expiry() == 5.0


def test_o7_retry_after_is_true(build: SimpleNamespace) -> None:
    """A full queue that drains a request every 1.5 s: after what it says there is a place."""
    scheduler = scheduler_of(build, queue=QueueLimits(max_requests=20, max_wait_seconds=100.0))
    for i in range(20):
        scheduler.submit(build.request(f"a{i}", "a"), 0.0)
    assert scheduler.retry_after_seconds("a", 0.0) == 100
    now, number = 0.0, 20
    for _ in range(15):
        now += 1.5
        assert scheduler.next(now) is not None
        assert scheduler.submit(build.request(f"a{number}", "a"), now) is None
        number += 1
        assert scheduler.submit(build.request("more", "a"), now) is Outcome.QUEUE_FULL
    seconds = scheduler.retry_after_seconds("a", now)
    assert 2 <= seconds <= 4
    scheduler.next(now + 1.5)
    assert scheduler.submit(build.request("more", "a"), now + seconds) is None


def test_prediction_is_the_mean_of_the_tenants_last_outputs(build: SimpleNamespace) -> None:
    """B, whose answers turn out ten times as long, is charged so at dispatch, not at their end."""
    policy = build.policy([build.tier(unit="Tokens", quantum=1)], {"a": {}, "b": {}})
    scheduler = Scheduler(policy, 0.0)
    for name in "ab":
        for i in range(400):
            scheduler.submit(build.request(f"{name}{i}", name, 10, 2000), 0.0)
    for _ in range(100):
        request = scheduler.next(0.0)
        assert request is not None
        scheduler.finish(request.id, Usage(10, 90 if request.tenant == "a" else 990), 0.0)
    in_flight = [scheduler.next(1.0) for _ in range(110)]
    count = sum(request.tenant == "b" for request in in_flight if request is not None)
    assert count == pytest.approx(10, abs=2)
