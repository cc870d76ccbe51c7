"""The way from the scheduler's queues into one engine: its order, through gates, into places.

Theory of operation: whose turn it is, is the ``scheduler``'s word; when one more may go, the
``gates``'; whether the engine has a seat and KV blocks for that one, and who makes way, the
``places``'. Beside a plug-in there is a gate for each tier, and the engine keeps the places and
keeps the prefill budget; without one there is one gate for all, some seats stay free
(``spare_seats``), and who has no place keeps its tier out until the next attempt and takes no room
in the gate of others.

Every host of the core (the sidecar, the simulator in virtual time) dispatches through here, so that
what is proved in one holds in the other.

Bound: a dispatch asks for at most one place a tier, and once more for each victim that makes way.

Invariants: a request that goes has passed a gate that was open, and has a place where places are
kept; who makes way does so for a higher tier, which has all that it lacked by then, and is the
scheduler's to queue again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from tidegate.scheduling.contracts import Policy, Task
from tidegate.scheduling.engine_time import RequestStep
from tidegate.scheduling.gates import Gates
from tidegate.scheduling.occupant import T
from tidegate.scheduling.places import Places, Verdict
from tidegate.scheduling.request import Request
from tidegate.scheduling.scheduler import Scheduler

Preempt = Callable[[T, str, float], bool]
"""Takes a request off the engine for the named tier, now; False: it has just ended."""


class Entrance(Generic[T]):
    """Of one engine; ``plugin``: it has one. ``places``: empty ones."""

    def __init__(
        self, scheduler: Scheduler, places: Places[T], policy: Policy, *, plugin: bool
    ) -> None:
        self._scheduler = scheduler
        self._by_tier = plugin and policy.model.task is not Task.EMBED
        self.gates = Gates(policy, by_tier=self._by_tier)
        self.places = places
        places.muted = self._by_tier
        self._follow(policy)

    def apply_policy(self, policy: Policy) -> None:
        """Hot reload, once it is the scheduler's too."""
        self.gates.apply_policy(policy)
        self._follow(policy)

    def _follow(self, policy: Policy) -> None:
        self.places.apply_policy(policy)
        if self._by_tier:
            pace = self._scheduler.pace
            pace.budget_tokens = policy.prefill.budget_tokens(pace.step_tokens)

    def next(self, now: float, preempt: Preempt[T]) -> Request | None:
        """The next of those that wait to go to the engine; None: nobody may."""
        if self.places.in_force:
            return self._next_with_place(now, preempt)
        closed = self.gates.closed(now)
        return None if closed is None else self._scheduler.next(now, closed)

    def _next_with_place(self, now: float, preempt: Preempt[T]) -> Request | None:
        """The next of the tiers that the engine has places for, or can get by preemption."""
        scheduler, gates, places = self._scheduler, self.gates, self.places
        closed = set(gates.held_back(now))
        while (is_open := gates.is_open()) or gates.lacks_place():
            request = scheduler.peek(now, closed)
            if request is None:
                return None
            veto, victims = self._ask(request, seat_short=not is_open)
            tier = places.tier_of(request)
            if veto is not None:
                closed.add(tier)
            elif is_open and not victims:
                return scheduler.next(now, closed)
            elif not sum([preempt(victim, tier, now) for victim in victims]):
                return None
        return None

    def _ask(self, request: Request, *, seat_short: bool) -> Verdict[T]:
        """Whether it may enter, and all who must make way for it."""
        heads = self._scheduler.heads()
        veto, victims = self.places.ask(request, heads, seat_short)
        going = list(victims)
        while victims and self.gates.lacks_place([one.request.id for one in going]):
            veto, victims = self.places.ask(request, heads, seat_short, going)
            going += victims
        return Verdict(veto, going)

    def dispatched(self, occupant: T) -> None:
        """It goes to the engine."""
        self.gates.dispatched(occupant.request)
        self.places.entered(occupant)

    def left(self, occupant: T, now: float) -> None:
        """It is in flight no more."""
        self.places.left(occupant)
        self.gates.ended(occupant.request, now)

    def stepped(self, seconds: float, rows: Sequence[RequestStep], *, learn: bool = True) -> bool:
        """The engine ended a step, of a scheduler that is timed; whether anything waits."""
        scheduler = self._scheduler
        scheduler.step(seconds, rows, learn)
        has_work = scheduler.has_work()
        if self._by_tier:
            queued = {tier.name: tier.queued for tier in scheduler.tier_snapshots()}
            self.gates.step(queued)
        else:
            self.gates.step({"": has_work})
        return has_work
