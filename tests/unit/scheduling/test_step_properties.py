"""What holds of step plans whatever arrives, on the host of counters.

The host itself checks at every step that tokens, seats and blocks are conserved, that each victim
is one once, and that nobody gets what is not due.
"""

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_host import T0, T1, T2, T3, StepHost, step_policy

from tidegate.scheduling.contracts import KvPool, Preemption, PrefillLimits, TierPolicy
from tidegate.scheduling.step_plan import PlanRequest, StepPlan, StepPolicy, Veto

_FEW = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Arrival:
    """One request of a drawn workload."""

    step: int
    tier: str
    tenant: str
    prompt: int
    output: int
    expected_percent: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 60),
        tier=st.sampled_from(["t0", "t1", "t2", "t3"]),
        tenant=st.sampled_from(["a", "b", "c"]),
        prompt=st.one_of(st.integers(1, 60), st.integers(60, 700)),
        output=st.integers(1, 80),
        expected_percent=st.sampled_from([30, 100, 100]),
    ),
    min_size=1,
    max_size=40,
)


@st.composite
def tiers(draw: st.DrawFn) -> tuple[TierPolicy, ...]:
    """Tiers with reservations, and any of the lower two evictable."""
    reserved = draw(st.sampled_from([(0, 0, 0, 0), (40, 20, 20, 10), (0, 0, 0, 50)]))
    evictable = draw(st.sampled_from([(0, 0, 1, 1), (0, 0, 0, 1), (0, 0, 0, 0), (1, 1, 1, 1)]))
    return tuple(
        replace(
            tier,
            reserved_percent=percent,
            preemption=Preemption(evictable=bool(may), max_per_request=2),
        )
        for tier, percent, may in zip((T0, T1, T2, T3), reserved, evictable, strict=True)
    )


POOLS = st.sampled_from(
    [
        (),
        (
            KvPool(name="protected", tiers=("t0", "t1"), percent=60),
            KvPool(name="rest", tiers=("t2", "t3"), percent=40),
        ),
        (
            KvPool(name="protected", tiers=("t0",), percent=50, lendable_percent=20),
            KvPool(name="batch", tiers=("t2",), percent=20, borrow_limit_percent=10),
        ),
    ]
)


@st.composite
def policies(draw: st.DrawFn) -> StepPolicy:
    """A small engine, easily filled in tokens, seats and blocks."""
    return step_policy(
        draw(tiers()),
        kv_pools=draw(POOLS),
        prefill=PrefillLimits(
            budget_percent=draw(st.sampled_from([5, 30, 60])),
            chunk_tokens=draw(st.sampled_from([None, 48])),
            long_prompt_tokens=draw(st.sampled_from([None, 100])),
        ),
        total_blocks=draw(st.sampled_from([60, 120])),
        max_num_seqs=draw(st.sampled_from([3, 12])),
        max_num_batched_tokens=256,
    )


