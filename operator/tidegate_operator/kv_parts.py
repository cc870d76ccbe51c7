"""The parts of the KV cache in the engines of one group, where not every tier may run. Pure.

``kvPools`` divides the cache of each engine. In a group in which some tiers never run (they are at
home elsewhere and their home keeps its requests) their parts would lie idle or be lent at best, so
they go to the parts whose tiers may run there, in proportion to what those have; what is shared by
the tiers that are in none of ``kvPools`` counts as a part. Percents stay integers by the largest
remainder (Hamilton's method), ties by order.

What comes there all the same, as its home has no pod, shares what the tiers in none share, or runs
on what others lend.

Invariants: the percents sum to what they summed to, if any part is left that had some; no part
gets less than it had; two parts keep their proportion, but for rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tidegate.scheduling.contracts import KvPool


def parts_in_group(
    parts: Sequence[KvPool], served: Collection[str], may_run: Collection[str]
) -> tuple[KvPool, ...] | None:
    """The parts over the tiers that ``may_run`` there, of those ``served``; None: as they are."""
    if not parts or not set(served) - set(may_run):
        return None
    here = [
        replace(part, tiers=tuple(tier for tier in part.tiers if tier in may_run)) for part in parts
    ]
    kept = [part for part in here if part.tiers]
    owned = {tier for part in parts for tier in part.tiers}
    unowned = set(served) - owned
    rest = 100 - sum(part.percent for part in parts)
    had = [part.percent for part in kept]
    if unowned & set(may_run):
        had.append(rest)  # the tiers in none run there too
        rest = 0
    freed = sum(part.percent for part in here if not part.tiers) + (rest if unowned else 0)
    gained = _proportionally(freed, had)
    return tuple(
        replace(part, percent=part.percent + more, lendable_percent=_lendable(part, more))
        for part, more in zip(kept, gained, strict=False)
    )


def _lendable(part: KvPool, more: int) -> int | None:
    """As much of the part as before may be lent."""
    if part.lendable_percent is None or not part.percent:
        return part.lendable_percent
    return part.lendable_percent * (part.percent + more) // part.percent


def _proportionally(amount: int, weights: Sequence[int]) -> list[int]:
    """Shares of the amount by weight; nothing where no weight is above 0."""
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    shares = [amount * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(amount * weights[place] % total))
    for place in by_remainder[: amount - sum(shares)]:
        shares[place] += 1
    return shares
