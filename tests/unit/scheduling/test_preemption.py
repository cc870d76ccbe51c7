"""Who gives up seat and blocks: tiers, reservations, tenants, least recompute; growth; back-off."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_host import T0, T1, T2, T3, step_policy

from tidegate.scheduling.kv_growth import growth_blocks, growth_victims
from tidegate.scheduling.plan_request import PlanRequest, Veto
from tidegate.scheduling.preemption import (
    Excess,
    Holdings,
    Need,
    choose_victims,
    freed_blocks,
    least_recompute,
    recompute_tokens,
)
from tidegate.scheduling.recompute import backoff_seconds, past_backoff
from tidegate.scheduling.step_policy import StepPolicy

POLICY = step_policy()
SIZE = POLICY.engine.block_size


def one(
    sequence: int,
    tier: int = 3,
    blocks: int = 10,
    *,
    tenant: str = "a",
    computed: int | None = None,
    weight: int = 1,
) -> PlanRequest:
    """A running request."""
    request = PlanRequest(f"r{sequence}", tier, tenant, sequence, blocks * SIZE, 100, weight=weight)
    request.blocks = blocks
    request.computed_tokens = blocks * SIZE if computed is None else computed
    return request


def choose(
    running: Sequence[PlanRequest],
    beneficiary: int,
    blocks: int = 0,
    seats: int = 1,
    *,
    excess: Sequence[int] = (1_000,) * 4,
    spared: Sequence[str] = (),
    policy: StepPolicy = POLICY,
) -> list[int] | None:
    """Sequence numbers of the victims; each tier is its own group."""
    by_tier: list[list[PlanRequest]] = [[] for _ in policy.tiers]
    for request in running:
        by_tier[request.tier].append(request)
    victims = choose_victims(
        policy,
        Holdings(by_tier),
        beneficiary,
        Need(blocks, seats),
        Excess(range(4), excess),
        spared,
    )
    return None if victims is None else [victim.sequence for victim in victims]


def test_the_lowest_tier_goes_first_and_only_tiers_below() -> None:
    running = [one(1, tier=2), one(2, tier=3), one(3, tier=1)]
    assert choose(running, 0) == [2]
    assert choose(running[:1], 0) == [1]
    assert choose(running[:1], 2) is None, "an equal"
    assert choose(running[:1], 3) is None, "a higher one"
    assert choose(running[2:], 0) is None, "not evictable"


def test_tiers_of_equal_priority_do_not_preempt_each_other() -> None:
    policy = step_policy((T0, T1, T2, replace(T3, priority=T2.priority)))
    assert choose([one(1, tier=3)], 2, policy=policy) is None
    assert choose([one(1, tier=3)], 1, policy=policy) == [1]


def test_a_tier_at_its_reservation_is_passed_over_and_the_next_one_goes() -> None:
    running = [one(1, tier=2), one(2, tier=3)]
    assert choose(running, 0, excess=(0, 0, 1, 0)) == [1]
    assert choose(running, 0, excess=(0, 0, 0, 0)) is None


def test_no_more_is_taken_than_is_above_the_reservation() -> None:
    running = [one(number, tier=3) for number in range(4)] + [one(9, tier=2, blocks=40)]
    # Two of ten blocks are above the reservation of 5 by 15; the rest is t2's.
    assert choose(running, 0, blocks=40, excess=(0, 0, 100, 15)) == [3, 2, 9]
    assert choose(running, 0, blocks=40, excess=(0, 0, 0, 15)) is None, "all or nobody"


def test_the_tenant_that_holds_most_for_its_weight_gives() -> None:
    running = [one(1, tenant="a", blocks=30), one(2, tenant="b", blocks=20)]
    assert choose(running, 0, blocks=5) == [1]
    heavy = [one(1, tenant="a", blocks=30, weight=2), one(2, tenant="b", blocks=20)]
    assert choose(heavy, 0, blocks=5) == [2]


def test_taking_turns_between_tenants_as_they_become_equal() -> None:
    running = [one(number, tenant="ab"[number % 2], blocks=10) for number in range(6)]
    running.append(one(6, tenant="a", blocks=10))
    victims = choose(running, 0, blocks=70)
    assert victims is not None
    assert "".join(running[number].tenant for number in victims) == "abababa"


def test_of_a_tenant_the_least_recompute_goes() -> None:
    running = [one(1, blocks=50), one(2, blocks=12), one(3, blocks=30)]
    assert choose(running, 0, blocks=10) == [2]
    assert choose(running, 0, blocks=13) == [3]
    assert choose(running, 0, seats=1) == [2]
    barely = [one(1, blocks=50, computed=16), one(2, blocks=12)]
    assert choose(barely, 0, blocks=10) == [1]


def test_blocks_that_others_hold_too_are_neither_freed_nor_recomputed() -> None:
    shared = one(1, blocks=20)
    shared.shared_blocks = 18
    assert freed_blocks(shared) == 2
    assert recompute_tokens(shared, SIZE) == 2 * SIZE
    assert choose([shared], 0, blocks=3) is None
    shared.shared_blocks = 20
    assert choose([shared], 0, blocks=1) is None


def test_who_was_spared_or_preempted_often_enough_stays() -> None:
    running = [one(1), one(2, blocks=20)]
    assert choose(running, 0, spared=["r1"]) == [2]
    running[0].preemptions = POLICY.tiers[3].max_preemptions
    assert choose(running, 0) == [2]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 400)), min_size=1, max_size=9),
    st.integers(1, 120),
)
def test_the_cover_costs_at_most_twice_the_least(sizes: list[tuple[int, int]], need: int) -> None:
    running = [one(n, blocks=blocks, computed=cost) for n, (blocks, cost) in enumerate(sizes)]
    covers = [
        sum(each.computed_tokens for each in some)
        for count in range(1, len(running) + 1)
        for some in combinations(running, count)
        if sum(each.blocks for each in some) >= need
    ]
    chosen = least_recompute(running, need, freed_blocks, SIZE)
    if not covers:
        assert chosen is None
        return
    assert chosen is not None
    assert sum(each.blocks for each in chosen) >= need
    cost = sum(each.computed_tokens for each in chosen)
    assert cost <= 2 * min(covers)
    singles = [each.computed_tokens for each in running if each.blocks >= need]
    assert cost <= min(singles, default=cost)
    spare = sum(each.blocks for each in chosen) - need
    assert len(chosen) == 1 or all(each.blocks > spare for each in chosen)


def _grow(growing: Sequence[PlanRequest], free: int, excess: int = 1_000) -> list[tuple[str, str]]:
    by_tier: list[list[PlanRequest]] = [[] for _ in POLICY.tiers]
    for request in growing:
        by_tier[request.tier].append(request)
    victims = growth_victims(
        POLICY, by_tier, growing, free, lambda _: Excess(range(4), (excess,) * 4)
    )
    return [(victim.id, gainer.id) for victim, gainer in victims]


def test_growth_counts_the_blocks_of_the_next_step() -> None:
    request = one(1, blocks=2)
    assert growth_blocks(request, SIZE) == 1
    request.computed_tokens -= 1
    assert growth_blocks(request, SIZE) == 0
    request.decode_tokens = 18
    assert growth_blocks(request, SIZE) == 2


def test_growth_that_fits_costs_nobody() -> None:
    assert _grow([one(1), one(2)], free=2) == []


def test_growth_of_a_higher_tier_takes_from_the_lowest() -> None:
    assert _grow([one(1, tier=0), one(2, tier=3), one(3, tier=2)], free=0) == [("r2", "r1")]


def test_in_one_tier_the_youngest_goes_for_the_growth_of_the_elder() -> None:
    assert _grow([one(3), one(1), one(2)], free=1) == [("r3", "r2")]


def test_growth_takes_what_is_reserved_only_when_nothing_else_is_left() -> None:
    assert _grow([one(1, tier=0), one(2, tier=3)], free=0, excess=0) == [("r2", "r1")]
    # Not evictable either, but behind it.
    assert _grow([one(1, tier=0), one(2, tier=1)], free=0, excess=0) == [("r2", "r1")]


def test_one_alone_that_cannot_grow_gives_itself_up() -> None:
    assert _grow([one(1)], free=0) == [("r1", "r1")]


def test_backoff_grows_with_the_queue_up_to_its_most() -> None:
    tier = POLICY.tiers[3]
    assert backoff_seconds(tier, 0) == 0
    assert backoff_seconds(tier, 7) == pytest.approx(0.07)
    assert backoff_seconds(tier, 5_000) == 0.5
    assert backoff_seconds(tier, -1) == 0


def test_those_in_backoff_are_passed_and_noted() -> None:
    waiting = [one(1), one(2), one(3)]
    waiting[0].not_before = 5.0
    waiting[2].not_before = 4.0
    vetoed: dict[str, Veto] = {}
    assert [each.sequence for each in past_backoff(waiting, 4.0, vetoed)] == [2, 3]
    assert vetoed == {"r1": Veto.RECOMPUTE_BACKOFF}
