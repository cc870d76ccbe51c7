"""Tenants drawn from ServeGen: what single clients of a production service send.

ServeGen (Xiang et al. 2025; alibaba/ServeGen @ f891d118, Apache-2.0) gives, for each client of a
model, a rate, the coefficient of variation and the shape of its gaps every 600 s, and histograms of
its prompt and output lengths every 21,600 s. A client here is one of those, from ``start_seconds``
of its two weeks on, its rates scaled so that the whole fits one engine. The distribution named is
used with its rate and variation; the fitted parameters beside them are not.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import gamma, sqrt
from pathlib import Path
from random import Random

from tidegate.simulator.workloads.client import Draw, OpenClient

RATE_WINDOW_SECONDS = 600
LENGTH_WINDOW_SECONDS = 21_600


@dataclass(frozen=True, slots=True)
class RateWindow:
    """600 seconds of one client."""

    per_second: float
    variation: float
    """Standard deviation of the gaps over their mean."""
    weibull: bool
    """Else gamma."""


def servegen_client(
    folder: Path,
    number: int,
    *,
    tenant: str,
    tier: str,
    start_seconds: int,
    rate_factor: float,
    seed: int,
    most_tokens: int = 32_000,
) -> OpenClient:
    """Client ``number`` of the model in ``folder``; ValueError: it is silent in that window."""
    rates = _rates(folder / f"chunk-{number}-trace.csv")
    window = start_seconds // LENGTH_WINDOW_SECONDS * LENGTH_WINDOW_SECONDS
    lengths = json.loads((folder / f"chunk-{number}-dataset.json").read_text()).get(str(window))
    if lengths is None or lengths["input_tokens"] == "{}":
        raise ValueError(f"client {number} has no lengths at {start_seconds} s")
    first = start_seconds // RATE_WINDOW_SECONDS
    return OpenClient(
        name=tenant,
        tier=tier,
        tenants=(tenant,),
        times=lambda random: _times(rates[first:], rate_factor, random),
        prompt=_histogram(lengths["input_tokens"], most_tokens),
        output=_histogram(lengths["output_tokens"], most_tokens),
        seed=seed,
    )


def _rates(path: Path) -> list[RateWindow]:
    with path.open(newline="") as file:
        return [
            RateWindow(float(row[1]), float(row[2]), row[3] == "Weibull")
            for row in csv.reader(file)
        ]


def _times(rates: list[RateWindow], factor: float, random: Random) -> Iterator[float]:
    for index, window in enumerate(rates):
        end = (index + 1) * RATE_WINDOW_SECONDS
        now = float(index * RATE_WINDOW_SECONDS)
        per_second = window.per_second * factor
        if per_second <= 0:
            continue
        while (now := now + _gap(window, per_second, random)) < end:
            yield now


def _gap(window: RateWindow, per_second: float, random: Random) -> float:
    """One gap between two requests; a variation of 0 is none."""
    mean = 1 / per_second
    if window.variation <= 0:
        return mean
    if window.weibull:
        shape = weibull_shape(window.variation)
        return random.weibullvariate(mean / gamma(1 + 1 / shape), shape)
    shape = 1 / window.variation**2
    return random.gammavariate(shape, mean / shape)


def weibull_shape(variation: float) -> float:
    """The shape whose distribution has this coefficient of variation, by bisection."""
    low, high = 0.1, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        ratio = gamma(1 + 2 / middle) / gamma(1 + 1 / middle) ** 2
        low, high = (middle, high) if sqrt(ratio - 1) > variation else (low, middle)
    return high


def _histogram(text: str, most: int) -> Draw:
    shares: dict[int, float] = ast.literal_eval(text)
    lengths = [min(max(1, length), most) for length in shares]
    cumulative = list(accumulate(shares.values()))
    return lambda random: random.choices(lengths, cum_weights=cumulative)[0]
