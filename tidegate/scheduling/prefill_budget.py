"""How many prompt tokens a step computes, and whose.

Theory of operation. Every decode of a step waits for all of its prefill tokens, so their number is
bounded while anything decodes: by a percent of ``max_num_batched_tokens`` (source 000, incident A:
30%), or, where a tier that decodes has an InterTokenLatency objective, by what fits into that time
as the step-time model predicts it (the slack of the decodes), found by bisection. Tokens are not
time: a token late in a long context costs several times one at its beginning, so where the model is
known the percent bounds time, too: what so many tokens take from an empty context. When nothing
decodes a prefill takes the whole step. The budget is spent over running *and* waiting prefills in
(tier, sequence) order; a running prefill of a lower tier gets only what is left, while stock vLLM
serves all that run before any that waits (14 steps to the first token instead of 2).

Inside a tier, prompts with more than ``long_prompt_tokens`` to compute come after the shorter
ones; when they got nothing for ``LONG_EVERY`` steps in a row one of them goes in its turn, with at
most half of what is there. Between tiers, order alone would starve the lowest under a flood, so
each tier that still wants tokens is owed its share (its reservation, at least ``FLOOR_PERCENT``):
what it got less than that is its credit, and one that is owed a block's worth goes first, for that.

Bounds: while decodes run, prefill tokens <= budget. Credit is at most one budget, so a tier that
wants tokens all the time gets, over any n steps, share x tokens granted - 1 budget - 1 block at
least. A long prompt that is first of its kind gets a chunk every ``LONG_EVERY`` + 1 steps in which
its tier gets any. When the decodes alone exceed the objective, 1/8 of the budget still is granted.

Invariants: nothing is granted beyond the budget; what is not wanted above is granted below (work
conservation); credit is never negative: using what others leave is not held against a tier.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tidegate.scheduling.plan_request import PlanRequest, StepTimeModel
from tidegate.scheduling.step_policy import StepPolicy

FLOOR_PERCENT = 5
LONG_EVERY = 3
_CAP_FLOOR_PARTS = 8


class StepBudget:
    """The prefill tokens of one step."""

    __slots__ = (
        "_cap_seconds",
        "_floor",
        "_kv_tokens_read",
        "_model",
        "_pairs",
        "_tokens",
        "_uncut",
        "granted",
        "left",
    )

    def __init__(self, left: int, floor: int) -> None:
        self.left = left
        """Tokens not granted yet."""
        self.granted = 0
        self._floor = floor
        self._uncut = 0
        self._model: StepTimeModel | None = None
        self._cap_seconds: float | None = None
        self._tokens = self._kv_tokens_read = 0
        self._pairs = 0.0

    def cap(self, model: StepTimeModel, seconds: float | None, uncut_tokens: int = 0) -> None:
        """Keep the step's predicted time under a cap; None: under what all of ``left`` would take
        from an empty context. The first tier gets ``uncut_tokens`` in any case."""
        self._model, self._cap_seconds, self._uncut = model, seconds, uncut_tokens

    def add_decodes(self, decodes: Sequence[PlanRequest]) -> None:
        """Requests that decode in this step and take time of it."""
        if self._model is not None:
            self._tokens += sum([one.decode_tokens for one in decodes])
            self._kv_tokens_read += sum([one.computed_tokens + 1 for one in decodes])

    def most(self, context_tokens: int, wanted_tokens: int, first_tier: bool = False) -> int:
        """How many of the tokens wanted may be computed after that context."""
        wanted = min(wanted_tokens, self.left)
        if wanted <= 0 or self._model is None or self._is_within(context_tokens, wanted):
            return max(wanted, 0)
        low, high = 0, wanted if self._is_within(context_tokens, 1) else 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_within(context_tokens, middle):
                low = middle
            else:
                high = middle
        least = max(self._floor, self._uncut) if first_tier else self._floor
        return min(max(low, least - self.granted), wanted)

    def _is_within(self, context_tokens: int, tokens: int) -> bool:
        model, read = self._model, self._kv_tokens_read
        assert model is not None
        pairs = self._pairs + tokens * (context_tokens + tokens / 2)
        cap = self._cap_seconds
        if cap is None:
            all_of_it = self.granted + self.left
            decodes = self._tokens - self.granted
            cap = model.seconds(decodes + all_of_it, read, all_of_it * all_of_it / 2)
        return model.seconds(self._tokens + tokens, read, pairs) <= cap

    def take(self, context_tokens: int, tokens: int) -> None:
        """Tokens are granted."""
        self.left -= tokens
        self.granted += tokens
        self._tokens += tokens
        self._pairs += tokens * (context_tokens + tokens / 2)


def step_budget(
    policy: StepPolicy,
    decoding: Sequence[Sequence[PlanRequest]],
    step_time: StepTimeModel | None,
    standing_back: Container[int] = (),
    for_first_tier: bool = False,
) -> StepBudget:
    """The budget of a step in which those decode, by tier.

    Tiers that stand back take no time of it, until :meth:`StepBudget.add_decodes` says that they do
    not; but a step with them is none without decodes. ``for_first_tier``: they do so for a prompt
    of the highest tier, which the cap on steps is for: that tier has the percent in any case, so
    that the cap does not cut in two what others were held up for. It holds for all others.
    """
    engine = policy.engine
    decode_tokens = sum([one.decode_tokens for tier in decoding for one in tier])
    room = max(engine.max_num_batched_tokens - decode_tokens, 0)
    if not decode_tokens:
        return StepBudget(room, 0)
    percent = min(policy.prefill_budget_tokens, room)
    if step_time is None:
        return StepBudget(percent, 0)
    caps = [
        tier.inter_token_seconds
        for tier, those in zip(policy.tiers, decoding, strict=True)
        if those and tier.inter_token_seconds is not None
    ]
    uncut_tokens = percent if for_first_tier and not caps else 0
    if policy.step_seconds_cap is not None:
        caps.append(policy.step_seconds_cap)
    if caps:
        budget = StepBudget(room, max(policy.prefill_budget_tokens // _CAP_FLOOR_PARTS, 1))
        budget.cap(step_time, min(caps), uncut_tokens)
    else:
        budget = StepBudget(percent, 0)
        budget.cap(step_time, None)
    for tier, those in enumerate(decoding):
        if tier not in standing_back:
            budget.add_decodes(those)
    return budget


class PrefillShares:
    """What is owed to tiers and to long prompts, from step to step."""

    __slots__ = ("_credit", "_long_unserved_steps", "_policy", "_shares")

    def __init__(self, policy: StepPolicy) -> None:
        self._policy = policy
        self._shares = [max(tier.reserved_percent, FLOOR_PERCENT) / 100 for tier in policy.tiers]
        self._credit = [0.0] * len(policy.tiers)
        self._long_unserved_steps = [0] * len(policy.tiers)

    def due(self) -> list[tuple[int, int]]:
        """(tier, tokens) that go before all order, the most owed first; not for the first tier."""
        least = min(self._policy.engine.block_size, self._policy.prefill_budget_tokens)
        owed = [
            (credit, tier) for tier, credit in enumerate(self._credit) if tier and credit >= least
        ]
        owed.sort(reverse=True)
        return [(tier, int(credit)) for credit, tier in owed]

    def is_long(self, tokens_to_compute: int) -> bool:
        """Whether a prompt is a long one."""
        return tokens_to_compute > self._policy.long_prompt_tokens

    def long_is_due(self, tier: int) -> bool:
        """Whether the next long prompt of the tier goes in its turn."""
        return self._long_unserved_steps[tier] >= LONG_EVERY

    def close(
        self,
        granted: Sequence[int],
        wants_more: Sequence[bool],
        long_granted: Sequence[bool | None],
    ) -> None:
        """The step is planned: tokens by tier, who would have computed more, and whether a long
        prompt got any (None: there was none)."""
        total = sum(granted)
        most = float(self._policy.prefill_budget_tokens)
        for tier, share in enumerate(self._shares):
            if wants_more[tier]:
                credit = self._credit[tier] + share * total - granted[tier]
                self._credit[tier] = min(max(credit, 0.0), most)
            else:
                self._credit[tier] = 0.0
            served = long_granted[tier]
            if served is False and granted[tier]:
                self._long_unserved_steps[tier] += 1
            elif served is not False:
                self._long_unserved_steps[tier] = 0
