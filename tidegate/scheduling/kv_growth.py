"""Blocks for the decodes that run into their next block: growth is never refused.

Theory of operation: an engine finds out in the middle of a step that a running request gets no
block, and then evicts whoever stands last, which may be the best customer. So the growth of the
step is counted before it starts; where the free blocks do not cover it, victims are chosen by the
rules of ``preemption`` for the first that lacks. If these free too little, whoever is last by
(tier, sequence) goes, from the end of that order down to the one that lacks, at worst itself.

Bound: the one that is first in that order never goes for growth, so in every step someone makes
progress and a full engine empties. This is the only place where a request may be preempted more
than ``max_preemptions`` times, or one that is not evictable: when everybody left is such.

Source: it takes the place of the preemption in the middle of a step of vLLM 0.32's scheduler.

Invariants: nobody goes for one that stands behind it; after the victims are gone, the growth of
all who are left fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.preemption import Excess, Holdings, Need, choose_victims, freed_blocks
from tidegate.scheduling.step_policy import StepPolicy


def growth_blocks(request: PlanRequest, block_size: int) -> int:
    """Blocks that its next decode step takes."""
    slots = request.computed_tokens + request.decode_tokens - request.blocks * block_size
    return -(-slots // block_size) if slots > 0 else 0


def growth_victims(
    policy: StepPolicy,
    running: Sequence[Sequence[PlanRequest]],
    growing: Sequence[PlanRequest],
    free_blocks: int,
    excess_for: Callable[[int], Excess],
) -> list[tuple[PlanRequest, PlanRequest]]:
    """Who goes, and for whom, so that all of ``growing`` who stay get their blocks.

    ``running`` is by tier; ``excess_for`` says what others hold too much, as a tier sees it. Empty
    where ``free_blocks`` suffice.
    """
    block_size = policy.engine.block_size
    wanted = {one.id: growth_blocks(one, block_size) for one in growing}
    short = sum(wanted.values()) - free_blocks
    if short <= 0:
        return []
    lacking = _first_that_lacks(growing, wanted, free_blocks)
    excess = excess_for(lacking.tier)
    holdings = Holdings(running)
    chosen = choose_victims(policy, holdings, lacking.tier, Need(short, 0), excess, ())
    if chosen is None:
        chosen = []
        for one in _from_the_last(running, lacking):
            chosen.append(one)
            short -= freed_blocks(one) + wanted.get(one.id, 0)
            if short <= 0:
                break
    return [(one, lacking) for one in chosen]


def _first_that_lacks(
    growing: Sequence[PlanRequest], wanted: dict[str, int], free_blocks: int
) -> PlanRequest:
    for one in sorted(growing, key=_rank):
        free_blocks -= wanted[one.id]
        if free_blocks < 0:
            return one
    raise ValueError("nobody lacks a block")


def _from_the_last(
    running: Sequence[Sequence[PlanRequest]], lacking: PlanRequest
) -> list[PlanRequest]:
    """The last first. Once the one that lacks is gone too, those ahead of it have what they need,
    so nobody ahead of it is ever reached."""
    return sorted(
        (one for tier in running[lacking.tier :] for one in tier), key=_rank, reverse=True
    )


def _rank(request: PlanRequest) -> tuple[int, int]:
    return request.tier, request.sequence
