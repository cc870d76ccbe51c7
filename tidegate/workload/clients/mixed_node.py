"""The mixed node of source 000: conversation, agents, batch and free traffic on one 8xH100 node.

As issue 4 fixes it: T0 sessions of 11 turns (400 + 1,600 tokens a turn up to 18K, output about 350,
think 20 s), T1 agents of 12 turns (2K + 1.5K a turn, output 200, think 2 s), T2 prompts log-uniform
8..32K with output 600, T3 prompts log-normal about 800 with output 600. T0 and T1 arrive as
sessions; T2 and T3 are closed loops that keep ``t2_in_flight`` and ``t3_in_flight`` requests under
way, or Poisson (T2 in geometric bursts) where a rate is given.

Not given there, chosen here: output lengths are log-normal with a sigma of 0.5 (0.7 for T3's
prompts), cut at 2,048; the number of tenants of each tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.workload.clients.client import (
    ClosedClient,
    OpenClient,
    Workload,
    bursts,
    log_normal,
    log_uniform,
    poisson,
)
from tidegate.workload.clients.sessions import SessionClient

TIERS = ("t0", "t1", "t2", "t3")
MOST_OUTPUT_TOKENS = 2_048
_OUTPUT_SIGMA = 0.5
_PROMPT_SIGMA = 0.7
_TENANTS = {"t0": 10, "t1": 6, "t2": 4, "t3": 13}


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """How much of each: requests a second of T0 and T1, requests in flight of T2 and T3."""

    t0_per_second: float = 0.38
    t1_per_second: float = 0.88
    t2_in_flight: int = 16
    t3_in_flight: int = 130

    def times(self, factor: float) -> MixedLoad:
        """As much of everything by that factor."""
        return MixedLoad(
            self.t0_per_second * factor,
            self.t1_per_second * factor,
            round(self.t2_in_flight * factor),
            round(self.t3_in_flight * factor),
        )


FULL = MixedLoad()
"""About 165 in flight."""
HALF = MixedLoad(0.19, 0.44, 8, 65)
"""About 78 in flight."""


def tenants_of(tier: str) -> tuple[str, ...]:
    """Names of a tier's tenants."""
    return tuple(f"node/{tier}-{number:02d}" for number in range(_TENANTS[tier]))


def conversations(per_second: float, seed: int) -> SessionClient:
    """T0."""
    return SessionClient(
        name="t0",
        tier="t0",
        tenants=tenants_of("t0"),
        requests_per_second=per_second,
        turns=11,
        first_tokens=400,
        turn_tokens=1_600,
        output=log_normal(350, _OUTPUT_SIGMA, MOST_OUTPUT_TOKENS),
        mean_output_tokens=350,
        think_seconds=20.0,
        seed=seed,
    )


def agents(per_second: float, seed: int) -> SessionClient:
    """T1."""
    return SessionClient(
        name="t1",
        tier="t1",
        tenants=tenants_of("t1"),
        requests_per_second=per_second,
        turns=12,
        first_tokens=2_000,
        turn_tokens=1_500,
        output=log_normal(200, _OUTPUT_SIGMA, MOST_OUTPUT_TOKENS),
        mean_output_tokens=200,
        think_seconds=2.0,
        seed=seed,
    )


T2_PROMPT = log_uniform(8_000, 32_000)
T3_PROMPT = log_normal(800, _PROMPT_SIGMA, 8_000)
BATCH_OUTPUT = log_normal(600, _OUTPUT_SIGMA, MOST_OUTPUT_TOKENS)


def mixed_node(load: MixedLoad, seed: int) -> Workload:
    """T2 and T3 closed."""
    return Workload(
        name="mixed node",
        tiers=TIERS,
        clients=(
            conversations(load.t0_per_second, seed),
            agents(load.t1_per_second, seed),
            ClosedClient(
                "t2", "t2", tenants_of("t2"), load.t2_in_flight, T2_PROMPT, BATCH_OUTPUT, seed,
                kind="code", spread_seconds=30.0,
            ),
            ClosedClient(
                "t3", "t3", tenants_of("t3"), load.t3_in_flight, T3_PROMPT, BATCH_OUTPUT, seed,
                spread_seconds=30.0,
            ),
        ),
    )  # fmt: skip


def mixed_node_open(requests_per_second: float, seed: int, burst: float = 4.0) -> Workload:
    """All Poisson in the mix 15 : 35 : 5 : 45, T2 in geometric bursts of that mean size."""
    rate = {"t0": 0.15, "t1": 0.35, "t2": 0.05, "t3": 0.45}
    rates = {tier: share * requests_per_second for tier, share in rate.items()}
    return Workload(
        name="mixed node, open",
        tiers=TIERS,
        clients=(
            conversations(rates["t0"], seed),
            agents(rates["t1"], seed),
            OpenClient(
                "t2", "t2", tenants_of("t2"), bursts(rates["t2"], burst), T2_PROMPT, BATCH_OUTPUT,
                seed, kind="code",
            ),
            OpenClient(
                "t3", "t3", tenants_of("t3"), poisson(rates["t3"]), T3_PROMPT, BATCH_OUTPUT, seed
            ),
        ),
    )  # fmt: skip
