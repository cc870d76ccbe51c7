"""Load report: what the tenants of a scenario experienced, as JSON.

Invariant: ``sent == ok + sum(refused) + sum(failed) + unfinished`` in every group, and a tier's
counts are the sums of its tenants'. Latencies of requests with an arrival process run from the
*intended* time of sending (so a client that falls behind can't hide a queue: "coordinated
omission"); in a closed loop from the sending. Percentiles are nearest-rank over the requests that
ended ok; what a refused tenant suffers is in ``refused`` and ``longest_wait_seconds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import described

LOAD_REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of durations, in seconds."""

    p50: float = described("Median.", low=0)
    p95: float = described("95th percentile.", low=0)
    p99: float = described("99th percentile.", low=0)
    max: float = described("Longest.", low=0)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a group of requests experienced."""

    sent: int = described("Requests sent.", default=0, low=0)
    ok: int = described("Answered completely.", default=0, low=0)
    refused: Mapping[str, int] = described(
        "Refused by the server before it answered (4xx, 503, 504), by x-tidegate-dropped-reason, "
        "else by the error's code, else by the status.",
        default_factory=dict,
    )
    failed: Mapping[str, int] = described(
        "Broken otherwise (500, 502, connections, streams cut short), by kind.",
        default_factory=dict,
    )
    unfinished: int = described("Still unanswered when the run ended.", default=0, low=0)
    prompt_tokens: int = described("Prompt tokens of answered requests.", default=0, low=0)
    output_tokens: int = described("Output tokens received.", default=0, low=0)
    tokens_per_second: float = described(
        "Prompt and output tokens per second served in the window: a prompt counts at its first "
        "token, output evenly from there to its end.",
        default=0.0,
        low=0,
    )
    share: float = described(
        "Of all tokens served in the window, 0..1.", default=0.0, low=0, high=1.000001
    )
    ttft_seconds: Percentiles | None = described(
        "To the first token of a stream; null: no stream ended ok.", default=None
    )
    e2e_seconds: Percentiles | None = described(
        "To the end of the answer; null: none ended ok.", default=None
    )
    longest_wait_seconds: float = described(
        "Longest time to a first token (without a stream: to the answer); a request that got none "
        "counts with the time until it was refused, broke or was given up.",
        default=0.0,
        low=0,
    )


@dataclass(frozen=True, slots=True)
class TenantReport:
    """One tenant of the scenario."""

    name: str = described("Its name in the scenario.")
    tier: str = described("Its tier in the scenario.")
    figures: LoadFigures = described("What it experienced.")


@dataclass(frozen=True, slots=True)
class TierReport:
    """The tenants of one tier together."""

    name: str = described("The tier.")
    figures: LoadFigures = described("What they experienced.")


@dataclass(frozen=True, slots=True)
class ClientReport:
    """Whether the load generator itself kept up; if not, its figures measure it, not the server."""

    send_lag_seconds: Percentiles | None = described(
        "From the intended to the real sending, of requests with an arrival process; null: none.",
        default=None,
    )
    late_sends: int = described(
        "Sent more than 100 ms late, where that is over a tenth of the request's latency.",
        default=0,
        low=0,
    )
    loop_lag_p99_seconds: float = described(
        "99th percentile of how late the event loop woke from a sleep.", default=0.0, low=0
    )
    saturated: bool = described(
        "More than 1% of those sends late, or the loop's p99 above 100 ms: do not trust the "
        "latencies.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One run of a scenario."""

    version: int = described(
        "Version of this contract.", low=LOAD_REPORT_VERSION, high=LOAD_REPORT_VERSION
    )
    scenario: str = described("The scenario's name.")
    seed: int = described("The scenario's seed.", low=0)
    complete: bool = described("False: interrupted; what was measured until then.")
    started_at: float = described("Wall clock of the start, seconds since the epoch.", low=0)
    wall_seconds: float = described("From the start to the last end.", low=0)
    window_seconds: float = described(
        "From the start to the scenario's duration, or to the last end where that was earlier.",
        low=0,
    )
    client: ClientReport = described("How well the generator kept up.")
    total: LoadFigures = described("All requests.")
    tenants: tuple[TenantReport, ...] = described("In the scenario's order.")
    tiers: tuple[TierReport, ...] = described("In the order of their first tenant.")
