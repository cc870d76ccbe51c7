"""How many KV blocks requests will hold, before they hold them.

Theory of operation: a request grows by one token a step up to its output, of which the 90th
percentile is known (``expected_output_tokens``). Requests do not peak together: when one ends,
those that outlive it have grown by as much as it had left, and all that were nearer to their end
have given their blocks back. So the peak of the sum is, over the requests ordered by what they have
left, the largest of: tokens held by the first k now + k x what the k-th has left (the admission
test of S-LoRA's router and of LightLLM's past-future scheduler, Gong et al., ASPLOS 2025). The sum
of the projections would count each at its end, up to twice what they hold on average.

Bound: exact to half a block a request where all advance at the same pace and end as expected; in
any case at most the sum of the projections, which is what callers try first.

Invariant: a request's own projection never falls below the blocks that it has or needs now.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.scheduling.plan_request import PlanRequest

_SHIFT = 32
_NOW = (1 << _SHIFT) - 1
"""An entry is (growth, tokens now) in one integer, since these are sorted in every step."""


def whole_blocks(request: PlanRequest, block_size: int) -> int:
    """Blocks of all its tokens so far, computed or not."""
    return -(-request.total_tokens // block_size)


def project(request: PlanRequest, block_size: int) -> int:
    """Blocks at its expected end, at least what it has and needs now; remembered in it."""
    tokens = max(request.prompt_tokens + request.expected_output_tokens, request.total_tokens)
    request.projected_blocks = max(-(-tokens // block_size), request.blocks)
    return request.projected_blocks


def peak_blocks(entries: Sequence[int], block_size: int) -> int:
    """The most blocks held at once until all have ended; entries by rising growth.

    Of its last block each holds half on average.
    """
    peak = held = 0
    for count, entry in enumerate(reversed(entries), start=1):
        held += entry & _NOW
        level = held + count * (entry >> _SHIFT) + count * block_size // 2
        if level > peak:
            peak = level
    return -(-peak // block_size)


def entry_of(request: PlanRequest, block_size: int) -> int:
    """What :func:`peak_blocks` reads of a request whose ``projected_blocks`` is known."""
    total = request.total_tokens
    left = request.prompt_tokens + request.expected_output_tokens - total
    if left < 0:
        left = max(request.projected_blocks * block_size - total, 0)
    return (left << _SHIFT) | total
