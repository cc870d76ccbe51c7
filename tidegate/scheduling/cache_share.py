"""Whose cached blocks are reused first.

Theory of operation: vLLM keeps freed blocks that have content in one least-recently-used list, so a
tier that churns through prompts evicts the history of one that comes back every 20 seconds (source
000, incident B). Blocks that are un-hashed before they are freed go to the front of that list
(``kv_cache_manager.evict_blocks``; seen to keep 4 of 4 blocks of a protected prefix against 0). So
when a request of a pool above its share gives its blocks up, those that nobody else holds are
un-hashed, and the cache of pools within their share outlives it.

Only where it is needed: un-hashing costs a tier its own prefix hits, so not while blank blocks are
left for two full steps (at least 5% and at most 25% of all), not while no other pool has a cache to
keep, and never of a pool with a protected tier. What is given up is what was used last: a pool of
conversations above its share would lose the turn that comes back in seconds and keep those that
have ended (in simulation its prefix hits fell from 0.78 to 0.50 and the node with them). Its oldest
blocks go by themselves, as the list is least recently used.

Bound: what is evicted of a pool within its share in one step is at most what the step allocates
beyond the blank blocks.

Invariant: a pool within its nominal blocks, held and cached, is never named, nor a protected one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.scheduling.step_policy import StepPolicy


def blank_runs_short(policy: StepPolicy, cached: Iterable[int], free_blocks: int) -> bool:
    """Whether too few of the free blocks are blank; ``cached`` is by pool."""
    size = policy.engine
    two_steps = 2 * -(-size.max_num_batched_tokens // size.block_size)
    reserve = min(max(two_steps, size.total_blocks // 20), size.total_blocks // 4)
    return free_blocks - sum(cached) < reserve


def pools_to_unhash(
    policy: StepPolicy, held: Sequence[int], cached: Sequence[int]
) -> frozenset[int]:
    """The pools without a protected tier that are above their nominal blocks, held and cached, if
    another pool has a cache to keep."""
    over, kept = set(), False
    for pool, (terms, holds) in enumerate(zip(policy.pools, held, strict=True)):
        protected = any(policy.tiers[tier].protected for tier in terms.tiers)
        if not protected and holds + cached[pool] > terms.nominal_blocks:
            over.add(pool)
        elif cached[pool]:
            kept = True
    return frozenset(over) if kept else frozenset()
