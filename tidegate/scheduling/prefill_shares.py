"""Whose the prompt tokens of a step are: what is owed to tiers and to long prompts.

Theory of operation. The budget of a step (``prefill_budget``) is spent over running *and* waiting
prefills in (tier, sequence) order; a running prefill of a lower tier gets only what is left, while
stock vLLM serves all that run before any that waits (14 steps to the first token instead of 2).

Inside a tier, prompts with more than ``long_prompt_tokens`` to compute come after the shorter
ones; when they got nothing for ``LONG_EVERY`` steps in a row one of them goes in its turn, with at
most half of what is there. Between tiers, order alone would starve the lowest under a flood, so
each tier that still wants tokens is owed its share (its reservation, at least ``FLOOR_PERCENT``):
what it got less than that is its credit, and one that is owed a block's worth goes first, for that.

Bounds: credit is at most one budget, so a tier that wants tokens all the time gets, over any n
steps, share x tokens granted - 1 budget - 1 block at least. A long prompt that is first of its kind
gets a chunk every ``LONG_EVERY`` + 1 steps in which its tier gets any.

Source: the credit is a deficit round robin's (Shreedhar and Varghese 1995), in steps for rounds.

Invariants: what is not wanted above is granted below (work conservation); credit is never negative:
using what others leave is not held against a tier.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.step_policy import StepPolicy

FLOOR_PERCENT = 5
LONG_EVERY = 3


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
