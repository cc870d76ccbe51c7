"""Figures as a person reads them, the same on a terminal and in a page."""

from __future__ import annotations

from tidegate.scheduling.contracts.limits import SloMetric
from tidegate.scheduling.contracts.simulation_report import (
    FidelityCheck,
    Latencies,
    ObjectiveFigures,
    PolicyRun,
    SimulatedFigures,
    SimulationReport,
)
from tidegate.simulator.report.fidelity import together

NEVER = "never"
"""A percentile that lies among the requests that never got there."""
NOTHING = "-"

METRIC_NAMES = {
    SloMetric.TIME_TO_FIRST_TOKEN: "TTFT",
    SloMetric.END_TO_END: "E2E",
    SloMetric.INTER_TOKEN_LATENCY: "ITL",
}


def seconds(value: float | None) -> str:
    """A latency in three digits or so."""
    if value is None:
        return NEVER
    if value < 0.0995:
        return f"{1000 * value:.1f} ms" if value < 0.00995 else f"{1000 * value:.0f} ms"
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 99.95 else f"{value:,.0f} s"


def three(values: Latencies | None) -> list[str]:
    """The three percentiles; of no request, nothing."""
    if values is None:
        return [NOTHING] * 3
    return [seconds(values.p50), seconds(values.p95), seconds(values.p99)]


def percent(value: float | None, digits: int = 1) -> str:
    """A percentage; never rounded up to 100."""
    if value is None:
        return NOTHING
    text = f"{value:.{digits}f}"
    if value < 100 and float(text) >= 100:
        text = f"{100 - 10**-digits:.{digits}f}"
    return f"{text}%"


def money(value: float | None) -> str:
    """A price, without its currency."""
    if value is None:
        return NOTHING
    return f"{value:,.4f}" if value < 0.1 else f"{value:,.2f}"


def tokens(value: float | None) -> str:
    """A number of tokens."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    """Something per second, in three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def in_time(figures: SimulatedFigures) -> str:
    """The attainment of each objective, in the order they are promised in."""
    attained = [percent(one.attained_percent) for one in figures.objectives]
    return " / ".join(attained) or NOTHING


def objective(one: ObjectiveFigures) -> str:
    """What is promised, in words."""
    return (
        f"{METRIC_NAMES[one.metric]} within {seconds(one.target_seconds)} for "
        f"{one.ratio_percent:g}%"
    )


def refusals(figures: SimulatedFigures) -> str:
    """Refusals by reason."""
    return ", ".join(f"{count} {reason}" for reason, count in figures.refused.items()) or NOTHING


def fidelity(report: SimulationReport) -> str:
    """What a reader may believe: the statement that stands before every figure."""
    reasons = together(run.outside for run in report.runs)
    if not reasons:
        return (
            "Checked: the engine was probed, and `scripts/bench fidelity` compared runs of this "
            "kind with the real one; its table says how far they differ."
        )
    return (
        "MODEL ONLY: outside of what `scripts/bench fidelity` compared with a real engine, for "
        f"{'; '.join(reasons)}. Compare policies by these figures; do not take them for what your "
        "hardware will show."
    )


def fidelity_summary(check: FidelityCheck) -> str:
    """The comparison itself, in a line."""
    judged = [one for one in check.figures if one.aim is not None]
    met = sum(one.met is True for one in judged)
    missing = sum(one.value is None for one in judged)
    text = f"`scripts/bench fidelity` of {check.measured_at}: {met} of {len(judged)} aims met"
    return f"{text}, {missing} not measured" if missing else text


def engine_line(run: PolicyRun) -> str:
    """What the engines did, in a line."""
    engine = run.engine
    hits = engine.prefix_hit_ratio
    return (
        f"{engine.gpus} GPUs, busy {percent(100 * engine.utilisation)} of the time, "
        f"{percent(100 * engine.work_utilisation)} of it all with tokens and context (the rest is "
        "what a step takes however few there are); "
        f"{engine.steps:,} steps; {engine.preemptions:,} preemptions, "
        f"{engine.recomputed_tokens:,} tokens recomputed; prefix cache hit for "
        f"{NOTHING if hits is None else percent(100 * hits)} of the tokens looked up"
    )
