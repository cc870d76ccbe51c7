"""The report's tables as headings and cells, before a terminal or a page lays them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.scheduling.contracts.simulation_report import (
    FidelityCheck,
    PolicyRun,
    ServiceGap,
    SimulatedFigures,
    SimulatedTenant,
    SimulatedTier,
)
from tidegate.simulator.report import text

ALL = "(all)"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its first ``names`` columns name what the others say something of.

    ``sections`` are rows that belong together, each a list of cells as wide as ``headings``.
    """

    headings: tuple[str, ...]
    names: int
    sections: tuple[tuple[tuple[str, ...], ...], ...]


def fidelity(check: FidelityCheck) -> Grid:
    """What the comparison with a real engine was to show, and did."""
    verdicts = {True: "yes", False: "NO", None: text.NOTHING}
    judged = tuple(
        (
            one.name,
            text.NOTHING if one.value is None else f"{one.value:,.3g} {one.unit}",
            one.aim or "",
            verdicts[one.met],
        )
        for one in check.figures
        if one.aim is not None
    )
    return Grid(("fidelity", "value", "aim", "met"), 1, (judged,))


def counts(run: PolicyRun, most_tenants: int) -> Grid:
    """Who got what, by tier and by tenant."""
    headings = ("tier", "tenant", "sent", "ok", "refused", "unfinished", "in time", "goodput/s",
                "tokens/s", "share", "gap max", "gap mean")  # fmt: skip
    tiers = tuple(
        (tier.name, ALL, *_counts(tier.figures), *_gap(tier.service_gap)) for tier in run.tiers
    )
    tenants = tuple(
        (tenant.tier, tenant.name, *_counts(tenant.figures), "", "")
        for tenant in shown(run, most_tenants)
    )
    return Grid(headings, 2, (tiers, tenants))


def latencies(run: PolicyRun, most_tenants: int) -> Grid:
    """How long it took, by tier and by tenant."""
    headings = ("tier", "tenant", "TTFT p50", "TTFT p95", "TTFT p99", "E2E p50", "E2E p95",
                "E2E p99", "ITL p50", "ITL p95", "ITL p99", "longest gap p99")  # fmt: skip
    tiers = tuple((tier.name, ALL, *_latencies(tier.figures)) for tier in run.tiers)
    tenants = tuple(
        (tenant.tier, tenant.name, *_latencies(tenant.figures))
        for tenant in shown(run, most_tenants)
    )
    return Grid(headings, 2, (tiers, tenants))


def economics(run: PolicyRun, *, priced: bool) -> Grid:
    """What each tier holds, uses and pays."""
    headings = ["tier", "traffic", "reserved", "reserved x traffic", "used", "reservation used",
                "lent"]  # fmt: skip
    if priced:
        headings += ["1,000 calls, by use", "by reservation"]
    rows = tuple((tier.name, *_economics(tier, priced=priced)) for tier in run.tiers)
    return Grid((*headings, "in time"), 1, (rows,))


def compared(runs: Sequence[PolicyRun]) -> Grid:
    """All policies beside each other, tier by tier, and all tiers together last."""
    headings = ("tier", "policy", "sent", "ok", "refused", "unfinished", "in time", "goodput/s",
                "TTFT p50", "TTFT p99", "E2E p50", "E2E p99", "ITL p99", "gap max")  # fmt: skip
    sections = [
        tuple(
            (tier, run.policy, *_compared(found.figures, found.service_gap))
            for run in runs
            for found in run.tiers
            if found.name == tier
        )
        for tier in dict.fromkeys(tier.name for run in runs for tier in run.tiers)
    ]
    total = tuple((ALL, run.policy, *_compared(run.total, None)) for run in runs)
    return Grid(headings, 2, (*sections, total))


def shown(run: PolicyRun, most: int) -> list[SimulatedTenant]:
    """The tenants that a table has room for: those who sent most, in the report's order."""
    largest = sorted(run.tenants, key=lambda tenant: -tenant.figures.sent)[:most]
    names = {(tenant.tier, tenant.name) for tenant in largest}
    return [tenant for tenant in run.tenants if (tenant.tier, tenant.name) in names]


def remarks(run: PolicyRun, most_tenants: int) -> Iterable[str]:
    """What the tables leave to be said: objectives, refusals, what was left out."""
    for tier in run.tiers:
        for one in tier.figures.objectives:
            if one.met is not None:
                verdict = "met" if one.met else "MISSED"
                attained = text.percent(one.attained_percent, 2)
                yield f"{tier.name}: {text.objective(one)}: {attained}, {verdict}"
        if tier.figures.refused:
            yield f"{tier.name}: refused: {text.refusals(tier.figures)}"
    hidden = len(run.tenants) - most_tenants
    if hidden > 0:
        yield f"{hidden} more tenants are summed in their tiers; --json lists all"
    if run.unallocated_gpu_hours > 0:
        yield (
            f"{run.unallocated_gpu_hours:,.2f} GPU hours were neither reserved nor used; no tier "
            "pays for them"
        )


def _counts(figures: SimulatedFigures) -> tuple[str, ...]:
    return (
        f"{figures.sent:,}",
        f"{figures.ok:,}",
        f"{sum(figures.refused.values()):,}",
        f"{figures.unfinished:,}",
        text.in_time(figures),
        text.rate(figures.goodput_per_second),
        text.tokens(figures.tokens_per_second),
        text.percent(100 * figures.share),
    )


def _gap(gap: ServiceGap) -> tuple[str, str]:
    return text.tokens(gap.max_tokens), text.tokens(gap.mean_tokens)


def _latencies(figures: SimulatedFigures) -> tuple[str, ...]:
    return (
        *text.three(figures.ttft_seconds),
        *text.three(figures.e2e_seconds),
        *text.three(figures.itl_seconds),
        text.three(figures.longest_gap_seconds)[2],
    )


def _economics(tier: SimulatedTier, *, priced: bool) -> tuple[str, ...]:
    costs = tier.economics
    cells: tuple[str, ...] = (
        text.percent(costs.traffic_percent),
        text.percent(costs.reserved_percent),
        text.percent(costs.reserved_for_traffic_percent),
        text.percent(costs.used_percent),
        text.percent(costs.reservation_used_percent),
        text.percent(costs.lent_percent),
    )
    if priced:
        cells += (
            text.money(costs.price_per_1000_calls_used),
            text.money(costs.price_per_1000_calls_paid),
        )
    return (*cells, text.in_time(tier.figures))


def _compared(figures: SimulatedFigures, gap: ServiceGap | None) -> tuple[str, ...]:
    ttft, e2e = text.three(figures.ttft_seconds), text.three(figures.e2e_seconds)
    return (
        *_counts(figures)[:6],
        ttft[0],
        ttft[2],
        e2e[0],
        e2e[2],
        text.three(figures.itl_seconds)[2],
        _gap(gap)[0] if gap else "",
    )
