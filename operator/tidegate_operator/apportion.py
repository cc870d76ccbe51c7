"""How many pods each engine group gets: Webster's method with one seat for each first. Pure.

Theory. With a divisor method the next seat goes to the group with the greatest share / d(n), n
being the seats that it has; Webster's divisors are n + 1/2, which is the only one of the divisor
methods that favours neither large nor small groups (Balinski and Young, Fair Representation, 1982).
Any of them is house monotone, which is why one is used and no rounding of quotas: one pod more
never takes one away from a group, so that scaling never moves an engine. One seat for each comes
first, since a group without a pod serves nobody.

Bounds: each group has at least one seat; all seats are given; ties go to the group that is listed
first.
"""

from __future__ import annotations

from collections.abc import Sequence


def apportion(seats: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Seats of each group; ValueError: there are fewer than groups."""
    if seats < len(shares):
        raise ValueError(f"{seats} seats for {len(shares)} groups")
    given = [1] * len(shares)
    for _ in range(seats - len(shares)):
        best = 0
        for place in range(1, len(shares)):
            # share / (given + 1/2), compared without fractions
            if shares[place] * (2 * given[best] + 1) > shares[best] * (2 * given[place] + 1):
                best = place
        given[best] += 1
    return tuple(given)
