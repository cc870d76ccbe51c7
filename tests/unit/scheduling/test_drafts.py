"""How many draft tokens a step verifies: by tier, and when prompts need the room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.scheduling import contracts
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState
from tidegate.scheduling.step_plan import StepPlanner
from tidegate.scheduling.step_policy import EngineSize, StepPolicy, compile_step_policy

SIZE = EngineSize(total_blocks=4_000, block_size=16, max_num_seqs=64, max_num_batched_tokens=128)


def terms(*draft_tokens: int | None, budget_tokens: int = 40) -> StepPolicy:
    """A tier for each, the highest first; the last one evictable."""
    tiers = tuple(
        contracts.TierPolicy(name=f"t{i}", priority=-i, draft_tokens=tokens)
        for i, tokens in enumerate(draft_tokens)
    )
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="a/b",
        model=contracts.ModelPolicy("m"),
        tiers=tiers,
        prefill=contracts.PrefillLimits(tokens_per_step=budget_tokens),
    )
    return compile_step_policy(policy, SIZE)


def decode(number: int, tier: int, drafts: int) -> PlanRequest:
    return PlanRequest(
        id=f"d{number}", tier=tier, tenant="a", sequence=number, prompt_tokens=20,
        max_output_tokens=50, total_tokens=30, computed_tokens=29, blocks=4,
        decode_tokens=1 + drafts,
    )  # fmt: skip


def plan(policy: StepPolicy, running: list[PlanRequest], *waiting: PlanRequest) -> StepPlan:
    lanes = [[one for one in waiting if one.tier == tier] for tier in range(len(policy.tiers))]
    state = StepState(
        now=1.0, running=running, waiting=lanes, free_blocks=3_000, cached_blocks_by_pool=[0]
    )
    made = StepPlanner(policy).plan(state)
    tokens = sum(one.decode_tokens for one in running if one.id not in made.paused)
    assert tokens + sum(made.grants.values()) <= SIZE.max_num_batched_tokens
    return made


def prompt(tier: int, tokens: int) -> PlanRequest:
    return PlanRequest(
        id="p", tier=tier, tenant="a", sequence=999, prompt_tokens=tokens, max_output_tokens=8
    )


@pytest.mark.parametrize(
    ("most", "drafts"),
    [(None, {}), (3, {}), (2, {"d1": 2}), (0, {"d1": 0})],
    ids=["as many as there are", "as many as allowed", "shorter", "off"],
)
def test_a_tier_has_at_most_its_own(most: int | None, drafts: dict[str, int]) -> None:
    running = [decode(0, 0, 3), decode(1, 1, 3)]
    assert plan(terms(None, most), running).drafts == drafts
    assert running[0].decode_tokens == 4


def test_drafts_give_way_to_a_prompt_from_the_last_tier_up() -> None:
    """30 decodes with 3 drafts take 120 of 128 tokens; the prompt could use 40."""
    running = [decode(i, i % 2, 3) for i in range(30)]
    made = plan(terms(None, None), running, prompt(0, 500))
    assert made.grants == {"p": 40}
    assert sum(3 - left for left in made.drafts.values()) == 32
    assert {name for name in made.drafts if int(name[1:]) % 2} == set(made.drafts)


def test_drafts_of_a_higher_tier_stay() -> None:
    running = [decode(i, 0, 3) for i in range(30)]
    made = plan(terms(None, None), running, prompt(1, 500))
    assert made.drafts == {}
    assert made.grants == {}  # 8 tokens are left: less than a block


def test_nothing_is_shortened_where_there_is_room() -> None:
    running = [decode(i, 1, 3) for i in range(20)]
    assert plan(terms(None, None), running, prompt(0, 500)).drafts == {}
    few = replace(terms(None, None), prefill_budget_tokens=8)
    assert plan(few, [decode(i, 1, 3) for i in range(30)], prompt(0, 500)).drafts == {}
