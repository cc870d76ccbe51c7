"""How many draft tokens of a request a step verifies.

Theory of operation: with speculation a decode takes 1 + its drafts of the step's tokens, and what
is rejected is work for nobody. Two rules, both before the prefill budget is counted:

* *By tier*: at most the tier's ``draft_tokens``, 0 where its traffic is such that drafts are
  mostly rejected (source 000, incident C). The engine's draft pass is still paid; what is saved is
  their verification.
* *For prefills*: drafts are a bet, prompt tokens are certain work. Where decodes and their drafts
  leave a step less than the prefill budget that prompts would use, drafts give way, those of the
  last tier first, and never those of a tier above the prompts'. Without, a batch of long answers
  whose drafts fill the step keeps all prompts out as long as it lasts (`scripts/bench drafts`).

Bound: O(decodes), and only where any has drafts. A request loses at most its drafts: it decodes one
token as without speculation.

Invariants: nothing is added; no draft of a tier above all prompts is shortened for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.plan_request import PlanRequest, StepPlan
from tidegate.scheduling.step_policy import StepPolicy

ByTier = Sequence[Sequence[PlanRequest]]


def limit_drafts(policy: StepPolicy, plan: StepPlan, decoding: ByTier) -> None:
    """At most as many as each tier's terms allow."""
    for tier, those in zip(policy.tiers, decoding, strict=True):
        if tier.draft_tokens is None:
            continue
        for one in those:
            if one.decode_tokens > 1 + tier.draft_tokens:
                _shorten(plan, one, tier.draft_tokens)


def yield_to_prefills(
    policy: StepPolicy, plan: StepPlan, decoding: ByTier, wanted_by_tier: Sequence[int]
) -> None:
    """Drafts give way to the prompt tokens that each tier could use in this step."""
    wanted = min(sum(wanted_by_tier), policy.prefill_budget_tokens)
    taken = sum([one.decode_tokens for those in decoding for one in those])
    short = taken + wanted - policy.engine.max_num_batched_tokens
    if not wanted or short <= 0:
        return
    first = next(tier for tier, tokens in enumerate(wanted_by_tier) if tokens)
    for those in reversed(decoding[first:]):
        for one in reversed(those):
            if one.decode_tokens > 1:
                given = min(one.decode_tokens - 1, short)
                _shorten(plan, one, one.decode_tokens - 1 - given)
                short -= given
                if not short:
                    return


def _shorten(plan: StepPlan, one: PlanRequest, tokens: int) -> None:
    plan.drafts[one.id] = tokens
    one.decode_tokens = 1 + tokens
