"""Tenants drawn from ServeGen: what single clients of a production service send.

ServeGen (Xiang et al. 2025; alibaba/ServeGen @ f891d118, Apache-2.0) gives, for each client of a
model, a rate, the coefficient of variation and the shape of its gaps every 600 s, and histograms of
its prompt and output lengths every 21,600 s. A client here is one of those, from ``start_seconds``
of its two weeks on, its rates scaled so that the whole fits one engine. The distribution named is
used with its rate and variation; the fitted parameters beside them are not.

``servegen`` is all of them together: a few clients send nearly everything, as in production. Which
tier a client would be in nobody knows, so by falling rate they are of t0 to t3 in turns.
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

from tidegate.workload.clients.client import Draw, OpenClient, Workload

RATE_WINDOW_SECONDS = 600
LENGTH_WINDOW_SECONDS = 21_600
AFTERNOON_SECONDS = 741_600
"""14:00 of the ninth day."""
REQUESTS_PER_SECOND = 240.0
"""Of all of them together, in the first 600 s of it: half of what they sent."""
_TIERS = ("t0", "t1", "t2", "t3")


@dataclass(frozen=True, slots=True)
class RateWindow:
    """600 seconds of one client."""

    per_second: float
    variation: float
    """Standard deviation of the gaps over their mean."""
    weibull: bool
    """Else gamma."""


def servegen(folder: Path, seed: int) -> Workload:
    """The clients of the model in ``folder`` that send something on that afternoon.

    ValueError, OSError: there are none.
    """
    window = AFTERNOON_SECONDS // RATE_WINDOW_SECONDS
    sent = []
    for file in folder.glob("chunk-*-trace.csv"):
        number = int(file.name.split("-")[1])
        rate = _rates(file)[window].per_second
        if rate > 0 and _lengths(folder, number, AFTERNOON_SECONDS) is not None:
            sent.append((rate, number))
    if not sent:
        raise ValueError(f"{folder} holds no client of ServeGen's that sends anything")
    factor = REQUESTS_PER_SECOND / sum(rate for rate, _ in sent)
    clients = tuple(
        servegen_client(
            folder,
            number,
            tenant=f"client-{number:02}",
            tier=_TIERS[rank % len(_TIERS)],
            start_seconds=AFTERNOON_SECONDS,
            rate_factor=factor,
            seed=seed,
        )
        for rank, (_, number) in enumerate(sorted(sent, reverse=True))
    )
    return Workload("ServeGen", tuple(dict.fromkeys(one.tier for one in clients)), clients)


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
    lengths = _lengths(folder, number, start_seconds)
    if lengths is None:
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


def _lengths(folder: Path, number: int, start_seconds: int) -> dict[str, str] | None:
    """Histograms of a client's prompts and outputs; None: it is silent then, or has none."""
    file = folder / f"chunk-{number}-dataset.json"
    window = start_seconds // LENGTH_WINDOW_SECONDS * LENGTH_WINDOW_SECONDS
    lengths: dict[str, str] | None = None
    if file.exists():
        lengths = json.loads(file.read_text()).get(str(window))
    return None if lengths is None or lengths["input_tokens"] == "{}" else lengths


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
