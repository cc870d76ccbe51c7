"""Token counts drawn from a distribution."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from math import log
from random import Random

from tidegate.scheduling.contracts import LengthDistribution, LengthShape


def lengths(distribution: LengthDistribution, random: Random) -> Iterator[int]:
    """Endless token counts, each at least 1."""
    low, high = distribution.low, distribution.high
    match distribution.distribution:
        case LengthShape.CONSTANT if distribution.value is not None:
            return repeat(distribution.value)
        case LengthShape.UNIFORM if low is not None and high is not None:
            return _uniform(low, high, random)
        case LengthShape.LOG_NORMAL if (
            distribution.median is not None and distribution.sigma is not None
        ):
            return _log_normal(distribution.median, distribution.sigma, high, random)
    raise ValueError(f"{distribution.distribution} lacks its parameters")


def _uniform(low: int, high: int, random: Random) -> Iterator[int]:
    while True:
        yield random.randint(low, high)


def _log_normal(median: float, sigma: float, high: int | None, random: Random) -> Iterator[int]:
    while True:
        length = max(1, round(random.lognormvariate(log(median), sigma)))
        yield length if high is None else min(length, high)
