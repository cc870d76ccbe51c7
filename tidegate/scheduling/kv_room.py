"""What each tier holds of the KV cache and might hold besides, as a step finds it.

A pool may have back what others hold of its nominal blocks; beyond them it may borrow what is free,
up to its limit. O(running).
"""

from __future__ import annotations

from tidegate.scheduling.plan_request import StepState
from tidegate.scheduling.step_policy import StepPolicy


def held_by_tier(policy: StepPolicy, state: StepState) -> list[int]:
    """Blocks, those that several share counted for each."""
    held = [0] * len(policy.tiers)
    for one in state.running:
        held[one.tier] += one.blocks
    return held


def held_by_pool(policy: StepPolicy, state: StepState) -> list[int]:
    """Blocks, as the host counts them, who knows which are shared; else the sum of its tiers'."""
    if state.held_blocks_by_pool is not None:
        return list(state.held_blocks_by_pool)
    held = [0] * len(policy.pools)
    for tier, blocks in zip(policy.tiers, held_by_tier(policy, state), strict=True):
        held[tier.pool] += blocks
    return held


def room_by_tier(policy: StepPolicy, state: StepState) -> list[int]:
    """Blocks that each tier might hold besides, if no other of its pool took them."""
    held = held_by_pool(policy, state)
    rooms = []
    for tier in policy.tiers:
        pool = policy.pools[tier.pool]
        owed = pool.nominal_blocks - held[tier.pool]
        rooms.append(max(owed, min(state.free_blocks, owed + pool.borrow_limit_blocks), 0))
    return rooms


def held_ratio(held_blocks: int, room_blocks: int) -> float:
    """Of what a tier might hold, what it holds, 0..1; 1 where that is nothing."""
    most = held_blocks + room_blocks
    return held_blocks / most if most else 1.0
