"""How tiers share what is left above the reservations: start-time fair queueing by weight.

Theory of operation (Goyal, Vin, Cheng 1996): tiers of one *rank* share a :class:`Turn`. A tier's
``tag`` is what it was charged there, divided by its weight; of those that wait the least tag goes
next. ``virtual_time`` is the tag last served. A tier that begins to wait is lifted to it: unused
turns are lost, while what it was charged beyond its share stays.

Between tiers Strict, the rank is the priority, the weight 1, and all that a tier is given counts:
equal priorities share evenly. Weighted, there is one rank, and what is given by a reservation does
not count: the weights share the excess.

Costs are predicted at the charge and corrected later. A correction upwards while no other tier of
the turn waits takes the virtual time along, as no one loses by it; and a refund of what was charged
while none waited stops at the virtual time, which that charge had taken along.

Bound: let i and j both wait throughout an interval, whenever the turn decides. What they are
charged there, each divided by its weight, differs by at most ``c_i/w_i + c_j/w_j``
(:func:`weighted_bound`), c the greatest cost of one request with all corrections of the requests in
flight: either is charged only while its tag is the lesser, so the lead ``tag_i - tag_j`` lies
between ``-c_j/w_j`` and ``c_i/w_i`` at all times.
"""

from __future__ import annotations


class Turn:
    """What the tiers of one rank have in common."""

    __slots__ = ("virtual_time", "waiting")

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self.waiting = 0
        """How many of them wait."""


class Share:
    """One tier's place in its turn."""

    __slots__ = ("rank", "tag", "turn", "waiting", "weight")

    def __init__(self) -> None:
        self.rank = 0
        """The lower goes before all of a higher one."""
        self.weight = 1
        self.turn = Turn()
        self.tag = 0.0
        self.waiting = False

    def enter(self) -> None:
        """It begins to wait."""
        self.waiting = True
        self.turn.waiting += 1
        self.forget_credit()

    def leave(self) -> None:
        """It waits no more."""
        self.waiting = False
        self.turn.waiting -= 1

    def forget_credit(self) -> None:
        """No claim from before now."""
        if self.tag < self.turn.virtual_time:
            self.tag = self.turn.virtual_time

    def goes_before(self, other: Share) -> bool:
        """Whether its turn is earlier than another's."""
        if self.rank != other.rank:
            return self.rank < other.rank
        return self.tag < other.tag

    def charge(self, cost: float) -> None:
        """It was given a request of this predicted cost."""
        turn = self.turn
        if turn.virtual_time < self.tag:
            turn.virtual_time = self.tag
        self.tag += cost / self.weight

    def correct(self, cost: float, contended: bool) -> None:
        """One turned out to cost so much more (or, negative, less) than it was charged.

        ``contended``: another tier of the turn waited when it was charged.
        """
        turn = self.turn
        tag = self.tag + cost / self.weight
        if cost > 0:
            if turn.waiting <= self.waiting and turn.virtual_time < tag:
                turn.virtual_time = tag
        elif not contended and tag < turn.virtual_time:
            tag = min(self.tag, turn.virtual_time)
        self.tag = tag

    def join(self, turn: Turn, rank: int, weight: int) -> None:
        """New terms from now on: even with those of another turn, else what it owes stays."""
        if turn is not self.turn:
            if self.waiting:
                self.turn.waiting -= 1
                turn.waiting += 1
            self.turn, self.tag = turn, turn.virtual_time
        elif weight != self.weight:
            ahead = (self.tag - turn.virtual_time) * self.weight
            self.tag = turn.virtual_time + ahead / weight
        self.rank, self.weight = rank, weight


def weighted_bound(*sides: tuple[float, int]) -> float:
    """The bound above for two tiers, each (greatest cost of one request, weight)."""
    return sum(cost / weight for cost, weight in sides)
