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

A cache that is never hit is worth nothing, however much of it there is: batch prompts that nobody
sends twice push out conversations that come back (in simulation, three 32K prompts a minute cost
one conversation in 300 its history, and a cold history of 18K delays all behind it by a second). So
only pools that were hit within ``cache_hold_seconds``, or are there no longer than that, have a
cache to keep: the idea of a working set (Denning 1968), by pool. What others cached is lent, and of
what they give up only 1/8 of their nominal blocks stays findable, so that hits would show. Of a
pool with a protected tier nothing is un-hashed, so its cache would fill its percent for all that
time: it has none to keep, besides, once ``_CHURNS_UNHIT`` times its nominal blocks went in without
a hit, since whoever comes back does so later than a cache of that size can wait.

Bound: what is evicted of a pool within its share in one step is at most what the step allocates
beyond the blank blocks.

Invariants: a pool that is hit and within its nominal blocks, held and cached, is never named, nor
one with a protected tier; a pool is never named for what it holds alone unless it is above nominal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tidegate.scheduling.kv_projection import whole_blocks
from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy

PROBATION_PARTS = 8
_CHURNS_UNHIT = 2
"""One may be the last of those who came before anybody could come back."""


class CacheUse:
    """Which pools' caches are hit. Times are the caller's."""

    __slots__ = ("_most_unhit", "_policy", "_proven", "_seen", "_unhit_blocks")

    def __init__(self, policy: StepPolicy) -> None:
        self._policy = policy
        self._seen = [-policy.cache_hold_seconds] * len(policy.pools)
        """When a request of the pool was last there."""
        self._proven = list(self._seen)
        """When it was last hit, or came (back) and had not had the time to be."""
        self._unhit_blocks = [0] * len(policy.pools)
        """That went in since then."""
        self._most_unhit = [
            _CHURNS_UNHIT * pool.nominal_blocks if _is_protected(policy, index) else math.inf
            for index, pool in enumerate(policy.pools)
        ]

    def there(self, tiers: Iterable[int], now: float) -> None:
        """These have requests."""
        for pool in {self._policy.tiers[tier].pool for tier in tiers}:
            if now - self._seen[pool] >= self._policy.cache_hold_seconds:
                self._prove(pool, now)
            self._seen[pool] = now

    def entered(self, requests: Iterable[PlanRequest], now: float) -> None:
        """They go into the step, with what the prefix cache holds of them."""
        for one in requests:
            pool = self._policy.tiers[one.tier].pool
            if one.cached_hit_tokens:
                self._prove(pool, now)
            else:
                self._unhit_blocks[pool] += whole_blocks(one, self._policy.engine.block_size)

    def _prove(self, pool: int, now: float) -> None:
        self._proven[pool], self._unhit_blocks[pool] = now, 0

    def worth_keeping(self, now: float) -> list[bool]:
        """By pool."""
        oldest = now - self._policy.cache_hold_seconds
        return [
            proven > oldest and unhit <= most
            for proven, unhit, most in zip(
                self._proven, self._unhit_blocks, self._most_unhit, strict=True
            )
        ]


def blank_runs_short(policy: StepPolicy, cached: Iterable[int], free_blocks: int) -> bool:
    """Whether too few of the free blocks are blank; ``cached`` is by pool."""
    size = policy.engine
    two_steps = 2 * -(-size.max_num_batched_tokens // size.block_size)
    reserve = min(max(two_steps, size.total_blocks // 20), size.total_blocks // 4)
    return free_blocks - sum(cached) < reserve


def pools_to_unhash(
    policy: StepPolicy,
    held: Sequence[int],
    cached: Sequence[int],
    worth_keeping: Sequence[bool],
) -> frozenset[int]:
    """The pools without a protected tier that are above their nominal blocks, held and cached, or
    above their probation with a cache that is not worth keeping; if another has one that is."""
    over, kept = set(), False
    for pool, terms in enumerate(policy.pools):
        protected = _is_protected(policy, pool)
        if worth_keeping[pool]:
            above = held[pool] + cached[pool] > terms.nominal_blocks
        else:
            above = cached[pool] > terms.nominal_blocks // PROBATION_PARTS
        if above and not protected:
            over.add(pool)
        elif cached[pool] and worth_keeping[pool]:
            kept = True
    return frozenset(over) if kept else frozenset()


def _is_protected(policy: StepPolicy, pool: int) -> bool:
    return any(policy.tiers[tier].protected for tier in policy.pools[pool].tiers)
