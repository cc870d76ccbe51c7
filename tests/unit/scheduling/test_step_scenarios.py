"""What the plug-in must achieve on a real engine, on the planner alone: issue 6, items 2 to 4."""

from dataclasses import replace

import pytest
from support.step_host import T0, T1, T2, T3, TIERS, Job, StepHost, step_policy

from tidegate.scheduling.contracts import KvPool, PrefillLimits
from tidegate.scheduling.plan_request import Veto

POOLS = (
    KvPool(name="protected", tiers=("t0", "t1"), percent=70),
    KvPool(name="batch", tiers=("t2",), percent=20),
    KvPool(name="free", tiers=("t3",), percent=10),
)


def host(budget_percent: int = 30, **terms: object) -> StepHost:
    prefill = PrefillLimits(budget_percent=budget_percent)
    return StepHost(step_policy(prefill=prefill, **terms))  # type: ignore[arg-type]


def wait_steps(job: Job) -> int:
    """Steps before the one that gave its first token."""
    assert job.first_token_step is not None
    return job.first_token_step - job.arrived_step


@pytest.mark.parametrize("budget_percent", [5, 30, 60])
def test_prefill_stays_in_its_budget_beside_decodes_and_nothing_starves(
    budget_percent: int,
) -> None:
    steps = host(budget_percent, max_num_seqs=128, total_blocks=4_000)
    for number in range(40):
        steps.add("t0", 50 + 13 * number, 40)
        steps.add("t3", 400, 60)
    long = steps.add("t2", 9_000, 10)
    steps.drain()
    budget = 2_048 * budget_percent // 100
    beside_decodes = [tokens for tokens, decodes in steps.prefill_tokens if decodes]
    assert max(beside_decodes) == budget
    assert long.finished_step is not None
    assert steps.preemptions == 0


@pytest.mark.parametrize("budget_percent", [5, 60])
def test_a_lower_tier_goes_on_under_an_endless_flood(budget_percent: int) -> None:
    steps = host(budget_percent, max_num_seqs=256, total_blocks=100_000)
    jobs = [steps.add("t3", 1_000, 5), steps.add("t2", 4_000, 5)]
    steps.add("t1", 16, 100_000)
    while not all(job.finished_step for job in jobs):
        if len(steps.waiting) < 10:
            for _ in range(3):
                steps.add("t0", 700, 1)
        steps.step()
        assert steps.steps < 4_000
    flood = [job for job in steps.jobs.values() if job.request.tier == 0]
    assert flood[-1].first_token_step is None, "the flood was no flood"


@pytest.mark.parametrize("budget_percent", [5, 30, 60])
def test_a_short_prompt_passes_a_long_one_of_a_lower_tier_in_mid_prefill(
    budget_percent: int,
) -> None:
    steps = host(budget_percent)
    for _ in range(4):
        steps.add("t3", 50, 500)
    steps.step(10)
    long = steps.add("t2", 2_000, 10)
    steps.step(1)
    assert 0 < long.request.computed_tokens < 2_000
    first = steps.add("t0", 60, 5)
    steps.step(2)
    assert wait_steps(first) <= 1
    steps.drain()


