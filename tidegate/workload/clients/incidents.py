"""The four incidents of source 000, as workloads: the same arrivals before and after the remedy.

A  Three 32K prompts together, once a minute, beside conversations and agents: with 512 tokens a
   step they fill 190 steps, and whoever is not above them waits.
B  Sixty batch requests of 16..32K within five seconds, every five minutes, on the mixed node: more
   KV than there is, so that somebody is preempted and somebody's prefix cache evicted.
C  The mixed node, for drafts that fit or do not.
D  A client sends 200K prompts for some time: eight seconds of prefill each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tidegate.workload.clients.client import (
    Client,
    ClosedClient,
    OpenClient,
    Workload,
    constant,
    log_normal,
    poisson,
)
from tidegate.workload.clients.mixed_node import (
    BATCH_OUTPUT,
    FULL,
    MOST_OUTPUT_TOKENS,
    T2_PROMPT,
    T3_PROMPT,
    TIERS,
    MixedLoad,
    agents,
    conversations,
    mixed_node,
    tenants_of,
)

LONG_PROMPTS = "t2 long prompts"
A_PERIOD_SECONDS = 60.0

B_PERIOD_SECONDS = 300.0
B_BURST_SECONDS = 5.0
B_BURST_REQUESTS = 60

POISON = "poison"
POISON_TOKENS = 200_000
POISON_PERIOD_SECONDS = 15.0


def _every(
    period_seconds: float, count: int, spread_seconds: float, start_seconds: float
) -> Callable[[Random], Iterator[float]]:
    def times(random: Random) -> Iterator[float]:
        now = start_seconds
        while True:
            for at in sorted(random.uniform(0.0, spread_seconds) for _ in range(count)):
                yield now + at
            now += period_seconds

    return times


def _short(name: str, tier: str, per_second: float, mean: int, output: int, seed: int) -> Client:
    return OpenClient(
        name,
        tier,
        tenants_of(tier),
        poisson(per_second),
        log_normal(mean, 0.5, 4_000),
        log_normal(output, 0.5, MOST_OUTPUT_TOKENS),
        seed,
    )


def long_prompts(seed: int, short: bool = False) -> Workload:
    """Incident A: T0 1/s, T1 2/s and T2's 32K prompts (``LONG_PROMPTS``).

    T0 and T1 are the node's sessions, whose turns compute 1,600 and 1,500 tokens, or with ``short``
    single prompts of 800 and 600.
    """
    others: tuple[Client, ...] = (conversations(1.0, seed), agents(2.0, seed))
    if short:
        others = (
            _short("t0", "t0", 1.0, 800, 350, seed),
            _short("t1", "t1", 2.0, 600, 200, seed),
        )
    return Workload(
        name="incident A, short prompts" if short else "incident A",
        tiers=TIERS[:3],
        clients=(
            *others,
            OpenClient(
                LONG_PROMPTS,
                "t2",
                tenants_of("t2"),
                _every(A_PERIOD_SECONDS, 3, 0.0, A_PERIOD_SECONDS / 2),
                constant(32_000),
                BATCH_OUTPUT,
                seed,
                kind="code",
            ),
        ),
    )


def avalanche(seed: int) -> Workload:
    """Incident B: the mixed node's T0, T1 and T3, and bursts of T2."""
    return Workload(
        name="incident B",
        tiers=TIERS,
        clients=(
            conversations(FULL.t0_per_second, seed),
            agents(FULL.t1_per_second, seed),
            OpenClient(
                "t2",
                "t2",
                tenants_of("t2"),
                _every(B_PERIOD_SECONDS, B_BURST_REQUESTS, B_BURST_SECONDS, B_PERIOD_SECONDS),
                lambda random: max(16_000, T2_PROMPT(random)),
                log_normal(1_500, 0.3, 3_000),
                seed,
                kind="code",
            ),
            ClosedClient(
                "t3",
                "t3",
                tenants_of("t3"),
                FULL.t3_in_flight,
                T3_PROMPT,
                BATCH_OUTPUT,
                seed,
                spread_seconds=30.0,
            ),
        ),
    )


def in_avalanche(arrival: float, within_seconds: float = 90.0) -> bool:
    """Whether something that arrived then met a burst of incident B."""
    return arrival >= B_PERIOD_SECONDS and arrival % B_PERIOD_SECONDS < within_seconds


def drafts(seed: int, load: MixedLoad = FULL) -> Workload:
    """Incident C."""
    return mixed_node(load, seed)


def poison(seed: int, start_seconds: float, tier: str = "t1") -> Workload:
    """Incident D: T0 1/s, T1 2/s, T3; from ``start_seconds`` on 200K prompts (``POISON``)."""
    return Workload(
        name="incident D",
        tiers=("t0", "t1", "t3"),
        clients=(
            _short("t0", "t0", 1.0, 800, 350, seed),
            _short("t1", "t1", 2.0, 600, 200, seed),
            ClosedClient(
                "t3", "t3", tenants_of("t3"), 60, T3_PROMPT, BATCH_OUTPUT, seed, spread_seconds=30.0
            ),
            OpenClient(
                POISON,
                tier,
                (f"node/{POISON}",),
                _every(POISON_PERIOD_SECONDS, 1, 0.0, start_seconds),
                constant(POISON_TOKENS),
                constant(200),
                seed,
            ),
        ),
    )
