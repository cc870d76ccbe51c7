"""Simulation report: what tenants would experience under one or more policies, as JSON.

Invariants: ``sent == ok + sum(refused) + unfinished`` in every group, and a tier's counts are the
sums of its tenants'. Percentiles are nearest-rank over **all** requests sent while it was measured:
one that was refused, broke or did not end counts as slower than any other, so a percentile that
lies among those is null. An objective is attained by the part of all requests sent that met it; the
same requests are misses there. ``goodput_per_second`` counts requests that were answered and met
every objective of their tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import described
from tidegate.scheduling.contracts.limits import SloMetric

SIMULATION_REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of all requests of a group, in seconds; null: the requests at this rank never got there."""

    p50: float | None = described("Median.", low=0)
    p95: float | None = described("95th percentile.", low=0)
    p99: float | None = described("99th percentile.", low=0)


@dataclass(frozen=True, slots=True)
class ObjectiveFigures:
    """One latency objective and how far it was attained."""

    metric: SloMetric = described("What is promised.")
    target_seconds: float = described("The latency promised.", low=0)
    ratio_percent: float = described("Of how many requests.", low=0, high=100)
    attained_percent: float | None = described(
        "Of all requests sent, how many met it; null: none was sent.", low=0, high=100
    )
    met: bool | None = described("Whether that is at least the ratio; null: none was sent.")


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """What a group of requests experienced."""

    sent: int = described("Requests that arrived while it was measured.", low=0)
    ok: int = described("Answered completely.", low=0)
    refused: Mapping[str, int] = described("Ended otherwise, by outcome.")
    unfinished: int = described("Never started, or not ended when the run did.", low=0)
    prompt_tokens: int = described("Prompt tokens of requests that got a first token.", low=0)
    output_tokens: int = described("Output tokens generated.", low=0)
    tokens_per_second: float = described(
        "Prompt and output tokens per second served while it was measured: a prompt counts at its "
        "first token, output evenly from there to its end.",
        low=0,
    )
    share: float = described(
        "Of all tokens served while it was measured, 0..1.", low=0, high=1.000001
    )
    goodput_per_second: float = described(
        "Requests per second that were answered and met all objectives of their tier.", low=0
    )
    ttft_seconds: Latencies | None = described(
        "To the first token, with all queueing; null: none was sent."
    )
    e2e_seconds: Latencies | None = described("To the last token; null: none was sent.")
    itl_seconds: Latencies | None = described(
        "Mean time between the tokens of a request; null: none has two tokens."
    )
    longest_gap_seconds: Latencies | None = described(
        "Longest time between two tokens of a request; null: none has two tokens."
    )
    preemptions: int = described("Times that its requests were taken off the engine.", low=0)
    recomputed_tokens: int = described("Computed again because of that.", low=0)
    cached_ratio: float | None = described(
        "Of its prompt tokens, found in the prefix cache, 0..1; null: none was admitted.",
        low=0,
        high=1,
    )
    objectives: tuple[ObjectiveFigures, ...] = described("Of its tier; none: nothing is promised.")


@dataclass(frozen=True, slots=True)
class ServiceGap:
    """How far the tenants of a tier drifted apart while they waited.

    Over aligned windows of 30 s in which at least two of its tenants waited all the time: the
    largest less the smallest service, prompt tokens and twice the output tokens, each divided by
    the tenant's weight.
    """

    windows: int = described("Windows in which two or more tenants waited all the time.", low=0)
    max_tokens: float | None = described("Of the worst window; null: there is none.", low=0)
    mean_tokens: float | None = described("Of all these windows; null: there are none.", low=0)


