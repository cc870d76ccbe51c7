"""Who sends: streams of requests, some at times of their own, some when an answer has come.

A client is one *source* of traffic of one tier (it may send for several tenants). It draws from
generators of its own, seeded by its name, so what one sends does not depend on what others do; in a
closed loop when it sends depends on the answers, what it sends does not.

``kind`` says what sort of text it is (chat, code), which decides how well a draft model guesses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from math import exp, log
from random import Random
from typing import Protocol

from tidegate.workload.requests import PlannedRequest

Draw = Callable[[Random], int]
"""A token count."""

RETRY_SECONDS = 1.0
"""How long a caller of a closed loop waits after a refusal."""


class Client(Protocol):
    """One source of traffic."""

    @property
    def name(self) -> str:
        """Unique in its workload; the ids of its requests begin with it."""

    @property
    def tier(self) -> str:
        """Of all that it sends."""

    @property
    def kind(self) -> str:
        """chat or code."""

    @property
    def tenants(self) -> Sequence[str]:
        """For whom it sends."""

    def arrivals(self) -> Iterator[PlannedRequest]:
        """What is sent at times of its own (``at_seconds`` is set), in time order."""

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        """What is sent because that request has ended; ``at_seconds`` is set."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients, and the tiers that they belong to, highest first."""

    name: str
    tiers: tuple[str, ...]
    clients: tuple[Client, ...]
    model_only: bool = True
    """Lies outside of what the fidelity check compared with a real engine."""

    @property
    def tenants(self) -> dict[str, str]:
        """The tier of every tenant."""
        return {tenant: client.tier for client in self.clients for tenant in client.tenants}

    def only(self, *tiers: str) -> Workload:
        """The same clients of these tiers, alone."""
        clients = tuple(client for client in self.clients if client.tier in tiers)
        return replace(self, name=f"{self.name}: {'+'.join(tiers)} alone", clients=clients)

    def without(self, *names: str) -> Workload:
        """The same without some clients."""
        clients = tuple(client for client in self.clients if client.name not in names)
        return replace(self, name=f"{self.name} without {'+'.join(names)}", clients=clients)


def log_normal(mean: float, sigma: float, high: int) -> Draw:
    """Log-normal with that mean (before it is cut off at ``high``)."""
    mu = log(mean) - sigma * sigma / 2
    return lambda random: min(high, max(1, round(random.lognormvariate(mu, sigma))))


def log_uniform(low: int, high: int) -> Draw:
    """Uniform in the logarithm."""
    return lambda random: round(exp(random.uniform(log(low), log(high))))


def constant(tokens: int) -> Draw:
    """Always the same."""
    return lambda random: tokens


@dataclass(slots=True)
class OpenClient:
    """Sends at given times, whatever the answers do."""

    name: str
    tier: str
    tenants: Sequence[str]
    times: Callable[[Random], Iterator[float]]
    prompt: Draw
    output: Draw
    seed: int
    kind: str = "chat"

    def arrivals(self) -> Iterator[PlannedRequest]:
        random = Random(f"{self.seed}/{self.name}")
        times = self.times(Random(f"{self.seed}/{self.name}/times"))
        for index, (at, tenant) in enumerate(zip(times, cycle(self.tenants), strict=False)):
            yield PlannedRequest(tenant, index, at, self.prompt(random), self.output(random))

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        return None


@dataclass(slots=True)
class ClosedClient:
    """``concurrency`` callers, each of whom sends when its last answer has ended."""

    name: str
    tier: str
    tenants: Sequence[str]
    concurrency: int
    prompt: Draw
    output: Draw
    seed: int
    kind: str = "chat"
    start_seconds: float = 0.0
    spread_seconds: float = 0.0
    """Over which the callers begin, evenly."""
    _random: Random = field(init=False)
    _indexes: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"{self.seed}/{self.name}")
        self._indexes = count()

    def arrivals(self) -> Iterator[PlannedRequest]:
        for caller, tenant in zip(range(self.concurrency), cycle(self.tenants), strict=False):
            offset = self.spread_seconds * caller / self.concurrency
            yield self._next(tenant, self.start_seconds + offset)

    def follow_up(
        self, request: PlannedRequest, ended_at: float, completed: bool
    ) -> PlannedRequest | None:
        return self._next(request.tenant, ended_at + (0.0 if completed else RETRY_SECONDS))

    def _next(self, tenant: str, at: float) -> PlannedRequest:
        random = self._random
        return PlannedRequest(
            tenant, next(self._indexes), at, self.prompt(random), self.output(random)
        )


def poisson(rate_per_second: float, start_seconds: float = 0.0) -> Callable[..., Iterator[float]]:
    """Times of a Poisson process."""

    def times(random: Random) -> Iterator[float]:
        now = start_seconds
        while True:
            now += random.expovariate(rate_per_second)
            yield now

    return times


def at_times(*times: float) -> Callable[[Random], Iterator[float]]:
    """Given times."""
    return lambda random: iter(times)


def bursts(
    rate_per_second: float, mean_size: float, start_seconds: float = 0.0
) -> Callable[[Random], Iterator[float]]:
    """Bursts of geometric size, as many requests a second over all as ``rate_per_second``."""

    def times(random: Random) -> Iterator[float]:
        now = start_seconds
        while True:
            now += random.expovariate(rate_per_second / mean_size)
            yield now
            while random.random() > 1 / mean_size:
                yield now

    return times
