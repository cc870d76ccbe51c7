"""ServingPool's `kvPools` and `prefill`: how the engine's KV cache and its steps are shared."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from tidegate.scheduling.contracts import PrefillLimits
from tidegate_operator.api.fields import ApiModel, ItemName, KindName, described, rule, rules
from tidegate_operator.api.limits import MAX_TOKENS

MAX_KV_POOLS = 16
MAX_KV_POOL_TIERS = 32
"""What comparing every tier with every other may cost the API server sets both bounds."""
DEFAULT_BUDGET_PERCENT = PrefillLimits().budget_percent
USUAL_BUDGET_PERCENT = (20, 40)
"""Outside of it a condition warns (source 000: below, long prompts never end; above, decodes
wait)."""

_LENDABLE = "lendablePercent must not be above percent"
_ONE_BUDGET = "has both budgetPercent and tokensPerStep; only one of them can say it"


class KvPool(ApiModel):
    """A part of each engine's KV cache that some tiers share."""

    model_config = rules(
        rule(
            "!has(self.lendablePercent) || self.lendablePercent <= self.percent",
            _LENDABLE,
            field_path=".lendablePercent",
        )
    )

    name: ItemName = described("Tells the parts apart.")
    tiers: list[KindName] = described(
        "TenantTiers that share it; each is in at most one of kvPools. Tiers in none of them share "
        "what kvPools leave, of which only their reservedPercent is promised to them.",
        min_length=1,
        max_length=MAX_KV_POOL_TIERS,
        list_type="set",
    )
    percent: int = described(
        "Of the KV cache, kept for them. The percents of all kvPools sum to at most 100.",
        zero="nothing is theirs; they live on what others lend",
        ge=0,
        le=100,
    )
    lendable_percent: int | None = described(
        "Percent of the KV cache, at most `percent`, that other tiers may use while these do not.",
        unset="all of percent",
        zero="nothing is lent",
        ge=0,
        le=100,
    )
    borrow_limit_percent: int | None = described(
        "Percent of the KV cache that these may use beyond their own while others do not. What "
        "was promised to nobody a tier that is not evictable takes from evictable ones below it.",
        unset="all that others lend",
        zero="nothing is borrowed",
        ge=0,
        le=100,
    )

    @model_validator(mode="after")
    def _lends_what_it_has(self) -> Self:
        if self.lendable_percent is not None and self.lendable_percent > self.percent:
            raise ValueError(_LENDABLE)
        return self


class Prefill(ApiModel):
    """How much of the engine's step prompts may take while others wait for their next token."""

    model_config = rules(rule("!(has(self.budgetPercent) && has(self.tokensPerStep))", _ONE_BUDGET))

    budget_percent: int | None = described(
        "Prompt tokens of a step, in percent of the engine's --max-num-batched-tokens. Outside "
        f"{USUAL_BUDGET_PERCENT[0]} to {USUAL_BUDGET_PERCENT[1]} a condition warns. Kept step by "
        "step with engine.plugin: Enabled; without it two budgets of prompts are in the engine at "
        "most while anything decodes, where a tier has an objective for InterTokenLatency.",
        unset=f"{DEFAULT_BUDGET_PERCENT}",
        ge=1,
        le=100,
    )
    tokens_per_step: int | None = described(
        "The same as a number of tokens.",
        unset="budgetPercent says it",
        ge=1,
        le=MAX_TOKENS,
    )
    chunk_tokens: int | None = described(
        "Most tokens of one prompt in one step, while others run (vLLM's "
        "--long-prefill-token-threshold). A change replaces the pods, one by one.",
        unset="as many as the step has room for",
        ge=1,
        le=MAX_TOKENS,
    )
    long_prompt_tokens: int | None = described(
        "Prompts with more tokens left to compute get at most half of the budget while shorter "
        "ones of their tier wait. Needs engine.plugin: Enabled.",
        unset="the budget",
        ge=1,
        le=MAX_TOKENS,
    )

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.budget_percent is not None and self.tokens_per_step is not None:
            raise ValueError(_ONE_BUDGET)
        return self
