"""How many prompt tokens a step computes, and what is owed from step to step."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_host import T0, T1, T2, T3, StepHost, step_policy

from tidegate.scheduling.contracts import PrefillLimits, SloMetric, SloObjective
from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.prefill_budget import StepBudget, step_budget
from tidegate.scheduling.prefill_shares import LONG_EVERY, PrefillShares
from tidegate.scheduling.step_policy import StepPolicy


@dataclass(frozen=True)
class Linear:
    """A step-time model with the terms of a 70B model on 8 GPUs."""

    floor: float = 0.014

    def seconds(self, tokens: int, kv_tokens_read: int, attention_pairs: float) -> float:
        computed = max(self.floor, 0.0095 + 4.12e-5 * tokens)
        return 0.003 + computed + 1.53e-8 * kv_tokens_read + 7e-10 * attention_pairs


def decode(tier: int, context: int = 1_000, tokens: int = 1) -> PlanRequest:
    request = PlanRequest("d", tier, "a", 0, context, 100)
    request.computed_tokens = context
    request.total_tokens = context + 1
    request.decode_tokens = tokens
    return request


def paced(tier_seconds: float | None = 0.1) -> StepPolicy:
    objective = SloObjective(SloMetric.INTER_TOKEN_LATENCY, tier_seconds or 1.0)
    tiers = (replace(T0, slo_objectives=(objective,)), T1, T2, T3)
    return step_policy(tiers if tier_seconds else (T0, T1, T2, T3), max_num_batched_tokens=8_192)


def test_a_percent_of_the_step_or_so_many_tokens() -> None:
    assert step_policy(max_num_batched_tokens=8_192).prefill_budget_tokens == 2_457
    limits = PrefillLimits(tokens_per_step=4_096)
    assert step_policy(prefill=limits).prefill_budget_tokens == 2_048
    assert step_policy(prefill=limits, max_num_batched_tokens=8_192).prefill_budget_tokens == 4_096


def test_the_budget_holds_while_anything_decodes_and_decodes_take_their_room_first() -> None:
    policy = step_policy(max_num_batched_tokens=2_048)
    assert step_budget(policy, [[], [], [], []], None).left == 2_048
    assert step_budget(policy, [[], [], [], [decode(3)]], None).left == 614
    drafting = [decode(3, tokens=5) for _ in range(300)]
    assert step_budget(policy, [[], [], [], drafting], None).left == 2_048 - 1_500
    assert step_budget(policy, [[], [], [], drafting * 2], None).left == 0


def test_with_an_objective_the_step_is_as_long_as_the_decodes_can_bear() -> None:
    decoding = [[decode(0, 5_000)], [], [], [decode(3, 2_000) for _ in range(150)]]
    model = Linear()
    budget = step_budget(paced(0.1), decoding, model)
    tokens = budget.most(1_000, 8_000)
    read = 5_001 + 150 * 2_001
    pairs = tokens * (1_000 + tokens / 2)
    assert model.seconds(151 + tokens, read, pairs) <= 0.1
    assert model.seconds(152 + tokens, read, pairs + 1_000 + tokens) > 0.1
    budget.take(1_000, tokens)
    assert budget.most(0, 8_000) <= 1
    # More than the fixed percent would give, or less, as the objective has it.
    assert tokens > 1_500
    tight = step_budget(paced(0.03), decoding, model).most(1_000, 8_000)
    assert 0 < tight < 400


def test_an_objective_of_a_tier_that_does_not_decode_binds_nobody() -> None:
    decoding = [[], [], [], [decode(3)]]
    assert step_budget(paced(0.001), decoding, Linear()).most(0, 9_000) == 2_457
    assert step_budget(paced(0.1), [[decode(0)], [], [], []], None).most(0, 9_000) == 2_457


def test_a_cap_of_all_tiers_binds_with_whoever_decodes() -> None:
    policy = replace(paced(None), step_seconds_cap=0.05)
    tokens = step_budget(policy, [[], [], [], [decode(3)]], Linear()).most(0, 9_000)
    assert 850 < tokens < 925


def test_prefills_go_on_where_the_decodes_alone_exceed_the_objective() -> None:
    decoding = [[decode(0, 10_000_000)], [], [], []]
    budget = step_budget(paced(0.05), decoding, Linear())
    assert budget.most(0, 9_000) == 2_457 // 8
    budget.take(0, 300)
    assert budget.most(0, 9_000) == 2_457 // 8 - 300


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.02, 0.4),
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 9_000)), max_size=6),
)
def test_no_step_is_longer_than_its_cap(cap: float, prompts: list[tuple[int, int]]) -> None:
    budget, model = StepBudget(8_192, 0), Linear()
    budget.cap(model, cap)
    budget.add_decodes([decode(0, 1_999)] * 10)
    pairs, granted = 0.0, 0
    for context, wanted in prompts:
        tokens = budget.most(context, wanted)
        assert 0 <= tokens <= wanted
        budget.take(context, tokens)
        granted += tokens
        pairs += tokens * (context + tokens / 2)
    assert granted == budget.granted == 8_192 - budget.left
    assert not granted or model.seconds(10 + granted, 20_000, pairs) <= cap


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 614), st.booleans()), min_size=1, max_size=80))
def test_a_tier_that_wants_tokens_gets_its_share_up_to_one_budget(
    steps: list[tuple[int, bool]],
) -> None:
    """Whatever higher tiers take: paid what is due, it is never behind by more."""
    policy = step_policy((T0, T1, T2, replace(T3, reserved_percent=20)))
    shares = PrefillShares(policy)
    total = own = 0
    for flood, pays in steps:
        owed = dict(shares.due()).get(3, 0)
        mine = min(owed, 614 - flood) if pays else owed
        granted = [flood, 0, 0, mine]
        shares.close(granted, [True] * 4, [None] * 4)
        total += sum(granted)
        own += mine
        assert own >= 0.2 * total - 614 - 16 or not pays


def test_credit_ends_with_the_demand_and_never_exceeds_a_budget() -> None:
    shares = PrefillShares(step_policy())
    for _ in range(1_000):
        shares.close([614, 0, 0, 0], [True] * 4, [None] * 4)
    assert shares.due() == [(3, 614), (2, 614), (1, 614)]
    shares.close([614, 0, 0, 0], [True, True, True, False], [None] * 4)
    assert [tier for tier, _ in shares.due()] == [2, 1]
    shares.close([0, 0, 614, 0], [True] * 4, [None] * 4)
    assert shares.due() == [(1, 614), (2, 30), (3, 30)]


def test_a_long_prompt_is_due_after_so_many_steps_without() -> None:
    shares = PrefillShares(step_policy())
    for _ in range(LONG_EVERY):
        assert not shares.long_is_due(1)
        shares.close([0, 614, 0, 0], [False] * 4, [None, False, None, None])
    assert shares.long_is_due(1)
    shares.close([0, 614, 0, 0], [False] * 4, [None, True, None, None])
    assert not shares.long_is_due(1)


def _shorts_and_a_long(percent: int) -> tuple[StepHost, PlanRequest]:
    prefill = PrefillLimits(budget_percent=percent, long_prompt_tokens=500)
    host = StepHost(step_policy(prefill=prefill, total_blocks=20_000, max_num_seqs=256))
    host.add("t3", 20, 10_000)
    host.step(2)
    return host, host.add("t1", 15_000, 2).request


@pytest.mark.parametrize("percent", [5, 30, 60])
def test_a_long_prompt_gets_at_most_half_while_short_ones_wait_and_never_nothing(
    percent: int,
) -> None:
    host, long = _shorts_and_a_long(percent)
    budget = host.policy.prefill_budget_tokens
    shares = []
    for _ in range(60):
        while sum(one.prompt_tokens for one in host.waiting if one is not long) < 2 * budget:
            host.add("t1", 90, 1)
        shares.append(host.step().grants.get(long.id, 0))
    assert max(shares) < budget // 2 + host.policy.engine.block_size
    for start in range(0, 56):
        assert any(shares[start : start + LONG_EVERY + 1])


def test_a_long_prompt_gets_all_that_the_short_ones_leave() -> None:
    host, long = _shorts_and_a_long(30)
    host.add("t1", 100, 1)
    assert host.step().grants[long.id] == 614 - 100
    assert host.step().grants[long.id] == 614


def test_the_chunk_of_one_prompt_is_capped_in_any_tier() -> None:
    prefill = PrefillLimits(chunk_tokens=200)
    host = StepHost(step_policy(prefill=prefill))
    host.add("t3", 20, 1_000)
    host.step()
    first, second = host.add("t0", 3_000, 2), host.add("t0", 250, 2)
    assert host.step().grants == {first.request.id: 200, second.request.id: 200}
    assert host.step().grants == {first.request.id: 200, second.request.id: 50}


def test_a_running_prompt_of_a_lower_tier_gets_what_an_admissible_higher_one_leaves() -> None:
    host = StepHost(replace(step_policy(), max_paused_steps=0))
    host.add("t3", 20, 1_000)
    low = host.add("t2", 5_000, 2).request
    host.step(2)
    high = host.add("t0", 400, 2).request
    assert host.step().grants == {high.id: 400, low.id: 214}


def test_a_prompt_of_an_evictable_tier_stands_back_for_a_protected_one_but_not_for_ever() -> None:
    host = StepHost(step_policy(total_blocks=4_000))
    host.add("t3", 20, 1_000)
    host.step()
    low = host.add("t2", 9_000, 2).request
    high = host.add("t0", 5_000, 2).request
    plans = [host.step() for _ in range(8)]
    assert [plan.grants.get(low.id, 0) > 0 for plan in plans] == [False] * 3 + [True] + (
        [False] * 3 + [True]
    )
    while high.computed_tokens < 5_000:
        host.step()
    host.step()
    assert host.step().grants == {low.id: 614}


def test_time_that_standing_back_leaves_goes_to_the_protected_prompt() -> None:
    policy = replace(paced(None), step_seconds_cap=0.05)
    decoding = [[], [], [], [decode(3, 4_000) for _ in range(200)]]
    beside = step_budget(policy, decoding, Linear())
    alone = step_budget(policy, decoding, Linear(), standing_back=(3,))
    assert alone.most(0, 9_000) > beside.most(0, 9_000) + 400
    alone.add_decodes(decoding[3])
    assert alone.most(0, 9_000) == beside.most(0, 9_000)


def test_nothing_is_withheld_for_one_that_cannot_enter() -> None:
    host = StepHost(step_policy(max_num_seqs=2))
    host.add("t3", 20, 1_000)
    low = host.add("t2", 5_000, 2).request
    host.step(2)
    host.add("t3", 400, 2)
    assert host.step().grants == {low.id: 614}


def test_a_cap_does_not_cut_the_prompt_in_two_for_which_others_stand_back() -> None:
    policy = replace(paced(None), step_seconds_cap=0.05)
    host = StepHost(policy, step_time=Linear())
    host.add("t3", 20, 1_000)
    host.step(2)
    first = host.add("t0", 1_600, 2).request
    plan = host.step()
    assert plan.grants == {first.id: 1_600}
    assert plan.paused == {"r0"}
    second = host.add("t1", 1_600, 2).request
    assert host.step().grants[second.id] < 1_000


def test_what_the_cap_does_not_cut_is_the_first_tiers_and_no_more_than_the_percent() -> None:
    policy = replace(paced(None), step_seconds_cap=0.05)
    decoding = [[], [], [], [decode(3)]]
    beside = step_budget(policy, decoding, Linear(), [3])
    first = step_budget(policy, decoding, Linear(), [3], True)
    assert first.most(0, 8_000, first_tier=True) == policy.prefill_budget_tokens
    assert first.most(0, 8_000) == beside.most(0, 8_000) < 1_000
    first.take(0, 1_600)
    assert first.most(0, 8_000) == 0
    assert first.most(0, 8_000, first_tier=True) == policy.prefill_budget_tokens - 1_600


def test_nobody_else_lengthens_the_step_that_the_cap_leaves_to_the_first_tier() -> None:
    policy = replace(paced(None), step_seconds_cap=0.05)
    host = StepHost(policy, step_time=Linear())
    host.add("t3", 20, 1_000)
    host.step(2)
    first, second = host.add("t0", 1_600, 2).request, host.add("t1", 800, 2).request
    assert host.step().grants == {first.id: 1_600}
    assert host.step().grants == {second.id: 800}


def test_a_percent_is_time_where_the_step_time_is_known() -> None:
    policy, decoding = paced(None), [[], [], [], [decode(3, 4_000) for _ in range(100)]]
    budget = step_budget(policy, decoding, Linear())
    assert budget.most(0, 9_000) == policy.prefill_budget_tokens == 2_457
    late = budget.most(200_000, 9_000)
    model, read = Linear(), 100 * 4_001
    most_seconds = model.seconds(100 + 2_457, read, 2_457 * 2_457 / 2)
    assert model.seconds(100 + late, read, late * (200_000 + late / 2)) <= most_seconds
    assert model.seconds(101 + late, read, (late + 1) * (200_000 + late / 2)) > most_seconds
    assert 500 < late < 700
    budget.take(200_000, late)
    assert budget.most(0, 9_000) < 5
    assert step_budget(policy, decoding, None).most(200_000, 9_000) == 2_457


def test_a_tier_that_time_holds_up_is_owed_its_share() -> None:
    """Tokens are left in the step, but no time for them."""
    host = StepHost(replace(paced(None), max_paused_steps=0), step_time=Linear())
    host.add("t3", 20, 1_000)
    host.step(2)
    low = host.add("t2", 9_000, 2).request
    host.step()
    served = [0, 0]
    for _ in range(60):
        while not any(one.tier == 0 for one in host.waiting):
            host.add("t0", 6_000, 1)
        grants = host.step().grants
        served = [served[0] + sum(grants.values()), served[1] + grants.get(low.id, 0)]
        if low.computed_tokens >= 9_000:
            break
    assert served[1] >= 0.05 * served[0] - host.policy.prefill_budget_tokens


def test_an_objective_for_tokens_binds_the_first_tier_too() -> None:
    budget = step_budget(paced(0.05), [[decode(0)], [], [], [decode(3)]], Linear(), [3], True)
    assert budget.most(0, 8_000) < 1_000
