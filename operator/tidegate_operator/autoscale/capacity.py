"""What one pod can serve of the promised tiers: seen, never assumed.

Theory of operation. While promised requests wait beyond what their promise bears, a pod serves as
many tokens of them as it can under the policy in force, reservations of others included. That rate
of the pods on which they do, averaged over such times, is the capacity: a pod that clients have not
found yet is idle beside one that is short. A pod that serves more without a wait proves more.
Before the group was ever short, only how busy its pods are is known: a single server is busy for
the part of the time that its load takes of it, whatever the order and the sizes, so fewer pods are
busier by as many times as they are fewer.

Bounds. A group never shrinks to a size at which the highest demand of the window it looks back on
(or, while the capacity is not known, how busy it was on average) would take more than
:data:`HEADROOM` of it; it grows to a size at which the demand takes less. So one and the same load
never asks for both. The estimate is of the present mix of requests: where that changes, the first
readings under shortage correct it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

HEADROOM = 0.8
"""Part of the capacity that is planned with."""
DRAIN_SECONDS = 300.0
"""In which what is queued shall have been served, beside what arrives: the time that pods need to
start is not made up for by still more of them."""
_WEIGHT = 0.2
"""Of one reading in the average."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What promised tiers get, and what they wait for."""

    served: float
    """Tokens per second."""
    queued_tokens: float
    """Estimated of the requests that wait."""
    queue_growth: float
    """Of those, tokens per second; negative while the queue shrinks."""
    busy: float | None = None
    """The part of the time in which the pods were, 0 to 1; None: not known."""
    refused: float = 0.0
    """Tokens per second of requests that were sent away since they would have waited too long: as
    much demand as those that wait. Who sends one again is counted again."""
    short_pod: float | None = None
    """Tokens per second served by a pod that was short itself, the mean; None: none was."""

    @property
    def unserved_growth(self) -> float:
        """Tokens per second that come in beyond what is served; negative: the queue shrinks."""
        return self.queue_growth + self.refused

    @property
    def demand(self) -> float:
        """Tokens per second that would serve all that arrives, and the queue in time."""
        arriving = max(0.0, self.served + self.unserved_growth)
        return arriving + self.queued_tokens / DRAIN_SECONDS


class Capacity:
    """The estimate, and the rates it is held against."""

    def __init__(self) -> None:
        self.per_pod: float | None = None
        """Tokens per second; None: the group was never short."""
        self._rates: deque[tuple[float, Rate]] = deque()

    def observe(self, now: float, rate: Rate, pods: int, *, short: bool, window: float) -> None:
        """Take one reading of ``pods`` that all served throughout it; ``short``: requests waited
        beyond what they bear. Rates older than ``window`` seconds are forgotten."""
        self._rates.append((now, rate))
        while self._rates[0][0] < now - window:
            self._rates.popleft()
        if pods == 0 or rate.served <= 0:
            return
        seen = rate.served / pods
        if short:
            seen = seen if rate.short_pod is None else rate.short_pod
            before = seen if self.per_pod is None else self.per_pod
            self.per_pod = before + _WEIGHT * (seen - before)
        elif self.per_pod is not None:
            self.per_pod = max(self.per_pod, seen)

    def pods_for(self, rate: Rate) -> int | None:
        """How many pods serve this demand with headroom; None: not known."""
        if self.per_pod is None:
            return None
        return math.ceil(rate.demand / (HEADROOM * self.per_pod) - 1e-9)

    def holds(self, pods: int, fewer: int) -> bool:
        """Whether so many of these pods less would have served the window; False where that is not
        known, too."""
        rates = [rate for _, rate in self._rates]
        if pods <= fewer or not rates:
            return False
        if self.per_pod is not None:
            room = HEADROOM * self.per_pod * (pods - fewer)
            return max(rate.demand for rate in rates) <= room
        busy = [rate.busy for rate in rates if rate.busy is not None]
        if len(busy) < len(rates):
            return False
        return sum(busy) / len(busy) * pods <= HEADROOM * (pods - fewer)
