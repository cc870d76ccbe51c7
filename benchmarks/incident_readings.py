"""What is read from the run of an incident, beside what every run is boiled down to."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.simulator.simulation.result import RequestRecord, SimulationResult, percentile
from tidegate.workload.clients import incidents

MINUTE = 60.0


def in_bursts(result: SimulationResult) -> dict[str, float]:
    """Incident B: T0 within 90 s of a burst."""
    met = [r for r in result.measured("t0") if incidents.in_avalanche(r.arrival)]
    prompt = sum(record.prompt_tokens for record in met)
    return {
        "t0 p99 in bursts": percentile([record.ttft_seconds for record in met], 99),
        "t0 requests in bursts": len(met),
        "t0 hits": sum(record.cached_tokens for record in met) / prompt,
    }


def lost_histories(result: SimulationResult) -> dict[str, float]:
    """Incident A: turns of sessions whose history the prefix cache had lost."""
    lost = {}
    for tier in ("t0", "t1"):
        turns = result.measured(tier)
        first = min(record.prompt_tokens for record in turns)
        cold = [r for r in turns if r.prompt_tokens > first and not r.cached_tokens]
        lost[f"{tier} histories lost %"] = 100 * len(cold) / len(turns)
    return lost


def minutes(result: SimulationResult) -> dict[str, float]:
    """Incident D: T1's worst P99 in any 60 s (every 10 s), before and after the poison starts."""
    start = result.duration_seconds / 2
    normal = [r for r in result.measured("t1") if not r.tenant.endswith(incidents.POISON)]
    before = [record for record in normal if record.arrival < start]
    after = [record for record in normal if record.arrival >= start]
    poisoned = [r for r in result.records if r.tenant.endswith(incidents.POISON)]
    return {
        "t1 worst minute before": worst_minute(before),
        "t1 worst minute after": worst_minute(after),
        "poison refused": sum(record.outcome == "prompt_too_long" for record in poisoned),
        "poison served": sum(record.outcome == "completed" for record in poisoned),
        "poison prompts": len(poisoned),
    }


def worst_minute(records: Sequence[RequestRecord], step_seconds: float = 10.0) -> float:
    """The largest P99 of time to first token over all windows of 60 s."""
    if not records:
        return 0.0
    ordered = sorted(records, key=lambda record: record.arrival)
    worst, first, last = 0.0, 0, 0
    start = ordered[0].arrival
    while start + MINUTE <= ordered[-1].arrival:
        while first < len(ordered) and ordered[first].arrival < start:
            first += 1
        while last < len(ordered) and ordered[last].arrival < start + MINUTE:
            last += 1
        if last > first:
            ttft = [record.ttft_seconds for record in ordered[first:last]]
            worst = max(worst, percentile(ttft, 99))
        start += step_seconds
    return worst