@pytest.mark.parametrize("victims", [1, 4, 16])
def test_a_protected_prompt_gets_the_blocks_of_as_many_victims_as_it_needs(victims: int) -> None:
    steps = host(total_blocks=400, max_num_seqs=64)
    for _ in range(40):
        steps.add("t3", 145, 400, expected=14)
    while Veto.KV_FULL not in steps.step().vetoed.values():
        assert not steps.preemptions
    first = steps.add("t0", 16 * (steps.free_blocks + 10 * victims) - 40, 4)
    plan = steps.step()
    assert first.admitted_step == first.arrived_step
    assert len(plan.preempt) == victims
    assert {one.tier for one in plan.preempt} == {3}
    steps.step(-(-first.request.prompt_tokens // 614) - 1)
    assert first.first_token_step is not None
    steps.drain()


def test_a_protected_prompt_gets_a_seat_at_once_and_only_one_is_preempted() -> None:
    steps = host(max_num_seqs=16)
    running = [steps.add("t3", 100 + number, 400) for number in range(16)]
    steps.step(20)
    assert len(steps.running) == 16
    first = steps.add("t0", 60, 4)
    plan = steps.step()
    assert first.first_token_step == first.arrived_step
    cheapest = min(running, key=lambda job: job.request.prompt_tokens)
    assert plan.preempt == [cheapest.request]
    assert cheapest.request.id in steps.step().vetoed or cheapest.request in steps.running
    steps.drain()


def test_a_lower_tier_within_its_reservation_keeps_its_seats() -> None:
    tiers = (T0, replace(T3, reserved_percent=50))
    steps = host(tiers=tiers, max_num_seqs=8)
    for _ in range(8):
        steps.add("t3", 100, 400)
    steps.step(5)
    for _ in range(8):
        steps.add("t0", 100, 400)
    plans = [steps.step() for _ in range(20)]
    assert sum(len(plan.preempt) for plan in plans) == 4
    assert [one.tier for one in steps.running].count(1) == 4
    assert Veto.NO_SEAT in plans[-1].vetoed.values()


def test_a_flood_keeps_within_nominal_and_borrow_limit_and_what_is_lent_comes_back() -> None:
    pools = (
        KvPool(name="protected", tiers=("t0", "t1"), percent=50, lendable_percent=30),
        KvPool(name="batch", tiers=("t2", "t3"), percent=50, borrow_limit_percent=20),
    )
    steps = host(kv_pools=pools, total_blocks=1_000, max_num_seqs=200)
    for _ in range(150):
        steps.add("t2", 150, 160)
    most = 0
    for _ in range(300):
        steps.step()
        most = max(most, steps.held("t2"))
    assert 650 < most <= 700
    demand = [steps.add("t0", 300, 20) for _ in range(24)]
    for _ in range(400):
        plan = steps.step()
        assert steps.held("t2") <= 700
        for job in demand:
            assert plan.vetoed.get(job.request.id) in (None, Veto.PREFILL_BUDGET)
    assert max(wait_steps(job) for job in demand) <= 12
    assert steps.preemptions > 0
    steps.drain()


def test_idle_blocks_of_a_tier_are_lent_and_reclaimed_from_the_last_tier_first() -> None:
    steps = host(kv_pools=POOLS, total_blocks=1_000, max_num_seqs=200)
    for _ in range(80):
        steps.add("t3", 100, 300)
    while steps.held("t3") < 850:
        steps.step()
    batch = [steps.add("t2", 600, 200) for _ in range(3)]
    steps.step(8)
    assert all(job.first_token_step for job in batch)
    steps.add("t0", 6_000, 10)
    plan = steps.step()
    assert len(plan.admit) == 1
    assert plan.preempt
    assert {victim.tier for one in steps.plans for victim in one.preempt} == {3}
    steps.drain()


@pytest.mark.parametrize("tier", ["t0", "t3"])
def test_a_lone_tenant_gets_everything(tier: str) -> None:
    """It runs as many at once as fit, and its makespan is that of an engine without pools."""
    makespans = []
    for pools in (POOLS, ()):
        steps = host(kv_pools=pools, total_blocks=1_000, max_num_seqs=64)
        for _ in range(200):
            steps.add(tier, 160, 160)
        most = 0
        while steps.running or steps.waiting:
            steps.step()
            most = max(most, steps.held(tier))
        makespans.append(steps.steps)
        assert most > 950
        assert steps.preemptions == 0
    assert makespans[0] == makespans[1]


def test_the_history_of_a_protected_session_outlives_churn_of_twice_the_cache() -> None:
    steps = host(kv_pools=POOLS, total_blocks=1_000, max_num_seqs=32)
    turns = _session(steps, turns=11, churn=True)
    alone = _session(host(kv_pools=POOLS, total_blocks=1_000), turns=11, churn=False)
    churned = sum(
        -(-(job.request.prompt_tokens + job.output_tokens) // 16)
        for job in steps.jobs.values()
        if job.request.tier == 3 and job.finished_step
    )
    assert churned >= 2_000
    assert turns[-1].hit_tokens >= 0.9 * alone[-1].hit_tokens > 0


def _session(steps: StepHost, turns: int, churn: bool) -> list[Job]:
    jobs = []
    for turn in range(turns):
        jobs.append(steps.add("t0", 200 + 220 * turn, 20, history="session"))
        while jobs[-1].finished_step is None:
            steps.step()
        for _ in range(60):
            while churn and len(steps.waiting) < 8:
                steps.add("t3", 300, 40)
            steps.step()
    return jobs


def test_an_avalanche_recomputes_little_and_never_a_protected_request() -> None:
    """Incident B in small: long prompts of a lower tier come all at once while sessions go on."""
    steps = host(kv_pools=POOLS, total_blocks=1_000, max_num_seqs=64)
    sessions: list[Job] = []
    for number in range(6):
        sessions.append(steps.add("t0", 400, 20, history=f"s{number}"))
        steps.step(5)
    for _ in range(20):
        steps.add("t2", 3_000, 100)
    for turn in range(1, 6):
        for number in range(6):
            sessions.append(steps.add("t0", 400 + 150 * turn, 20, history=f"s{number}"))
            steps.step(10)
    assert max(wait_steps(job) for job in sessions) <= 2
    steps.drain()
    recomputed = sum(
        job.computed_total + job.hit_tokens - job.request.prompt_tokens - job.output_tokens + 1
        for job in steps.jobs.values()
    )
    scheduled = sum(job.computed_total for job in steps.jobs.values())
    assert recomputed <= 0.02 * scheduled
    assert all(job.request.preemptions == 0 for job in sessions)


def test_decodes_of_lower_tiers_pause_while_a_protected_prompt_is_computed() -> None:
    steps = host()
    lower = [steps.add("t3", 40, 300) for _ in range(8)]
    peer = steps.add("t1", 40, 300)
    steps.step(10)
    long = steps.add("t0", 6_000, 5)
    before = [job.said_tokens for job in lower]
    plans = [steps.step() for _ in range(8)]
    assert long.request.computed_tokens > 0
    paused = [len(plan.paused) for plan in plans]
    assert paused == [8, 8, 8, 0, 8, 8, 8, 0]
    assert [job.said_tokens - was for job, was in zip(lower, before, strict=True)] == ([2] * 8)
    assert all(peer.request.id not in plan.paused for plan in plans)
    never = StepHost(replace(steps.policy, max_paused_steps=0))
    never.add("t3", 40, 300)
    never.step(2)
    never.add("t0", 600, 5)
    assert not never.step().paused


def test_long_prompts_of_a_tier_leave_the_short_ones_of_the_same_tier_their_latency() -> None:
    """Incident A: two prompts of 20,000 tokens and short ones in one class."""
    waits = {}
    for longs in (0, 2):
        steps = host(total_blocks=10_000)
        steps.add("t3", 40, 100_000)
        for _ in range(longs):
            steps.add("t1", 20_000, 5)
        short = []
        for _ in range(40):
            short.append(steps.add("t1", 400, 5))
            steps.step(2)
        steps.step(4)
        waits[longs] = max(wait_steps(job) for job in short)
        steps.step(150)
        assert all(
            job.finished_step for job in steps.jobs.values() if job.request.prompt_tokens > 1_000
        )
    assert waits[2] <= waits[0] + 1


def test_all_of_the_step_when_nothing_decodes() -> None:
    steps = host(budget_percent=5)
    steps.add("t1", 5_000, 5)
    assert sum(steps.step().grants.values()) == 2_048


def test_the_tiers_of_the_scenarios_are_as_the_source_has_them() -> None:
    policy = step_policy()
    assert [tier.name for tier in policy.tiers] == ["t0", "t1", "t2", "t3"]
    assert [tier.protected for tier in policy.tiers] == [True, True, False, False]
    assert TIERS == (T0, T1, T2, T3)
