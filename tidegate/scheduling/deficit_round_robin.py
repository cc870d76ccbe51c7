"""Post-paid, weighted deficit round robin between the tenants of a tier, with computed rounds.

Theory of operation
-------------------
In deficit round robin (Shreedhar and Varghese 1995) each tenant gets ``quantum x weight`` of credit
a turn and is served while it has credit. *Post-paid* means that a request's cost may exceed the
credit left; the tenant then owes the difference and misses turns until refills have paid it. Spun
turn by turn, a request of a thousand quanta costs a thousand idle rounds, and 10,000 tenants make
each of them slow. So rounds are computed here.

A quantum is handed out in eight rounds, each a *turn* of ``quantum / 8`` per unit of weight. A
tenant's ``tag`` is what it was charged so far, divided by its weight. Round ``r`` gives one turn's
credit to all, so a tenant with tag ``s`` has used up the credit of every round below
``floor(s / turn)`` and is next served in that one: that *is* its deficit. Its turn lasts until the
tag crosses the next multiple of ``turn``. A heap holds the tenants that have something to dispatch,
by their tag at the start of their turn (by round first, in a round who has most credit left). As
the quantum goes to 0 this becomes start-time fair queueing (Goyal 1996), whose virtual time it
borrows:

``virtual_time`` is the tag at the start of the turn being served; while no other tenant of the tier
waits, rounds pass at once and it follows the tag of the one being charged. Nobody is therefore
punished for having used capacity that nobody wanted. A tenant that returns from idle (nothing
queued, nothing in flight) re-enters with a credit of at most one quantum, ``max(tag, virtual_time -
quantum)``, and so goes first. One whose queue was empty while its requests ran keeps what credit it
left with, less what it was charged since, and gains none by the time that passed (the lag of EEVDF,
Stoica and Abdel-Wahab 1995): a few requests, one shortly after the other, use one credit. Debt
stays until rounds have paid it.

Credit and turn differ because they do different things: short turns keep two busy tenants close,
credit lets a quiet one through. On VTC's trace and its reverse (issue 4, 24 runs of each, quantum
2,048 tokens) turns of a whole quantum made the mean gap of two backlogged tenants 1.5 times as
large, and without the kept credit quiet tenants waited up to 1.4 times as long.

Predicted cost is charged at dispatch, corrected while streaming and settled at the end. A refund of
what was charged while nobody else waited stops at ``virtual_time - quantum``, as that charge moved
the virtual time along with it.

Bounds
------
Let i and j both wait throughout an interval, q be the quantum, t the turn (q / 8), w a weight, and
c a tenant's greatest charge for one request.

1. *Lead.* Once i has been dispatched in the interval, ``tag_i - tag_j < t + c_i/w_i``. When i's
   turn began, its tag was at most j's key, which is at most j's tag. In its turn i was last
   dispatched with a tag below its turn's end, which is at most t above the turn's start, and that
   request added at most ``c_i/w_i``. Since then only j was charged. At the interval's beginning the
   lead may be up to q larger, by the credit that j brought.
2. *Served cost.* The difference of what i and j were charged in the interval, each divided by its
   weight, is the change of ``tag_i - tag_j``, hence less than
   ``q + 2t + c_i/w_i + c_j/w_j`` (:func:`difference_bound`).
3. *One request of any size.* Let i begin to wait together with others, with the same tag. If each
   of its requests costs at least ``t w_i``, its turn is one request, so at dispatch
   ``tag_i <= tag_j`` for every j that waits: i gets at most what the least served of the others
   got, per weight, plus one request. In general a whole turn takes that one request's place.

With predictions, c includes all corrections of the requests in flight that happen in the interval:
the bounds are on what is charged, and at the end of the requests charged is served.
"""

from __future__ import annotations

from math import floor
from typing import Generic, TypeVar

from tidegate.scheduling.lazy_heap import Entry, LazyHeap

T = TypeVar("T")

TURNS = 8
"""In which a quantum is handed out."""


class Account(Generic[T]):
    """One tenant's account; ``owner`` is the host's object for it."""

    __slots__ = ("entry", "left_at", "owner", "tag", "turn_end", "weight")

    def __init__(self, owner: T, weight: int) -> None:
        self.owner = owner
        self.weight = weight
        self.tag = 0.0
        self.turn_end = 0.0
        self.left_at = 0.0
        """Virtual time when it last left the heap."""
        self.entry: Entry | None = None
        """Its place in the heap; unset: it has nothing to dispatch."""


