"""Between tiers Weighted: the excess above the reservations is shared by the tiers' weights."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.scheduling.contracts import BetweenTiers, TierPolicy
from tidegate.scheduling.request import Usage
from tidegate.scheduling.scheduler import Scheduler
from tidegate.scheduling.tier_account import TierAccount
from tidegate.scheduling.tier_turns import weighted_bound
from tidegate.scheduling.tiers import Tiers


def backlogged(
    build: SimpleNamespace, tiers: list[TierPolicy], count: int = 3000, **fields: object
) -> Scheduler:
    """One tenant in each tier, with ``count`` requests of 200 tokens queued."""
    fields.setdefault("between_tiers", BetweenTiers.WEIGHTED)
    tenants = {f"in-{tier.name}": tier.name for tier in tiers}
    scheduler = Scheduler(build.policy(tiers, tenants, **fields), 0.0)
    for name in tenants:
        for i in range(count):
            assert scheduler.submit(build.request(f"{name}-{i}", name), 0.0) is None
    return scheduler


def shares(scheduler: Scheduler, count: int) -> dict[str, float]:
    """Of the next dispatches, each ended at once."""
    order = []
    for _ in range(count):
        request = scheduler.next(1.0)
        assert request is not None
        order.append(request.tenant.removeprefix("in-"))
        scheduler.finish(request.id, Usage(100, 100), 1.0)
    return {name: order.count(name) / count for name in set(order)}


def test_the_excess_above_reservations_follows_the_weights(build: SimpleNamespace) -> None:
    tiers = [
        build.tier("t0", priority=9, reserved_percent=20, weight=3),
        build.tier("t1", priority=5, weight=1),
        build.tier("t3", priority=-5, reserved_percent=20, weight=2),
    ]
    got = shares(backlogged(build, tiers), 2000)
    assert got["t0"] == pytest.approx(0.2 + 0.6 * 3 / 6, abs=0.01)
    assert got["t1"] == pytest.approx(0.6 * 1 / 6, abs=0.01)
    assert got["t3"] == pytest.approx(0.2 + 0.6 * 2 / 6, abs=0.01)


def test_a_limit_holds_and_what_it_leaves_goes_by_weight(build: SimpleNamespace) -> None:
    tiers = [
        build.tier("t0", weight=1000, max_percent=40),
        build.tier("t1", weight=1),
        build.tier("t3", weight=3),
    ]
    got = shares(backlogged(build, tiers), 2000)
    assert got["t0"] == pytest.approx(0.4, abs=0.01)
    assert got["t3"] == pytest.approx(3 * got["t1"], rel=0.03)


@pytest.mark.parametrize("weight", [1, 7, 1000])
def test_equal_weights_are_even_at_any_size(build: SimpleNamespace, weight: int) -> None:
    got = shares(
        backlogged(build, [build.tier("t0", weight=weight), build.tier("t1", weight=weight)]), 500
    )
    assert got["t0"] == pytest.approx(0.5, abs=0.01)


def test_weights_at_their_limits(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", weight=1000), build.tier("t3", weight=1)]
    got = shares(backlogged(build, tiers, count=3500), 3003)
    assert got["t3"] == pytest.approx(1 / 1001, abs=2 / 3003)


def test_a_tier_that_was_idle_has_no_claim_and_one_that_was_alone_no_debt(
    build: SimpleNamespace,
) -> None:
    tiers = [build.tier("t0"), build.tier("t1")]
    policy = build.policy(tiers, {"a": "t0", "b": "t1"}, between_tiers=BetweenTiers.WEIGHTED)
    scheduler = Scheduler(policy, 0.0)
    for i in range(1000):
        scheduler.submit(build.request(f"a{i}", "a"), 0.0)
    flying = [scheduler.next(0.0) for _ in range(300)]
    for i in range(1000):
        scheduler.submit(build.request(f"b{i}", "b"), 0.0)
    for request in flying:  # predicted 200 tokens each, all turn out smaller
        assert request is not None
        scheduler.finish(request.id, Usage(10, 10), 0.0)
    order = []
    for _ in range(200):
        request = scheduler.next(1.0)
        assert request is not None
        order.append(request.tenant)
        scheduler.finish(request.id, Usage(10, 10), 1.0)
    assert 95 <= order.count("a") <= 105


def test_strict_and_weighted_change_places_without_restart(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0", priority=1), build.tier("t3", weight=3)]
    scheduler = backlogged(build, tiers, between_tiers=BetweenTiers.STRICT)
    tenants = {"in-t0": "t0", "in-t3": "t3"}
    assert shares(scheduler, 200) == {"t0": 1.0}
    weighted = build.policy(tiers, tenants, 2, between_tiers=BetweenTiers.WEIGHTED)
    scheduler.apply_policy(weighted, 1.0)
    assert shares(scheduler, 400)["t3"] == pytest.approx(0.75, abs=0.01)
    scheduler.apply_policy(build.policy(tiers, tenants, 3), 1.0)
    assert shares(scheduler, 200) == {"t0": 1.0}


def test_excess_of_two_backlogged_tiers_differs_by_at_most_the_bound() -> None:
    """Any weights, reservations and costs; the clock follows what was dispatched, some late."""
    for seed in range(1_000):
        check_bound(random.Random(seed))


def check_bound(draw: random.Random) -> None:
    count = draw.randint(2, 5)
    percents = [draw.choice((0, 0, draw.randint(1, 100 // count))) for _ in range(count)]
    policies = [
        TierPolicy(name=str(i), weight=draw.choice((1, draw.randint(1, 1000), 1000)),
                   reserved_percent=percents[i])
        for i in range(count)
    ]  # fmt: skip
    tiers: Tiers[int] = Tiers()
    accounts = [TierAccount(i, row, 0.0) for i, row in enumerate(policies)]
    tiers.apply_policy(BetweenTiers.WEIGHTED, list(zip(accounts, policies, strict=True)))
    for account in accounts:
        tiers.enter(account)
    largest = [draw.choice((10, 1000, 100_000)) for _ in accounts]
    excess = [0.0] * count
    history = [tuple(excess)]
    unseen: list[float] = []
    for _ in range(100):
        first = tiers.first()
        assert first is not None
        cost = draw.uniform(1, largest[first.owner])
        grant = tiers.dispatch(first, cost)
        if not grant.due:
            excess[first.owner] += cost / policies[first.owner].weight
        history.append(tuple(excess))
        unseen.append(cost)
        while unseen and draw.random() < 0.6:
            tiers.served += unseen.pop(0)
    for i in range(count):
        for j in range(i):
            lead = [row[i] - row[j] for row in history]
            bound = weighted_bound(
                (largest[i], policies[i].weight), (largest[j], policies[j].weight)
            )
            assert max(lead) - min(lead) <= bound * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(0, 25), st.integers(1, 1000)),
        min_size=2,
        max_size=4,
    ),
    st.sampled_from(BetweenTiers),
    st.randoms(use_true_random=False),
)
def test_a_tier_that_waits_gets_its_reservation_but_for_one_request(
    rows: list[tuple[int, int, int]], between: BetweenTiers, draw: random.Random
) -> None:
    """Any priorities, reservations, weights and costs, all waiting all the time."""
    policies = [
        TierPolicy(str(i), priority, reserved_percent=percent, weight=weight)
        for i, (priority, percent, weight) in enumerate(rows)
    ]
    tiers: Tiers[int] = Tiers()
    accounts = [TierAccount(i, row, 0.0) for i, row in enumerate(policies)]
    tiers.apply_policy(between, list(zip(accounts, policies, strict=True)))
    for account in accounts:
        tiers.enter(account)
    largest = draw.choice((10, 1000, 100_000))
    given = [0.0] * len(rows)
    for _ in range(100):
        first = tiers.first()
        assert first is not None
        cost = draw.uniform(1, largest)
        tiers.dispatch(first, cost)
        given[first.owner] += cost
        tiers.served += cost
        for row, got in zip(policies, given, strict=True):
            assert got >= row.reserved_percent / 100 * tiers.served - largest * (1 + 1e-9)


def test_what_a_tier_that_left_still_runs_moves_nobodys_turn(build: SimpleNamespace) -> None:
    tiers = [build.tier("t0"), build.tier("t1"), build.tier("gone")]
    scheduler = backlogged(build, tiers, count=10)
    flying = []
    while not any(request.tenant == "in-gone" for request in flying):
        request = scheduler.next(1.0)
        assert request is not None
        flying.append(request)
    tenants = {f"in-{tier.name}": tier.name for tier in tiers[:2]}
    scheduler.apply_policy(
        build.policy(tiers[:2], tenants, generation=2, between_tiers=BetweenTiers.WEIGHTED), 1.0
    )
    while (request := scheduler.next(1.0)) is not None:
        flying.append(request)
    (turn,) = {id(t.share.turn): t.share.turn for t in scheduler._selection.tiers._tiers}.values()
    before = turn.virtual_time
    for request in flying:
        if request.tenant == "in-gone":
            scheduler.progress(request.id, 100_000, 2.0)
    assert turn.virtual_time == before
