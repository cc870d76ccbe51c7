"""Seats that stay free for tiers with a reservation, where nobody is sent off an engine for them.

Use: ``SpareSeats`` is told of arrivals, dispatches and ends; ``held_back`` names the tiers whose
requests may not take one of the seats that are still free.

Theory
------
Where every seat is taken, whoever comes first in our order still waits for one to be given back:
on an engine of 32 seats that ends ten requests a second, 100 ms on the average and 300 ms for one
in twenty, several times what its prefill takes. So of a busy engine some seats stay free for those
who were promised a share of it. Such a request takes one as it arrives; the next that is given
back, by whomever, takes its place. That is a queue of one server: taken at the rate of arrivals
(L), filled at the rate of ends (M), so that an arrival finds all ``k`` of them gone with
probability (L/M)^k. The least ``k`` is kept with which no more than one arrival in ten does.

What it costs is ``k`` less L / (M - L) seats that idle while lower tiers wait: a part of the engine
that shrinks as seats grow in number, and nothing where no such tier has sent anything lately, or
where its reservation is less than a whole seat. Never are more kept than what those tiers lack of
their reservations, so that all others may hold the rest of the engine whatever arrives; and a tier
that has a reservation itself leaves room only for those of higher priority.

Beside a plug-in none are kept here: it makes room inside the engine, within a step, and its own
rule (``step_seats.headroom``) is another one, since who finds none there has a victim's seat at
once and takes none of those that are given back, so that a queue with losses (M/M/1/k) stands in
the place of this one, in which who finds none waits and is next (M/M/1).

Bound: O(tiers). Source: the guard channels of Hong and Rappaport 1986 (for calls that are handed
over), with one server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, inf, log

from tidegate.scheduling.contracts import SchedulingMode, TierPolicy
from tidegate.scheduling.load_rates import MEMORY_SECONDS, OfferedRate

MOST_FIND_NONE = 0.1
"""Of the arrivals, how many may find no seat free."""
_MOST_LOAD = 0.99
_MANY = 1_000_000
_LATELY = 0.5
"""Requests, faded over half a minute, that make a tier one that sends."""


class SpareSeats:
    """Of one engine; sequences stand for seats."""

    def __init__(self) -> None:
        self._arrivals: dict[str, OfferedRate] = {}
        self._ends = OfferedRate()
        self._reserved: dict[str, int] = {}
        """Percent, by tier."""
        self._protected: dict[str, tuple[str, ...]] = {}
        """By tier, those for which it leaves seats free."""
        self._kept: dict[str, tuple[int, float]] = {}
        """By tier, how many it leaves free, and until when if nobody comes or goes."""
        self._in_flight: dict[str, tuple[str, int]] = {}
        """Tier and sequences, by request."""
        self._held: Counter[str] = Counter()
        """Sequences in flight, by tier."""

    def apply_policy(self, mode: SchedulingMode, tiers: Sequence[TierPolicy]) -> None:
        """Hot reload; rates survive."""
        ordered = mode is SchedulingMode.TIDEGATE
        reserved = [tier for tier in tiers if tier.reserved_percent and ordered]
        self._reserved = {tier.name: tier.reserved_percent for tier in reserved}
        self._protected = {
            tier.name: tuple(one.name for one in reserved if one.priority > tier.priority)
            for tier in tiers
        }
        before = self._arrivals
        self._arrivals = {tier.name: before.get(tier.name) or OfferedRate() for tier in reserved}
        self._kept = {}

    def arrived(self, tier: str, sequences: int, now: float) -> None:
        """A request was taken into the queue."""
        if (rate := self._arrivals.get(tier)) is not None:
            rate.arrived(sequences, now)
            self._look(now)

    def dispatched(self, request_id: str, tier: str, sequences: int) -> None:
        """A request takes seats."""
        self._in_flight[request_id] = tier, sequences
        self._held[tier] += sequences

    def ended(self, request_id: str, now: float) -> None:
        """A request gave its seats back."""
        tier, sequences = self._in_flight.pop(request_id)
        self._held[tier] -= sequences
        if self._arrivals:
            self._ends.arrived(sequences, now)
            self._look(now)

    def held_back(self, seats: int, now: float) -> list[str]:
        """The tiers whose requests may not take one of the ``seats`` that are still free.

        None where nothing is in flight: an idle engine is nobody's. Where some stand ready for a
        seat, fewer than none are free.
        """
        if not self._kept or not self._in_flight:
            return []
        free = seats - self._held.total()
        return [
            tier
            for tier, (kept, until) in self._kept.items()
            if now <= until and free <= self._part(tier, kept, seats)
        ]

    def _part(self, tier: str, kept: int, seats: int) -> float:
        """Of the seats that would be kept, what the reservations allow; -inf: none."""
        protected = self._protected[tier]
        reserved = sum([self._reserved[one] for one in protected]) * seats // 100
        most = min(reserved - sum([self._held[one] for one in protected]), seats - 1)
        return min(kept, most) if most > 0 else -inf

    def _look(self, now: float) -> None:
        self._kept = {}
        ends = self._ends.per_second(now)
        for tier, protected in self._protected.items():
            arrivals = sum([self._arrivals[one].per_second(now) for one in protected])
            lately = arrivals * MEMORY_SECONDS / _LATELY
            if ends and lately >= 1:
                # Both rates fade alike, so the number holds for as long as they are of lately.
                until = now + MEMORY_SECONDS * log(lately)
                self._kept[tier] = spare_seats(arrivals / ends), until


def spare_seats(taken_over_filled: float) -> int:
    """The least number of which an arrival finds none with a chance of one in ten at most."""
    if taken_over_filled >= _MOST_LOAD:
        return _MANY
    return max(1, ceil(log(MOST_FIND_NONE) / log(taken_over_filled)))
