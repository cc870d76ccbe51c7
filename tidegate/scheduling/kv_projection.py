"""How many KV blocks requests will hold, before they hold them.

Theory of operation: a request grows by one token a step up to its output, of which the 90th
percentile is known (``expected_output_tokens``). Requests do not peak together: when one ends,
those that outlive it have grown by as much as it had left, and all that were nearer to their end
have given their blocks back. So the peak of the sum is, over the requests ordered by what they have
left, the largest of: tokens held by the first k now + k x what the k-th has left. The sum of the
projections would count each at its end, up to twice what they hold on average.

Bound: exact, with the slots that last blocks leave empty, where all advance at the same pace and
end as expected. Where they fit by the sum of their projections they fit by the peak, so callers try
the sum first.

Invariant: a request's own projection never falls below the blocks that it has or needs now.
Source: the admission test of S-LoRA's router (Sheng et al., MLSys 2024) and of LightLLM's
past-future scheduler (Gong et al., ASPLOS 2025).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy

_SHIFT = 32
_NOW = (1 << _SHIFT) - 1
"""An entry is (growth, tokens now) in one integer, since these are sorted in every step."""


def whole_blocks(request: PlanRequest, block_size: int) -> int:
    """Blocks of all its tokens so far, computed or not."""
    return -(-request.total_tokens // block_size)


def _end_tokens(request: PlanRequest) -> int:
    """The last token of an output is never read, so it takes no slot."""
    return request.prompt_tokens + request.expected_output_tokens - 1


def project(request: PlanRequest, block_size: int) -> int:
    """Blocks at its expected end, at least what it has and needs now; remembered in it."""
    tokens = max(_end_tokens(request), request.total_tokens)
    request.projected_blocks = max(-(-tokens // block_size), request.blocks)
    return request.projected_blocks


def entry_of(request: PlanRequest, prefill_tokens_per_step: int) -> int:
    """What :func:`peak_fits` reads of a request whose ``projected_blocks`` is known."""
    total = request.total_tokens
    left = max(_end_tokens(request) - total, 0)
    # What its prompt still takes in steps it ends later than others with as much left.
    late = min((total - request.computed_tokens) // prefill_tokens_per_step, total)
    return ((left + late) << _SHIFT) | (total - late)


def peak_fits(entries: Sequence[int], limit_blocks: int, block_size: int) -> bool:
    """Whether the requests never hold more blocks than that; entries rising."""
    limit, held = limit_blocks * block_size, 0
    by_remainder = [0] * block_size
    for count, entry in enumerate(reversed(entries), start=1):
        now, left = entry & _NOW, entry >> _SHIFT
        held += now
        by_remainder[now % block_size] += 1
        level = held + count * left
        if level + count * (block_size - 1) <= limit:
            continue
        for remainder, those in enumerate(by_remainder):
            if those:
                level += those * (-(remainder + left) % block_size)
        if level > limit:
            return False
    return True


class Projections:
    """What the running requests of each tier will hold, during one step; ``running`` is by tier and
    the caller's, who takes victims out of it."""

    __slots__ = ("_added", "_block_size", "_entries", "_pace", "_running", "blocks")

    def __init__(self, policy: StepPolicy, running: Sequence[Sequence[PlanRequest]]) -> None:
        self._block_size, self._pace = policy.engine.block_size, policy.prefill_budget_tokens
        self._running = running
        self.blocks: list[int] = []
        """By tier: the sum of their projections."""
        for tier in running:
            for one in [one for one in tier if one.projected_blocks < one.blocks]:
                project(one, self._block_size)
            self.blocks.append(sum([one.projected_blocks for one in tier]))
        self._added: list[list[PlanRequest]] = [[] for _ in running]
        self._entries: dict[tuple[int, ...], list[int]] = {}

    def fit(self, request: PlanRequest, tiers: tuple[int, ...], limit_blocks: int) -> bool:
        """Whether those of these tiers and one that waits never hold more than that."""
        blocks = project(request, self._block_size)
        if sum([self.blocks[tier] for tier in tiers]) + blocks <= limit_blocks:
            return True
        entries = self._entries.get(tiers)
        if entries is None:
            entries = [entry_of(one, self._pace) for tier in tiers for one in self._running[tier]]
            entries += [entry_of(one, self._pace) for tier in tiers for one in self._added[tier]]
            entries.sort()
            self._entries[tiers] = entries
        own = entry_of(request, self._pace)
        insort(entries, own)
        fits = peak_fits(entries, limit_blocks, self._block_size)
        entries.remove(own)
        return fits

    def add(self, request: PlanRequest) -> None:
        """It enters."""
        self._added[request.tier].append(request)
        self.blocks[request.tier] += request.projected_blocks
        for tiers, entries in self._entries.items():
            if request.tier in tiers:
                insort(entries, entry_of(request, self._pace))

    def remove(self, request: PlanRequest) -> None:
        """A running one goes."""
        self.blocks[request.tier] -= request.projected_blocks
        for tiers, entries in self._entries.items():
            if request.tier in tiers:
                entries.remove(entry_of(request, self._pace))
