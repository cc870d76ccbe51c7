"""Who enters a step: seats and their claims, blocks promised and pending, order inside a tier."""

from dataclasses import replace

from support.step_host import T0, T1, T2, T3, StepHost, step_policy

from tidegate.scheduling.contracts import KvPool, PrefillLimits
from tidegate.scheduling.plan_request import PlanRequest, StepState, Veto
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.scheduling.step_policy import StepPolicy


def long_lived(host: StepHost, tier: str, count: int, prompt: int = 20) -> None:
    for _ in range(count):
        host.add(tier, prompt, 2_000, expected=16)
    for _ in range(10):
        host.step()
    assert not host.waiting


def test_a_free_seat_that_a_reserved_tier_waits_for_is_not_given_to_another() -> None:
    tiers = (T0, T1, T2, replace(T3, reserved_percent=25))
    host = StepHost(step_policy(tiers, max_num_seqs=4))
    long_lived(host, "t1", 3)
    reserved = host.add("t3", 20, 50)
    other = host.add("t1", 20, 50)
    plan = host.step()
    assert plan.admit == [reserved.request]
    assert plan.vetoed == {other.request.id: Veto.NO_SEAT}


def _prompt_in_progress(policy: StepPolicy) -> tuple[StepHost, PlanRequest]:
    """90 of 100 blocks are promised to a prompt that has computed 30 of them."""
    host = StepHost(policy)
    long = host.add("t2", 90 * 16, 1).request
    host.step()
    return host, long


def _chunked(**terms: object) -> StepPolicy:
    limits = PrefillLimits(chunk_tokens=480)
    policy = step_policy(prefill=limits, total_blocks=100)
    return replace(policy, watermark_blocks=0, **terms)  # type: ignore[arg-type]


def test_what_is_promised_to_a_running_prompt_is_free_to_a_higher_tier_only() -> None:
    host, long = _prompt_in_progress(_chunked())
    assert long.blocks == 30
    equal = host.add("t2", 11 * 16, 1)
    plan = host.step()
    assert plan.vetoed == {equal.request.id: Veto.KV_QUOTA}
    higher = host.add("t0", 11 * 16, 1)
    plan = host.step()
    assert plan.admit == [higher.request]
    assert plan.preempt == []
    host.drain()


def test_what_a_running_prompt_takes_in_this_step_is_not_counted_as_promised_too() -> None:
    host, _ = _prompt_in_progress(_chunked())
    fits = host.add("t3", 10 * 16, 1)
    assert host.step().admit == [fits.request]


def test_nobody_is_preempted_for_blocks_that_steps_in_flight_are_about_to_free() -> None:
    host = StepHost(step_policy(total_blocks=100))
    long_lived(host, "t3", 8, prompt=170)
    first = host.add("t0", 20 * 16, 5)
    state = host.state()
    short = 20 - state.free_blocks
    assert short > 0
    pending = replace(state, pending_free_blocks=short)
    plan = StepPlanner(host.policy).plan(pending)
    assert plan.vetoed[first.request.id] is Veto.KV_PENDING
    assert plan.preempt == plan.admit == []
    # One block less on its way, and it takes victims.
    plan = StepPlanner(host.policy).plan(replace(state, pending_free_blocks=short - 1))
    assert plan.preempt
    assert plan.admit == [first.request]


def test_nobody_enters_for_less_than_a_block_of_its_prompt() -> None:
    host = StepHost(step_policy(prefill=PrefillLimits(tokens_per_step=100)))
    long_lived(host, "t3", 1)
    first, second = host.add("t1", 90, 5), host.add("t1", 90, 5)
    third = host.add("t2", 8, 5)
    plan = host.step()
    assert plan.admit == [first.request, third.request] or plan.admit == [first.request]
    assert plan.vetoed[second.request.id] is Veto.PREFILL_BUDGET


def test_a_victim_in_mid_prompt_gets_no_tokens_in_the_step_in_which_it_goes() -> None:
    policy = replace(_chunked(), max_paused_steps=0)
    host, long = _prompt_in_progress(policy)
    host.step()
    assert long.blocks == 60
    first = host.add("t0", 80 * 16, 1)
    plan = host.step()
    assert plan.preempt == [long]
    assert plan.grants == {first.request.id: 480}
    host.drain()


def test_one_that_does_not_fit_is_not_passed_by_a_smaller_one_of_its_tier() -> None:
    pools = (
        KvPool(name="low", tiers=("t2", "t3"), percent=100),
        KvPool(name="high", tiers=("t0", "t1"), percent=0),
    )
    prefill = PrefillLimits(long_prompt_tokens=5_000)
    host = StepHost(step_policy(kv_pools=pools, prefill=prefill, total_blocks=100))
    long_lived(host, "t3", 1, prompt=60 * 16)
    large = host.add("t3", 60 * 16, 5)
    small = host.add("t3", 20, 5)
    passes = host.add("t2", 20, 5)
    plan = host.step()
    assert plan.admit == [passes.request]
    assert large.request.id in plan.vetoed
    assert small.request.id not in plan.vetoed, "nobody looked at it"


