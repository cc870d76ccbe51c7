"""How many prompt tokens a step computes.

Theory of operation. Every decode of a step waits for all of its prefill tokens, so their number is
bounded while anything decodes: by a percent of ``max_num_batched_tokens`` (source 000, incident A:
30%), or, where a tier that decodes has an InterTokenLatency objective, by what fits into that time
as the step-time model predicts it (the slack of the decodes), found by bisection. Tokens are not
time: a token late in a long context costs several times one at its beginning, so where the model is
known the percent bounds time, too: what so many tokens take from an empty context. When nothing
decodes a prefill takes the whole step. Whose the tokens are is the business of ``prefill_shares``.

Bounds: while decodes run, prefill tokens <= budget. When the decodes alone exceed the objective,
1/8 of the budget still is granted.

Invariant: nothing is granted beyond the budget.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tidegate.scheduling.plan_request import PlanRequest, StepTimeModel
from tidegate.scheduling.step_policy import StepPolicy

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
