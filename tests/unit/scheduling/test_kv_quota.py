"""KV pools: nominal, lent, borrowed, claimed; shared and cached blocks; projected growth."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_host import T0, T1, T2, T3, step_policy

from tidegate.scheduling.cache_share import CacheUse, blank_runs_short, pools_to_unhash
from tidegate.scheduling.contracts import KvPool
from tidegate.scheduling.kv_projection import entry_of, peak_fits, project
from tidegate.scheduling.kv_quota import KvQuota
from tidegate.scheduling.plan_request import PlanRequest

SIZE = 10
POOLS = (
    KvPool(name="protected", tiers=("t0", "t1"), percent=60, lendable_percent=40),
    KvPool(name="batch", tiers=("t2",), percent=30, borrow_limit_percent=20),
)


def one(tier: int, blocks: int, growth: int = 0, *, sequence: int = 0) -> PlanRequest:
    """A request that holds so many full blocks and is expected to grow by so many."""
    request = PlanRequest(f"r{sequence}", tier, "a", sequence, blocks * SIZE, max(growth * SIZE, 1))
    request.blocks = blocks
    request.computed_tokens = request.total_tokens
    return request


def waiting(tier: int, blocks: int, growth: int = 0) -> PlanRequest:
    request = one(tier, blocks, growth, sequence=99)
    request.blocks = request.computed_tokens = 0
    return request


def quota(
    running: Sequence[PlanRequest] = (),
    *,
    cached: Sequence[int] = (0, 0, 0),
    held: Sequence[int] | None = None,
    claims: Sequence[int] = (0, 0, 0, 0),
    pools: tuple[KvPool, ...] = POOLS,
) -> KvQuota:
    """Of 1,000 blocks; t3 is in the rest of 10%."""
    policy = step_policy(kv_pools=pools, total_blocks=1_000, block_size=SIZE)
    by_tier: list[list[PlanRequest]] = [[] for _ in policy.tiers]
    for request in running:
        by_tier[request.tier].append(request)
    return KvQuota(policy, by_tier, cached, held, claims)


def test_percents_become_blocks_and_a_tier_in_no_pool_shares_the_rest() -> None:
    policy = step_policy(kv_pools=POOLS, total_blocks=1_005)
    assert [pool.nominal_blocks for pool in policy.pools] == [603, 301, 101]
    assert [pool.lendable_blocks for pool in policy.pools] == [402, 301, 101]
    assert [pool.borrow_limit_blocks for pool in policy.pools] == [1_005, 201, 1_005]
    assert [policy.tiers[index].name for index in policy.pools[2].tiers] == ["t3"]
    assert [tier.pool for tier in policy.tiers] == [0, 0, 1, 2]


def test_a_pool_borrows_what_is_lendable_up_to_its_limit() -> None:
    idle = quota()
    # 100 of its own, 400 of the 600 and all 300 that the others lend.
    assert idle.limit(2) == 800
    assert idle.limit(1) == 300 + 200
    assert idle.limit(0) == 1_000


def test_what_the_lender_holds_or_will_hold_or_caches_is_not_lent() -> None:
    assert quota([one(0, 350)]).limit(2) == 100 + 250 + 300
    assert quota([one(0, 350, growth=100)]).limit(2) == 100 + 150 + 300
    assert quota(cached=(350, 0, 0)).limit(2) == 100 + 250 + 300
    # Held and cached are compared with what will be held: growth reuses the cache.
    assert quota([one(0, 100, growth=300)], cached=(200, 0, 0)).limit(2) == 100 + 200 + 300


def test_what_one_borrowed_another_cannot_borrow_again() -> None:
    assert quota([one(3, 500)]).limit(1) == 300 + 0
    assert quota([one(3, 350)]).limit(1) == 300 + 150


def test_what_the_lenders_first_waiting_request_needs_is_not_lent() -> None:
    assert quota([one(1, 300)]).limit(2) == 100 + 300 + 300
    assert quota([one(1, 300)], claims=(120, 0, 0, 0)).limit(2) == 100 + 180 + 300


def test_within_nominal_it_is_its_own_whatever_the_others_borrowed() -> None:
    crowded = quota([one(3, 900)])
    assert crowded.is_own(waiting(0, 600))
    assert not crowded.is_own(waiting(0, 601))
    assert not crowded.fits(waiting(0, 601))
    assert crowded.is_own(waiting(2, 300))
    assert not crowded.fits(waiting(3, 1))


def test_lower_tiers_of_the_pool_that_yield_do_not_count_against_a_higher_one() -> None:
    one_pool = quota([one(2, 900)], pools=(), cached=(0,), claims=(0, 0, 0, 0))
    assert one_pool.is_own(waiting(0, 1_000))
    assert one_pool.is_own(waiting(2, 100))
    assert not one_pool.is_own(waiting(2, 101))
    assert not one_pool.is_own(waiting(3, 101))
    protected = quota([one(1, 900)], pools=(), cached=(0,), claims=(0, 0, 0, 0))
    assert not protected.is_own(waiting(0, 101)), "t1 does not yield to t0"


def test_a_protected_tier_borrows_what_lower_ones_hold_of_the_rest_and_borrowed() -> None:
    crowded = quota([one(2, 300, sequence=1), one(3, 100, sequence=2)])
    assert not crowded.fits(waiting(0, 601))
    assert crowded.displaces(waiting(0, 700)), "the rest was promised to nobody"
    assert not crowded.displaces(waiting(0, 701)), "the batch pool's percent is its own"
    borrowed = quota([one(3, 900)])
    assert borrowed.displaces(waiting(0, 1_000))
    assert not borrowed.displaces(waiting(2, 301)), "it is no better itself"
    assert not quota([one(3, 900)], claims=(0, 0, 200, 0)).displaces(waiting(0, 801))
    limited = (replace(POOLS[0], borrow_limit_percent=5), POOLS[1])
    few = quota([one(3, 900)], pools=limited)
    assert few.displaces(waiting(0, 650))
    assert not few.displaces(waiting(0, 651))


def test_of_the_rest_a_tier_keeps_its_reservation_and_what_was_displaced_is_not_its_own() -> None:
    policy = step_policy(
        (T0, T1, T2, replace(T3, reserved_percent=40)),
        kv_pools=POOLS, total_blocks=1_000, block_size=SIZE,
    )  # fmt: skip
    running: list[list[PlanRequest]] = [[], [], [one(2, 300)], [one(3, 100, sequence=1)]]
    reserved = KvQuota(policy, running, (0, 0, 0), None, (0, 0, 0, 0))
    assert reserved.displaces(waiting(0, 660))
    assert not reserved.displaces(waiting(0, 661))
    displaced = quota([one(0, 660), one(2, 300, sequence=1)])
    assert displaced.is_own(waiting(3, 40))
    assert not displaced.is_own(waiting(3, 41))
    assert quota([one(2, 700)]).is_own(waiting(0, 600)), "what a lower tier borrowed comes back"


def test_a_lower_tier_leaves_room_for_who_waits_above_it_in_its_pool() -> None:
    pools = (KvPool(name="all", tiers=("t0", "t1", "t2", "t3"), percent=100),)
    claimed = quota([one(3, 500)], pools=pools, cached=(0,), claims=(0, 0, 300, 0))
    assert claimed.is_own(waiting(3, 200))
    assert not claimed.is_own(waiting(3, 201))
    assert not claimed.fits(waiting(3, 201))
    assert claimed.is_own(waiting(2, 300)), "its own claim does not bind it"
    claimed.admit(waiting(2, 50), 50)
    assert claimed.is_own(waiting(3, 450))


def test_a_shared_block_counts_once() -> None:
    sharing = [one(2, 100, sequence=number) for number in range(3)]
    assert not quota(sharing).is_own(waiting(2, 1))
    once = quota(sharing, held=[0, 120, 0])
    assert once.is_own(waiting(2, 180))
    assert not once.is_own(waiting(2, 181))
    hit = waiting(2, 180)
    hit.shared_hit_blocks = 10
    assert once.is_own(hit), "blocks that run already cost nothing"
    once.admit(hit, 170)
    assert once.held == [0, 290, 0]
    assert once.is_own(waiting(2, 10))
    assert not once.is_own(waiting(2, 11))


def test_who_enters_and_who_goes_is_counted() -> None:
    running = [one(2, 80, growth=20, sequence=number) for number in range(2)]
    pools = quota(running)
    first, late = waiting(2, 60, growth=40), waiting(2, 10, growth=20)
    assert pools.is_own(first)
    pools.admit(first, 60)
    assert pools.held == [0, 220, 0]
    assert not pools.is_own(late), "310 when the two end"
    assert pools.is_own(waiting(2, 10)), "ends before the others grow"
    pools._projected._running[2].remove(running[0])  # type: ignore[attr-defined]
    pools.release(running[0], 80)
    assert pools.held == [0, 140, 0]
    assert pools.is_own(late)


def test_one_that_could_never_borrow_enough_enters_when_nobody_else_is_there() -> None:
    large = waiting(2, 700)
    assert quota().fits(large)
    assert not quota(claims=(1, 0, 0, 0), running=[one(0, 1)]).fits(large)
    assert quota(claims=(1, 0, 0, 0)).fits(large), "nothing runs: better it than nobody"
    assert not quota([one(2, 1)]).fits(large)
    # What will fit once the others give back what they borrowed waits for that.
    assert not quota([one(3, 900)]).fits(waiting(0, 601))


def test_requests_that_end_at_different_times_do_not_peak_together() -> None:
    requests = [one(3, 10, growth=growth) for growth in (0, 30, 60)]
    assert sum(project(request, SIZE) for request in requests) == 120
    entries = sorted(entry_of(request, 614) for request in requests)
    # When the second ends it has grown by 30, and so has the third: 10 + 30 + 10 + 30.
    assert peak_fits(entries, 80, SIZE)
    assert not peak_fits(entries, 79, SIZE)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=12))
def test_the_peak_is_what_a_run_in_lockstep_reaches(sizes: list[tuple[int, int]]) -> None:
    requests = []
    for number, (prompt, output) in enumerate(sizes):
        request = PlanRequest(f"r{number}", 3, "a", number, prompt, output)
        request.computed_tokens = prompt - 1
        requests.append(request)
    peak = 0
    for step in range(301):
        alive = [one for one in requests if one.max_output_tokens > step]
        peak = max(peak, sum(-(-(one.prompt_tokens + step) // SIZE) for one in alive))
    entries = sorted(entry_of(request, 614) for request in requests)
    assert peak_fits(entries, peak, SIZE)
    assert not peak_fits(entries, peak - 1, SIZE)


def test_a_prompt_that_takes_many_steps_ends_later() -> None:
    slow = PlanRequest("slow", 3, "a", 0, 1_000, 50)
    fast = one(3, 10, growth=6)
    # In lockstep slow ends first: 1,049 tokens beside 149 of the other. It ends 10 steps later.
    assert peak_fits(sorted([entry_of(slow, 2_000), entry_of(fast, 2_000)]), 120, SIZE)
    entries = sorted([entry_of(slow, 100), entry_of(fast, 100)])
    assert not peak_fits(entries, 120, SIZE)
    assert peak_fits(entries, 121, SIZE)


def test_a_request_that_outgrew_its_projection_is_projected_at_what_it_has() -> None:
    request = one(3, 10, growth=2)
    request.expected_output_tokens = 5
    request.total_tokens = 115
    request.blocks = 12
    assert project(request, SIZE) == 12


@pytest.mark.parametrize(
    ("held", "cached", "named"),
    [
        ([100, 100, 90], [300, 0, 200], {2}),
        ([100, 100, 90], [0, 0, 500], set()),
        ([100, 300, 90], [300, 10, 200], {1, 2}),
        ([500, 100, 0], [300, 0, 0], set()),
    ],
)
def test_pools_over_their_share_are_unhashed_while_another_has_a_cache_to_keep(
    held: list[int], cached: list[int], named: set[int]
) -> None:
    policy = step_policy(kv_pools=POOLS, total_blocks=1_000)
    assert pools_to_unhash(policy, held, cached, [True] * len(held)) == named


@pytest.mark.parametrize(
    ("cached", "worth", "named"),
    [
        ([300, 300, 200], [True, False, False], {1, 2}),
        ([300, 30, 10], [True, False, False], set()),
        ([300, 300, 200], [False, False, False], set()),
        ([300, 300, 200], [False, True, False], {2}),
    ],
)
def test_of_a_cache_that_is_never_hit_only_a_probation_is_kept(
    cached: list[int], worth: list[bool], named: set[int]
) -> None:
    policy = step_policy(kv_pools=POOLS, total_blocks=1_000)
    assert pools_to_unhash(policy, [0, 0, 0], cached, worth) == named


def test_a_pool_has_a_cache_to_keep_while_it_is_hit_or_new() -> None:
    policy = step_policy(kv_pools=POOLS, total_blocks=1_000)
    use, hold = CacheUse(policy), policy.cache_hold_seconds
    assert use.worth_keeping(0.0) == [False, False, False]
    for at in range(0, 1_000, 10):
        use.there(range(4), float(at))
        one = PlanRequest(f"r{at}", 0, "a", at, 100, 10)
        one.cached_hit_tokens = 64
        use.entered([one, PlanRequest(f"s{at}", 3, "a", at, 100, 10)], float(at))
        assert use.worth_keeping(float(at)) == [True, at < hold, at < hold]
    assert use.worth_keeping(990 + hold - 1) == [True, False, False]
    assert use.worth_keeping(990 + hold) == [False, False, False]
    use.there([3], 990 + hold)  # back after a silence, it has the time to be hit again
    assert use.worth_keeping(990 + hold) == [False, False, True]


def test_a_protected_cache_that_was_filled_twice_and_never_hit_is_not_worth_keeping() -> None:
    policy = step_policy(kv_pools=POOLS, total_blocks=1_000, block_size=SIZE)
    use = CacheUse(policy)
    use.there(range(4), 0.0)
    for number in range(12):
        assert use.worth_keeping(1.0) == [True, True, True]
        use.entered([PlanRequest(f"r{number}", 0, "a", number, 100 * SIZE, 10)], 1.0)
    low = [PlanRequest(f"low{tier}", tier, "a", tier, 900 * SIZE, 10) for tier in (2, 3)]
    use.entered([PlanRequest("last", 0, "a", 99, SIZE, 10), *low], 1.0)
    assert use.worth_keeping(1.0) == [False, True, True], "those that are un-hashed have the time"
    found = PlanRequest("found", 0, "a", 100, 100, 10)
    found.cached_hit_tokens = SIZE
    use.entered([found], 2.0)
    assert use.worth_keeping(2.0) == [True, True, True]


def test_blank_blocks_run_short_below_two_full_steps() -> None:
    policy = step_policy(total_blocks=4_000, block_size=16, max_num_batched_tokens=2_048)
    assert blank_runs_short(policy, [700, 44], 999)
    assert not blank_runs_short(policy, [700, 44], 1_000)
