"""Who gives up seat and blocks, and for whom.

Theory of operation. A victim is taken, in this order of rules, from
1. the lowest tier that is evictable, of strictly lower priority than the one it makes room for (a
   comparison with ``<=`` lets equals evict each other in turns, vLLM pull request 54530), and above
   its reservation in the scarce resource;
2. in it, the tenant most over-served: blocks (or seats) held / weight;
3. of that tenant, the set with the least to recompute that frees enough. Where all of its requests
   do not free enough, its cheapest per block goes and the rules apply anew.

The third rule is a minimum knapsack cover. It is solved by the greedy of Csirik, Frenk, Labbe and
Zhang (Acta Cybernetica 10, 1991): by rising cost per block, every prefix that does not cover yet
is completed by the next that does; the cheapest of these covers wins, without whom it can spare.

Bound: the cover costs at most twice the least possible, and no more than the cheapest single victim
that would do. A request is chosen at most ``max_preemptions`` times.

Invariants: nobody of equal or higher priority makes room for a waiting request; nobody is taken
twice in a pass, nor who was let in or given tokens in it; all or nothing: no one is preempted
unless enough is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tidegate.scheduling.plan_request import PlanRequest
from tidegate.scheduling.step_policy import StepPolicy

_Requests = dict[str, list[PlanRequest]]
_Holds = dict[str, float]


@dataclass(slots=True)
class Need:
    """What a request lacks. At least one of the two is above 0."""

    blocks: int
    seats: int


@dataclass(frozen=True, slots=True)
class Excess:
    """What tiers hold above their reservation, of the scarce resource.

    Tiers of one group share it: a pool over its nominal blocks, say.
    """

    group_of: Sequence[int]
    """By tier."""
    of_group: Sequence[int]
    """Blocks or seats; 0 or less: nothing may be taken."""


def freed_blocks(request: PlanRequest) -> int:
    """Blocks that its preemption frees."""
    return request.blocks - request.shared_blocks


def recompute_tokens(request: PlanRequest, block_size: int) -> int:
    """Most tokens that are computed again: what others hold too will be hit."""
    return max(request.computed_tokens - request.shared_blocks * block_size, 0)


def least_recompute(
    candidates: Collection[PlanRequest],
    need: int,
    frees: Callable[[PlanRequest], int],
    block_size: int,
) -> list[PlanRequest] | None:
    """A set that frees ``need``, cheap to recompute; None: all together do not free enough."""
    rated = []
    for one in candidates:
        if freed := frees(one):
            cost = recompute_tokens(one, block_size)
            rated.append((cost / freed, -one.sequence, cost, freed, one))
    rated.sort()
    small: list[PlanRequest] = []
    small_cost = small_freed = 0
    best: list[PlanRequest] | None = None
    best_cost = 0
    for _, _, cost, freed, one in rated:
        if small_freed + freed < need:
            small.append(one)
            small_cost += cost
            small_freed += freed
            continue
        alone = freed >= need
        cost += 0 if alone else small_cost
        if best is None or cost < best_cost:
            best, best_cost = [one] if alone else [*small, one], cost
    return best and _without_spare(best, need, frees, block_size)


def _without_spare(
    chosen: list[PlanRequest], need: int, frees: Callable[[PlanRequest], int], block_size: int
) -> list[PlanRequest]:
    if len(chosen) == 1:
        return chosen
    spare = sum([frees(one) for one in chosen]) - need
    for one in sorted(chosen, key=lambda one: -recompute_tokens(one, block_size)):
        if frees(one) <= spare:
            chosen.remove(one)
            spare -= frees(one)
    return chosen


class Holdings:
    """What the tenants of each tier hold; counted when first asked for, then kept for the step."""

    __slots__ = ("_counted", "_running")

    def __init__(self, running: Sequence[Sequence[PlanRequest]]) -> None:
        self._running = running
        self._counted: dict[tuple[int, bool], tuple[_Requests, _Holds]] = {}

    def of(self, tier: int, *, by_blocks: bool) -> tuple[_Requests, _Holds]:
        """By tenant: its running requests, and the blocks or seats it holds for its weight."""
        counted = self._counted.get((tier, by_blocks))
        if counted is None:
            requests: _Requests = {}
            holds: _Holds = {}
            for one in self._running[tier]:
                tenant = one.tenant
                held = (one.blocks - one.shared_blocks if by_blocks else 1) / one.weight
                if tenant in holds:
                    requests[tenant].append(one)
                    holds[tenant] += held
                else:
                    requests[tenant] = [one]
                    holds[tenant] = held
            counted = self._counted[tier, by_blocks] = requests, holds
        return counted

    def remove(self, request: PlanRequest) -> None:
        """It holds nothing any more."""
        for by_blocks in (True, False):
            if counted := self._counted.get((request.tier, by_blocks)):
                counted[0][request.tenant].remove(request)
                freed = freed_blocks(request) if by_blocks else 1
                counted[1][request.tenant] -= freed / request.weight


def choose_victims(
    policy: StepPolicy,
    holdings: Holdings,
    beneficiary: int,
    need: Need,
    excess: Excess,
    spared: Collection[str],
) -> list[PlanRequest] | None:
    """Running requests that make room for one of the tier ``beneficiary``.

    ``spared`` are ids that are not to be taken. None: the rules do not free enough; nobody goes.
    """
    block_size, by_blocks = policy.engine.block_size, need.blocks > 0
    frees: Callable[[PlanRequest], int] = freed_blocks if by_blocks else _one
    left = need.blocks if by_blocks else need.seats
    excess_left = list(excess.of_group)
    priority = policy.tiers[beneficiary].priority
    victims: list[PlanRequest] = []
    for index in range(len(policy.tiers) - 1, -1, -1):
        tier = policy.tiers[index]
        group = excess.group_of[index]
        if not tier.evictable or tier.priority >= priority or excess_left[group] <= 0:
            continue
        requests, counted = holdings.of(index, by_blocks=by_blocks)
        holds = dict(counted)
        while holds and left > 0 and excess_left[group] > 0:
            worst = max(holds, key=lambda tenant: (holds[tenant], tenant))
            own = [
                one
                for one in requests[worst]
                if one.preemptions < tier.max_preemptions
                and one.id not in spared
                and one not in victims
            ]
            chosen = least_recompute(own, left, frees, block_size)
            if chosen is None:
                chosen = least_recompute(own, 1, frees, block_size)
            if chosen is None:
                del holds[worst]
                continue
            for one in chosen:
                if excess_left[group] <= 0:
                    break
                victims.append(one)
                left -= frees(one)
                excess_left[group] -= frees(one)
                holds[worst] -= frees(one) / one.weight
        if left <= 0:
            return victims
    return None


def _one(_: PlanRequest) -> int:
    return 1
