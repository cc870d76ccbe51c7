"""Seats and KV blocks of the engine, where no plug-in keeps them: who may enter, and whom for.

Theory of operation. The rules are those of the plug-in (``step_admission`` over ``kv_quota`` and
``preemption``), asked before a dispatch instead of before a step, over what can be counted from
outside the engine (``kv_holdings``).

A victim must be one whose client has seen nothing yet (:attr:`Occupant.evictable`): it is cut off
at the engine, waits for its recompute back-off and returns to its old place. Growth is the engine's
own: an engine without a plug-in that runs out of blocks preempts by itself.

Not in force, and free of cost, where nothing is counted or beside a plug-in.

Bound: an attempt is O(requests in flight); the bounds on who may enter are ``step_admission``'s.

Invariant: a victim is in flight, evictable, and of a lower tier than the one that it makes way for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Generic, NamedTuple

from tidegate.scheduling.kv_holdings import MANY_SEATS, KvHoldings, own_blocks_by_pool
from tidegate.scheduling.occupant import T
from tidegate.scheduling.plan_request import PlanRequest, StepPlan, StepState, Veto
from tidegate.scheduling.recompute import backoff_seconds
from tidegate.scheduling.request import Request
from tidegate.scheduling.step_admission import Admission


class Verdict(NamedTuple, Generic[T]):
    """Whether a request may enter the engine."""

    veto: Veto | None
    victims: Sequence[T]
    """Who must make room first."""


class Places(KvHoldings[T]):
    """Of one engine."""

    def __init__(self) -> None:
        super().__init__()
        self.muted = False
        """A plug-in keeps them."""

    @property
    def in_force(self) -> bool:
        """Whether anybody is asked."""
        return self.terms is not None and not self.muted

    def ask(
        self,
        request: Request,
        heads: Iterable[Request],
        seat_short: bool,
        without: Collection[T] = (),
    ) -> Verdict[T]:
        """Whether it may enter now. ``heads``: who is first of each tier that waits;
        ``seat_short``: none is free, but for a victim's; ``without``: who makes way already."""
        terms = self.terms
        asking = None if terms is None else self.plan_request(terms, request)
        if terms is None or asking is None:
            return Verdict(None, ())
        running: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        prefilling: list[list[PlanRequest]] = [[] for _ in terms.tiers]
        occupants = {}
        spared = {}
        for occupant, one in self.counted(terms, without):
            running[one.tier].append(one)
            if occupant.first_token_at is None:
                prefilling[one.tier].append(one)
            if not occupant.evictable:
                spared[one.id] = 0
            occupants[one.id] = occupant
        held = own_blocks_by_pool(terms, running)
        plan = StepPlan(grants=spared)  # whom a grant names, nobody preempts
        nothing = [0] * len(terms.pools)
        state = StepState(
            now=0.0,
            running=[one for tier in running for one in tier],
            waiting=(),
            free_blocks=max(terms.engine.total_blocks - sum(held), 0),
            cached_blocks_by_pool=nothing,
            held_blocks_by_pool=held,
        )
        first: list[PlanRequest | None] = [None] * len(terms.tiers)
        for head in heads:
            if (waiting := self.plan_request(terms, head)) is not None:
                first[waiting.tier] = waiting
        admission = Admission(terms, state, plan, running, prefilling, nothing, first)
        # The gate counts seats, in sequences.
        admission.seats.free = 0 if seat_short else MANY_SEATS
        if request.expected_cached_tokens and any(
            one.tenant == asking.tenant for one in running[asking.tier]
        ):
            asking.shared_hit_blocks = request.expected_cached_tokens // terms.engine.block_size
        veto = admission.enter(asking)
        return Verdict(veto, [occupants[one.id] for one in plan.preempt])

    def backoff_seconds(self, request: Request, queued_requests: int) -> float:
        """How long it waits after a preemption, so many waiting in our queues."""
        terms = self.terms
        asking = None if terms is None else self.plan_request(terms, request)
        if terms is None or asking is None:
            return 0.0
        return backoff_seconds(terms.tiers[asking.tier], queued_requests)