def run(policy: StepPolicy, arrivals: list[Arrival], *, tells_phases: bool = False) -> StepHost:
    """All of them to their end."""
    host = StepHost(policy, tells_phases=tells_phases)
    for arrival in sorted(arrivals, key=lambda one: one.step):
        while host.steps < arrival.step:
            host.step()
        host.add(
            arrival.tier,
            arrival.prompt,
            arrival.output,
            tenant=arrival.tenant,
            expected=max(arrival.output * arrival.expected_percent // 100, 1),
        )
    host.drain(at_most=4_000)
    return host


@settings(max_examples=80, deadline=None)
@given(policies(), ARRIVALS)
def test_whatever_arrives(policy: StepPolicy, arrivals: list[Arrival]) -> None:
    host = run(policy, arrivals)
    assert all(job.finished_step is not None for job in host.jobs.values())
    _check_the_budget_holds_while_anything_decodes(host)
    _check_no_step_idles_while_somebody_could_compute(host)
    _check_victims_are_below_those_they_make_room_for(host)


def _check_the_budget_holds_while_anything_decodes(host: StepHost) -> None:
    beside_decodes = [tokens for tokens, decodes in host.prefill_tokens if decodes]
    assert max(beside_decodes, default=0) <= host.policy.prefill_budget_tokens


def _check_no_step_idles_while_somebody_could_compute(host: StepHost) -> None:
    for plan, (tokens, decodes) in zip(host.plans, host.prefill_tokens, strict=True):
        if not tokens and decodes <= len(plan.paused):
            backing_off = Veto.RECOMPUTE_BACKOFF in plan.vetoed.values()
            assert plan.preempt or backing_off or not plan.vetoed


def _check_victims_are_below_those_they_make_room_for(host: StepHost) -> None:
    tiers = host.policy.tiers
    by_choice: Counter[str] = Counter()
    for plan in host.plans:
        entering = {one.id for one in plan.admit}
        for victim in plan.preempt:
            gainer = host.jobs[plan.preempted_for[victim.id]].request
            if gainer.id in entering:
                assert tiers[victim.tier].evictable
                assert tiers[victim.tier].priority < tiers[gainer.tier].priority
                by_choice[victim.id] += 1
            else:
                assert (victim.tier, victim.sequence) >= (gainer.tier, gainer.sequence)
    assert all(times <= 2 for times in by_choice.values())


@_FEW
@given(policies(), ARRIVALS)
def test_equal_states_give_equal_plans(policy: StepPolicy, arrivals: list[Arrival]) -> None:
    """Whether the planner looks at each that runs or remembers what it found."""
    first, second = run(policy, arrivals), run(policy, arrivals, tells_phases=True)
    assert [_said(plan) for plan in first.plans] == [_said(plan) for plan in second.plans]


def _said(plan: StepPlan) -> object:
    return (
        [one.id for one in plan.preempt],
        plan.grants,
        plan.paused,
        [one.id for one in plan.admit],
        plan.vetoed,
        plan.unhash_pools,
        plan.preempted_for,
    )


@_FEW
@given(policies(), ARRIVALS)
def test_pools_keep_within_nominal_and_borrow_limit(
    policy: StepPolicy, arrivals: list[Arrival]
) -> None:
    """With outputs as expected. One request that is too large by itself is the exception."""
    host = StepHost(policy)
    queue = sorted(arrivals, key=lambda one: one.step)
    while queue or host.running or host.waiting:
        while queue and queue[0].step <= host.steps:
            one = queue.pop(0)
            host.add(one.tier, one.prompt, one.output, tenant=one.tenant)
        host.step()
        assert host.steps < 4_000
        for index, pool in enumerate(policy.pools):
            those = [one for one in host.running if policy.tiers[one.tier].pool == index]
            most = pool.nominal_blocks + pool.borrow_limit_blocks
            assert len(those) == 1 or sum(one.blocks for one in those) <= most + len(those)


@_FEW
@given(ARRIVALS, POOLS, st.sampled_from(["t0", "t1", "t2", "t3"]))
def test_a_lone_tier_is_served_as_if_there_were_no_pools(
    arrivals: list[Arrival], pools: tuple[KvPool, ...], tier: str
) -> None:
    limited = {pool.name for pool in pools if pool.lendable_percent or pool.borrow_limit_percent}
    lendable = tuple(
        replace(pool, lendable_percent=None, borrow_limit_percent=None)
        if pool.name in limited
        else pool
        for pool in pools
    )
    alone = [replace(arrival, tier=tier, expected_percent=100) for arrival in arrivals]
    ends = []
    for kv_pools in ((), lendable):
        host = run(step_policy(kv_pools=kv_pools, total_blocks=120, max_num_seqs=12), alone)
        ends.append([job.finished_step for job in host.jobs.values()])
        assert host.preemptions == 0
    assert ends[0] == ends[1]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([5, 60]))
def test_a_long_prompt_of_the_lowest_tier_ends_under_a_flood(seed: int, percent: int) -> None:
    """The flood alone would fill the budget for ever; the floor is what the long one gets."""
    prefill = PrefillLimits(budget_percent=percent)
    policy = step_policy(prefill=prefill, total_blocks=4_000, max_num_batched_tokens=512)
    host = StepHost(policy)
    host.add("t2", 20, 5_000)
    host.step(2)
    long = host.add("t3", 1_000, 3)
    while long.finished_step is None:
        while sum(one.prompt_tokens for one in host.waiting) < 1_200:
            seed = (seed * 1_103_515_245 + 12_345) % 2**31
            host.add("t0", 1 + seed % 400, 1)
        host.step()
        # 5% of the budget, and the flood pauses others in no more than three of four steps.
        assert host.steps < 40 + 1.3 * 1_000 / (0.05 * policy.prefill_budget_tokens)
    protected = [one for plan in host.plans for one in plan.preempt if one.tier == 0]
    assert protected == []


def test_an_expected_output_below_one_or_above_the_most_is_the_most() -> None:
    for expected in (0, -1, 9):
        request = PlanRequest("r", 0, "a", 0, 10, 8, expected_output_tokens=expected)
        assert request.expected_output_tokens == 8