def test_a_preempted_request_keeps_its_place_and_is_passed_only_in_its_backoff() -> None:
    host = StepHost(step_policy(max_num_seqs=2))
    long_lived(host, "t3", 2)
    host.add("t0", 20, 30)
    victim = host.step().preempt[0]
    late = host.add("t3", 20, 5)
    assert victim.not_before > host.now - host.step_seconds
    while late.admitted_step is None and victim not in host.running:
        host.step()
    assert victim in host.running
    assert late.admitted_step is None


def test_an_evictable_tier_waits_for_lower_ones_of_its_pool_and_they_let_it_by() -> None:
    host = StepHost(step_policy(total_blocks=100, prefill=PrefillLimits(budget_percent=60)))
    low = [host.add("t3", 16 * 15, 40) for _ in range(5)]
    host.step(3)
    long = host.add("t2", 16 * 60, 5)
    late = [host.add("t3", 16 * 15, 40) for _ in range(5)]
    while host.step().vetoed.get(long.request.id) is Veto.KV_FULL:
        assert not any(job.admitted_step for job in late)
    assert long.admitted_step is not None
    assert all(job.finished_step is not None for job in low)
    host.drain()
    assert host.preemptions == 0


def test_an_evictable_tier_below_its_reservation_does_not_wait_for_lower_ones() -> None:
    tiers = (T0, T1, replace(T2, reserved_percent=70), T3)
    host = StepHost(step_policy(tiers, total_blocks=100))
    long_lived(host, "t3", 5, prompt=16 * 15)
    long = host.add("t2", 16 * 60, 5)
    assert host.step().admit == [long.request]
    assert host.preemptions


def test_a_burst_of_a_protected_tier_takes_what_lower_ones_hold_of_the_rest() -> None:
    pools = (KvPool(name="protected", tiers=("t0",), percent=40),)
    host = StepHost(step_policy(kv_pools=pools, total_blocks=100))
    for _ in range(5):
        host.add("t3", 16 * 10, 60, expected=16)
    host.step(5)
    burst = [host.add("t0", 16 * 18, 30) for _ in range(4)]
    host.step(2)
    assert all(job.admitted_step is not None for job in burst)
    assert {one.tier for step in host.plans for one in step.preempt} == {3}
    assert host.preemptions == 3
    host.drain()


def _prompts_that_fill_the_engine(free_blocks: int) -> tuple[StepPlanner, StepState]:
    """Two running prompts hold all but so many of 100 blocks, and neither is complete."""
    policy = step_policy(total_blocks=100)
    running = []
    for number, blocks in enumerate((60, 40 - free_blocks)):
        one = PlanRequest(f"r{number}", 3, "a", number, 2_000, 5)
        one.blocks, one.computed_tokens = blocks, blocks * 16
        running.append(one)
    nobody: list[list[PlanRequest]] = [[] for _ in policy.tiers]
    return StepPlanner(policy), StepState(0.0, running, nobody, free_blocks, [0])


def test_a_running_prompt_computes_no_more_than_it_finds_blocks_for() -> None:
    planner, state = _prompts_that_fill_the_engine(free_blocks=3)
    plan = planner.plan(state)
    assert plan.grants == {"r0": 3 * 16}
    assert plan.preempt == []


def test_prompts_that_hold_each_other_up_end_by_the_last_giving_way() -> None:
    planner, state = _prompts_that_fill_the_engine(free_blocks=0)
    plan = planner.plan(state)
    assert plan.grants == {}
    assert plan.preempt == [state.running[1]]
    assert plan.preempted_for == {"r1": "r0"}
    # Blocks that steps in flight free will do.
    assert planner.plan(replace(state, pending_free_blocks=1)).preempt == []


def test_the_next_block_of_who_decodes_is_not_given_to_one_that_enters() -> None:
    policy = step_policy(total_blocks=100)
    decode = PlanRequest("decode", 0, "a", 0, 16 * 92, 5)
    decode.blocks, decode.computed_tokens, decode.total_tokens = 92, 16 * 92, 16 * 92 + 1
    for blocks, enters in ((7, True), (8, False)):
        first = PlanRequest("first", 0, "a", 1, 16 * blocks, 1)
        state = StepState(0.0, [decode], [[first], [], [], []], 8, [0])
        assert bool(StepPlanner(policy).plan(state).admit) is enters


def test_the_cache_of_a_pool_that_nobody_uses_any_more_is_lent() -> None:
    pools = (
        KvPool(name="protected", tiers=("t0",), percent=60),
        KvPool(name="rest", tiers=("t1", "t2", "t3"), percent=40),
    )
    policy = step_policy(kv_pools=pools, total_blocks=100)
    planner = StepPlanner(policy)
    first, low = PlanRequest("a", 0, "a", 0, 16, 1), PlanRequest("b", 3, "b", 1, 60 * 16, 1)
    planner.plan(StepState(0.0, [], [[first], [], [], []], 100, [0, 0]))
    waits = StepState(500.0, [], [[], [], [], [low]], 100, [60, 0])
    running = PlanRequest("c", 3, "b", 2, 16, 9)
    running.blocks, running.computed_tokens, running.total_tokens = 1, 16, 17
    waits = replace(waits, running=[running], free_blocks=99)
    assert planner.plan(waits).vetoed == {"b": Veto.KV_QUOTA}
    assert planner.plan(replace(waits, now=700.0)).admit == [low]