@dataclass(frozen=True, slots=True)
class TierEconomics:
    """What a tier holds of the engines, what it uses of them, and what its calls cost.

    Money is in the unit of the price that was given. By use: the GPU time that the tier's service
    took. By reservation: the tier pays for all that is reserved for it, used or not; what nobody
    reserved is paid by those that use more than their reservation, in proportion.
    """

    traffic_percent: float = described("Of all requests sent.", low=0, high=100)
    reserved_percent: float = described("Of the engines, guaranteed to it.", low=0, high=100)
    used_percent: float = described("Of the engines' time, spent on its requests.", low=0)
    reserved_for_traffic_percent: float = described(
        "Reserved times traffic: source 000's measure of a reservation that little traffic uses.",
        low=0,
        high=100,
    )
    reservation_used_percent: float | None = described(
        "Of its reservation, used by itself; null: nothing is reserved for it.", low=0, high=100
    )
    lent_percent: float = described(
        "Of the engines: reserved for it and left to the others.", low=0, high=100
    )
    gpu_hours_used: float = described("GPU time that its service took.", low=0)
    gpu_hours_paid: float = described("GPU time that it pays for by reservation.", low=0)
    price_per_1000_calls_used: float | None = described(
        "By use; null: no price was given, or no call was answered.", low=0
    )
    price_per_1000_calls_paid: float | None = described(
        "By reservation; null: no price was given, or no call was answered.", low=0
    )


@dataclass(frozen=True, slots=True)
class SimulatedTier:
    """The tenants of one tier together."""

    name: str = described("The tier.")
    figures: SimulatedFigures = described("What its requests experienced.")
    service_gap: ServiceGap = described("Between its tenants.")
    economics: TierEconomics = described("What it costs.")


@dataclass(frozen=True, slots=True)
class SimulatedTenant:
    """One tenant."""

    name: str = described("The tenant.")
    tier: str = described("Its tier.")
    figures: SimulatedFigures = described("What its requests experienced.")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The engines of a run together."""

    gpus: int = described("GPUs.", low=1)
    utilisation: float = described("Part of the time in which a step ran, 0..1.", low=0)
    work_utilisation: float = described(
        "The same without what a step takes whatever is in it: low where steps are far from full, "
        "however busy the engine looks.",
        low=0,
    )
    steps: int = described("Engine steps.", low=0)
    preemptions: int = described("Requests taken off an engine.", low=0)
    recomputed_tokens: int = described("Computed again because of that.", low=0)
    prefix_hit_ratio: float | None = described(
        "Of the prompt tokens looked up, found in the prefix cache, 0..1; null: none was.",
        low=0,
        high=1,
    )


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The workload under one policy."""

    policy: str = described("Its name.")
    model_only: bool = described(
        "It lies outside of what `scripts/bench fidelity` compared with a real engine."
    )
    outside: tuple[str, ...] = described("In what respects; none: it lies within.")
    engine: EngineFigures = described("The engines.")
    total: SimulatedFigures = described("All requests.")
    tiers: tuple[SimulatedTier, ...] = described("Highest first.")
    tenants: tuple[SimulatedTenant, ...] = described("By tier, then by name.")
    unallocated_gpu_hours: float = described(
        "GPU time that nobody reserved and nobody used: no tier pays for it.", low=0
    )


@dataclass(frozen=True, slots=True)
class CheckedFigure:
    """One figure of `scripts/bench fidelity`."""

    name: str = described("Its name.")
    value: float | None = described("What was measured; null: nothing, and `why`.")
    unit: str = described("Of the value.")
    aim: str | None = described("What it was to be; null: nothing was asked of it.")
    met: bool | None = described("Whether it was; null without a value or an aim.")
    why: str = described("How the value came about.")


@dataclass(frozen=True, slots=True)
class FidelityCheck:
    """A comparison of the engine model with a real engine."""

    measured_at: str = described("When, in UTC.")
    figures: tuple[CheckedFigure, ...] = described("What came out.")


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One workload under one or more policies."""

    version: int = described(
        "Version of this contract.", low=SIMULATION_REPORT_VERSION, high=SIMULATION_REPORT_VERSION
    )
    workload: str = described("The workload's name.")
    calibration: str = described("The engine model's constants, by name.")
    seed: int = described("Seed of everything random.", low=0)
    warmup_seconds: float = described("Requests that arrived before it count in no figure.", low=0)
    measured_until_seconds: float = described(
        "Nor do those that arrived from then on; rates and shares are measured in between.", low=0
    )
    duration_seconds: float = described(
        "Virtual time simulated: longer, so that those measured have time to end.", low=0
    )
    gpu_hour_price: float | None = described("Of one GPU for one hour; null: not given.", low=0)
    runs: tuple[PolicyRun, ...] = described("The policy in question first, then the others.")
    fidelity: FidelityCheck | None = described(
        "The comparison of the engine model with a real engine; null: it was not given."
    )
    notes: tuple[str, ...] = described("What a reader must know.")
