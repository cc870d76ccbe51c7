"""What each tier holds of the engines, uses of them, and pays for 1,000 calls.

Two prices, because a reservation is bought, not used up (source 000: T0 reserves 70% of a node for
15% of its traffic, on purpose, for 99.5% of its requests in time):

* *by use*: the engines' busy time that was spent on the tier, and nothing for idle time. What a
  call costs to compute.
* *by reservation*: all of the engines' time is paid for, busy or idle. A tier pays for what is
  reserved for it, used or lent. The unreserved rest is paid by the tiers that use more than their
  reservation, in proportion to what they use beyond it. What a call costs to promise.

Hours and calls of a price are of the same time: a call that was sent while it was measured and
answered long after has used hours of that later time. So calls are counted where the engines' time
is, over the whole run, and both are scaled to the measured part.

Invariants: the tiers' hours by reservation and the unallocated ones (an unreserved rest that no
tier used) sum to all hours of all GPUs; the hours by use sum to the busy ones. ``reserved x
traffic`` is source 000's 10.5%: 70% reserved times 15% of the traffic. It is a product of shares
and not a measurement; ``reservation_used_percent`` is the measured one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.scheduling.contracts.simulation_report import TierEconomics

CALLS = 1000
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class TierUse:
    """What was counted of a tier."""

    name: str
    sent: int
    answered: float
    """In as many seconds as were measured, at the rate of the whole run."""
    engine_seconds: float
    """Of the engines' busy time."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there was to use."""

    gpus: int
    seconds: float
    utilisation: float
    """Part of the time in which a step ran, 0..1."""
    gpu_hour_price: float | None

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / _HOUR_SECONDS


def economics(
    tiers: Sequence[TierUse], reserved_percent: Mapping[str, float], capacity: Capacity
) -> tuple[dict[str, TierEconomics], float]:
    """By tier, and the GPU hours that nobody reserved and nobody used."""
    sent = sum(tier.sent for tier in tiers)
    busy = sum(tier.engine_seconds for tier in tiers)
    reserved = {tier.name: reserved_percent.get(tier.name, 0) / 100 for tier in tiers}
    used = {
        tier.name: capacity.utilisation * tier.engine_seconds / busy if busy > 0 else 0.0
        for tier in tiers
    }
    paid, unallocated = _by_reservation(reserved, used)
    table = {}
    for tier in tiers:
        name = tier.name
        traffic = tier.sent / sent if sent else 0.0
        hours_used = used[name] * capacity.gpu_hours
        hours_paid = paid[name] * capacity.gpu_hours
        own = min(used[name], reserved[name])
        table[name] = TierEconomics(
            traffic_percent=100 * traffic,
            reserved_percent=100 * reserved[name],
            used_percent=100 * used[name],
            reserved_for_traffic_percent=100 * reserved[name] * traffic,
            reservation_used_percent=100 * own / reserved[name] if reserved[name] > 0 else None,
            lent_percent=100 * (reserved[name] - own),
            gpu_hours_used=hours_used,
            gpu_hours_paid=hours_paid,
            price_per_1000_calls_used=_price(hours_used, tier.answered, capacity.gpu_hour_price),
            price_per_1000_calls_paid=_price(hours_paid, tier.answered, capacity.gpu_hour_price),
        )
    return table, unallocated * capacity.gpu_hours


def _by_reservation(
    reserved: Mapping[str, float], used: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Each tier's part of the whole, and the part that nobody pays for."""
    beyond = {name: max(0.0, used[name] - reserved[name]) for name in reserved}
    rest = max(0.0, 1.0 - sum(reserved.values()))
    most = sum(beyond.values())
    if most == 0.0:
        return dict(reserved), rest
    return {name: reserved[name] + rest * beyond[name] / most for name in reserved}, 0.0


def _price(gpu_hours: float, answered: float, gpu_hour_price: float | None) -> float | None:
    if gpu_hour_price is None or answered == 0:
        return None
    return CALLS * gpu_hours * gpu_hour_price / answered
