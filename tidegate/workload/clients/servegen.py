"""Tenants drawn from ServeGen: what single clients of a production service send.

A client here is one of a service's (``tidegate.workload.traces.servegen``), from ``start_seconds``
of its two weeks on, its rates scaled so that the whole fits one engine. The distribution named is
used with its rate and variation; the fitted parameters beside them are not.

``servegen`` is all of them together: a few clients send nearly everything, as in production. Which
tier a client would be in nobody knows, so by falling rate they are of t0 to t3 in turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import gamma, sqrt
from pathlib import Path
from random import Random

from tidegate.workload.clients.client import Draw, OpenClient, Workload
from tidegate.workload.traces.record import TraceError
from tidegate.workload.traces.servegen import (
    RATE_WINDOW_SECONDS,
    ClientLengths,
    RateWindow,
    client_numbers,
    read_lengths,
    read_rates,
)

AFTERNOON_SECONDS = 741_600
"""14:00 of the ninth day."""
REQUESTS_PER_SECOND = 240.0
"""Of all of them together, in the first 600 s of it: half of what they sent."""
MOST_TOKENS = 32_000
"""A longer prompt or output is cut to it."""
_TIERS = ("t0", "t1", "t2", "t3")


def servegen(folder: Path, seed: int) -> Workload:
    """The clients of the service in ``folder`` that send something on that afternoon.

    :class:`TraceError`: there are none, or a file is damaged.
    """
    sent: list[tuple[float, int, list[RateWindow], ClientLengths]] = []
    for number in client_numbers(folder):
        rates = read_rates(folder, number, AFTERNOON_SECONDS)
        if rates[0].per_second <= 0:
            continue
        lengths = read_lengths(folder, number, AFTERNOON_SECONDS)
        if lengths is not None:
            sent.append((rates[0].per_second, number, rates, lengths))
    if not sent:
        raise TraceError(f"{folder} holds no client of ServeGen's that sends anything")
    sent.sort(key=lambda client: client[:2], reverse=True)
    factor = REQUESTS_PER_SECOND / sum(rate for rate, *_ in sent)
    clients = tuple(
        servegen_client(
            rates, lengths, tenant=f"client-{number:02}", tier=_TIERS[rank % len(_TIERS)],
            rate_factor=factor, seed=seed,
        )
        for rank, (_, number, rates, lengths) in enumerate(sent)
    )  # fmt: skip
    return Workload("ServeGen", tuple(dict.fromkeys(one.tier for one in clients)), clients)


def servegen_client(
    rates: Sequence[RateWindow],
    lengths: ClientLengths,
    *,
    tenant: str,
    tier: str,
    rate_factor: float,
    seed: int,
) -> OpenClient:
    """A client of these rates times ``rate_factor``, the first window from 0 s on."""
    return OpenClient(
        name=tenant,
        tier=tier,
        tenants=(tenant,),
        times=lambda random: _times(rates, rate_factor, random),
        prompt=_drawn(lengths.prompt),
        output=_drawn(lengths.output),
        seed=seed,
    )


def _times(rates: Sequence[RateWindow], factor: float, random: Random) -> Iterator[float]:
    for index, window in enumerate(rates):
        end = (index + 1) * RATE_WINDOW_SECONDS
        now = float(index * RATE_WINDOW_SECONDS)
        per_second = window.per_second * factor
        if per_second <= 0:
            continue
        while (now := now + _gap(window, per_second, random)) < end:
            yield now


def _gap(window: RateWindow, per_second: float, random: Random) -> float:
    """One gap between two requests; a variation of nearly 0 is none."""
    mean = 1 / per_second
    if window.variation < 1e-6:
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


def _drawn(shares: dict[int, float]) -> Draw:
    lengths = [min(max(1, length), MOST_TOKENS) for length in shares]
    cumulative = list(accumulate(shares.values()))
    return lambda random: random.choices(lengths, cum_weights=cumulative)[0]
