"""Simulated runs made by hand: small enough to know what every figure must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.simulation.result import (
    EngineSummary,
    RequestRecord,
    SimulationResult,
    TimeSample,
)

MakeRecord = Callable[..., RequestRecord]
MakeResult = Callable[..., SimulationResult]


@pytest.fixture(scope="session")
def answered() -> MakeRecord:
    """A request that was answered: (tier, tenant, arrival, ttft, seconds of its stream)."""

    def make(
        tier: str, tenant: str, arrival: float, ttft: float, stream: float, **changes: Any
    ) -> RequestRecord:
        values: dict[str, Any] = {
            "id": f"{tenant}/{arrival}",
            "tenant": tenant,
            "tier": tier,
            "group": "engine",
            "arrival": arrival,
            "prompt_tokens": 100,
            "cached_tokens": 0,
            "output_tokens": 11,
            "dispatched": arrival,
            "first_token": arrival + ttft,
            "finished": arrival + ttft + stream,
            "outcome": Outcome.COMPLETED,
        }
        return RequestRecord(**(values | changes))

    return make


@pytest.fixture(scope="session")
def refused() -> MakeRecord:
    """A request that was refused after so many seconds."""

    def make(
        tier: str,
        tenant: str,
        arrival: float,
        after: float = 0.0,
        outcome: Outcome = Outcome.QUEUE_FULL,
    ) -> RequestRecord:
        return RequestRecord(
            id=f"{tenant}/{arrival}",
            tenant=tenant,
            tier=tier,
            group=None,
            arrival=arrival,
            prompt_tokens=100,
            cached_tokens=0,
            output_tokens=0,
            finished=arrival + after,
            outcome=outcome,
        )

    return make


@pytest.fixture(scope="session")
def waiting() -> MakeRecord:
    """A request that never started."""

    def make(tier: str, tenant: str, arrival: float) -> RequestRecord:
        return RequestRecord(
            id=f"{tenant}/{arrival}",
            tenant=tenant,
            tier=tier,
            group=None,
            arrival=arrival,
            prompt_tokens=100,
            cached_tokens=0,
            output_tokens=0,
        )

    return make


@pytest.fixture(scope="session")
def sample() -> Callable[..., TimeSample]:
    """The state at a time: T0 and T1, as many of each."""

    def make(time: float, queued: int = 0, service: float = 0.0, blocks: int = 10) -> TimeSample:
        return TimeSample(
            time=time,
            queued={"T0": queued, "T1": 2 * queued},
            running={"T0": 1, "T1": 1},
            kv_blocks={"T0": blocks, "T1": 2 * blocks},
            kv_cached_blocks=5,
            kv_total_blocks=100,
            service_tokens={"T0": service, "T1": 2 * service},
            tenant_service_tokens={},
        )

    return make


@pytest.fixture(scope="session")
def result() -> MakeResult:
    """A run of 100 s with one engine of 8 GPUs, busy half of the time."""

    def make(
        records: Sequence[RequestRecord],
        samples: Sequence[TimeSample] = (),
        tiers: Sequence[str] = ("T0", "T1"),
        **changes: Any,
    ) -> SimulationResult:
        values: dict[str, Any] = {
            "policy": "tidegate",
            "workload": "by hand",
            "seed": 7,
            "duration_seconds": 100.0,
            "warmup_seconds": 0.0,
            "tiers": tiers,
            "records": records,
            "samples": samples,
            "engines": EngineSummary(
                steps=1000,
                preemptions=2,
                recomputed_tokens=300,
                prefix_queries_tokens=1000,
                prefix_hits_tokens=250,
                busy_seconds=50.0,
            ),
            "gpus": 8,
        }
        return SimulationResult(**(values | changes))

    return make


@pytest.fixture(scope="session")
def step_time() -> StepTimeModel:
    """Only tokens and what a step takes whatever is in it."""
    return StepTimeModel(
        overhead_seconds=0.0, floor_seconds=0.0, base_seconds=0.01, per_token_seconds=0.001
    )
