"""Arrival processes: the times at which a tenant sends, seconds from the start of the run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from random import Random

from tidegate.scheduling.contracts import Arrival, ArrivalProcess


def arrival_times(arrival: Arrival, start_seconds: float, random: Random) -> Iterator[float | None]:
    """Endless times, rising; ``None`` for Closed, where the answers set the pace.

    A trace has times of its own, so asking for them here is an error.
    """
    rate = arrival.rate_per_second
    match arrival.process:
        case ArrivalProcess.CLOSED:
            return repeat(None)
        case ArrivalProcess.BURST:
            return repeat(start_seconds)
        case ArrivalProcess.CONSTANT if rate is not None:
            return (start_seconds + index / rate for index in count())
        case ArrivalProcess.POISSON if rate is not None:
            return _poisson(rate, start_seconds, random)
    raise ValueError(f"{arrival.process} has no arrival times")


def _poisson(rate_per_second: float, start_seconds: float, random: Random) -> Iterator[float]:
    now = start_seconds
    while True:
        now += random.expovariate(rate_per_second)
        yield now