class DeficitRoundRobin(Generic[T]):
    """The tenants of one tier; every operation is O(log n) amortised."""

    __slots__ = ("_heap", "_order", "_quantum", "virtual_time")

    def __init__(self, quantum: float) -> None:
        self._heap: LazyHeap[Account[T]] = LazyHeap()
        self._order = 0
        self._quantum = quantum
        self.virtual_time = 0.0

    @property
    def is_empty(self) -> bool:
        """No tenant has anything to dispatch."""
        return not self._heap.size

    def enter(self, account: Account[T], credit: bool) -> None:
        """It has something to dispatch; with up to a quantum in hand, or what it left with."""
        kept = self._quantum
        if not credit:
            kept = min(kept, max(account.left_at - account.tag, 0.0))
        account.tag = max(account.tag, self.virtual_time - kept)
        self._start_turn(account)

    def leave(self, account: Account[T]) -> None:
        """It has nothing to dispatch any more (empty queue, or at its limit in flight)."""
        if account.entry is not None:
            self._heap.withdraw(account.entry)
            account.entry = None
            account.left_at = self.virtual_time

    def first(self) -> Account[T] | None:
        """Whose turn it is."""
        while (entry := self._heap.first()) is not None:
            account: Account[T] = entry[2]
            if account.tag < account.turn_end:
                return account
            self._start_turn(account)
        return None

    def dispatch(self, account: Account[T], cost: float, contended: bool = True) -> bool:
        """Charge the one whose turn it is; whether another tenant of the tier waited for it.
        ``contended`` False: chosen by another rule than this one; nobody's loss."""
        if not contended or self._heap.size < 2:
            self.charge(account, cost, contended=False)
            return False
        entry = account.entry
        if entry is not None and entry[0] > self.virtual_time:
            self.virtual_time = entry[0]
        account.tag += cost / account.weight
        return True

    def charge(self, account: Account[T], cost: float, contended: bool = True) -> None:
        """Charge a request in flight for more than was predicted."""
        account.tag += cost / account.weight
        others = self._heap.size - (account.entry is not None)
        if not (contended and others):
            self.virtual_time = max(self.virtual_time, account.tag)

    def refund(self, account: Account[T], cost: float, contended: bool) -> None:
        """Give back what was charged too much; ``contended`` as its dispatch returned it."""
        tag = account.tag - cost / account.weight
        if not contended:
            tag = max(tag, min(account.tag, self.virtual_time - self._quantum))
        account.tag = tag
        if account.entry is not None and tag < account.entry[0]:
            self._start_turn(account)

    def debt(self, account: Account[T]) -> float:
        """What it was charged beyond its share so far, in units of cost; negative: credit."""
        return (account.tag - self.virtual_time) * account.weight

    def set_debt(self, account: Account[T], debt: float) -> None:
        """Carry a debt over (to another weight or tier); a credit counts up to one quantum."""
        account.tag = self.virtual_time + max(debt / account.weight, -self._quantum)
        account.left_at = self.virtual_time
        if account.entry is not None:
            self._start_turn(account)

    def set_weight(self, account: Account[T], weight: int) -> None:
        """From now on; what it owes, in units of cost, stays, and of a credit up to a quantum."""
        debt = self.debt(account)
        account.weight = weight
        tag = self.virtual_time + max(debt / weight, -self._quantum)
        account.left_at += tag - account.tag
        account.tag = tag
        if account.entry is not None:
            self._start_turn(account)

    def set_quantum(self, quantum: float) -> None:
        """From now on; O(n)."""
        self._quantum = quantum
        for account in list(self._heap):
            self._start_turn(account)

    def _start_turn(self, account: Account[T]) -> None:
        turn = self._quantum / TURNS
        account.turn_end = (floor(account.tag / turn) + 1) * turn
        if account.turn_end <= account.tag:  # the quotient was rounded down
            account.turn_end += turn
        self._order += 1
        if account.entry is None:
            account.entry = self._heap.push(account.tag, self._order, account)
        else:
            account.entry = self._heap.move(account.entry, account.tag, self._order)


def difference_bound(quantum: float, *sides: tuple[float, int]) -> float:
    """Bound 2 for two tenants, each (greatest charge for one request, weight)."""
    turns = 2 * quantum / TURNS
    return quantum + turns + sum(charge / weight for charge, weight in sides)
