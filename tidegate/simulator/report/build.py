"""From simulated runs to the report. Pure: everything is an argument."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.scheduling.contracts import Policy
from tidegate.scheduling.contracts.limits import SloObjective
from tidegate.scheduling.contracts.simulation_report import (
    SIMULATION_REPORT_VERSION,
    EngineFigures,
    FidelityCheck,
    PolicyRun,
    ServiceGap,
    SimulatedFigures,
    SimulatedTenant,
    SimulatedTier,
    SimulationReport,
)
from tidegate.scheduling.outcomes import Outcome
from tidegate.simulator.engine_model import StepTimeModel
from tidegate.simulator.report.economics import Capacity, TierUse, economics
from tidegate.simulator.report.engine_time import added_seconds, engine_seconds
from tidegate.simulator.report.fidelity import outside
from tidegate.simulator.report.figures import Window, group_figures, meets, served_tokens
from tidegate.simulator.service_gap import WINDOW_SECONDS, ServedRequest, window_gaps
from tidegate.simulator.simulation.result import RequestRecord, SimulationResult

_Name = tuple[str, str]
"""Tier and tenant."""


@dataclass(frozen=True, slots=True)
class Promises:
    """What the runs are judged by: the same for all policies, whether they know it or not."""

    objectives: Mapping[str, Sequence[SloObjective]] = field(default_factory=dict)
    """By tier."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """By tenant; others weigh 1."""
    reserved_percent: Mapping[str, float] = field(default_factory=dict)
    """By tier, of all GPUs, where the policy reserves."""
    tiers: Mapping[str, str] = field(default_factory=dict)
    """By tenant: those that are listed even if they sent nothing."""

    @classmethod
    def of(cls, policy: Policy) -> Promises:
        """What a policy promises."""
        return cls(
            {tier.name: tier.slo_objectives for tier in policy.tiers},
            {tenant.name: tenant.weight for tenant in policy.tenants},
            {tier.name: tier.reserved_percent for tier in policy.tiers},
            {tenant.name: tenant.tier for tenant in policy.tenants},
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run and what is needed to judge it."""

    result: SimulationResult
    promises: Promises
    step_time: StepTimeModel
    """Of its engines."""
    engines: int = 1
    engine_measured: bool = False
    """The engine's constants come from a probe of it."""
    stock_engine: bool = False
    """Nothing but vLLM itself decides."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs have in common.

    Requests that arrive until ``measured_until`` count; the run goes on after it, so that these
    have the time that they need.
    """

    calibration: str
    measured_until: float
    gpu_hour_price: float | None = None
    fidelity: FidelityCheck | None = None
    notes: tuple[str, ...] = ()


def build_report(runs: Sequence[Run], setting: Setting) -> SimulationReport:
    """The report of runs of one workload, the policy in question first. ValueError: no run."""
    if not runs:
        raise ValueError("a report needs a run")
    first = runs[0].result
    return SimulationReport(
        version=SIMULATION_REPORT_VERSION,
        workload=first.workload,
        calibration=setting.calibration,
        seed=first.seed,
        warmup_seconds=first.warmup_seconds,
        measured_until_seconds=setting.measured_until,
        duration_seconds=first.duration_seconds,
        gpu_hour_price=setting.gpu_hour_price,
        runs=tuple(policy_run(run, setting) for run in runs),
        fidelity=setting.fidelity,
        notes=setting.notes,
    )


def policy_run(run: Run, setting: Setting) -> PolicyRun:
    """The figures of one run."""
    result, promises = run.result, run.promises
    window = Window(result.warmup_seconds, setting.measured_until)
    groups = _Groups(result, promises, window)
    tier_figures = {tier: groups.figures_of_tier(tier) for tier in groups.tiers}
    engine = _engine_figures(run)
    capacity = Capacity(result.gpus, window.seconds, engine.utilisation, setting.gpu_hour_price)
    busy = engine_seconds(result.records, run.step_time, result.engines.busy_seconds)
    ended = Counter(one.tier for one in result.records if one.outcome is Outcome.COMPLETED)
    part = window.seconds / result.duration_seconds
    uses = [
        TierUse(tier, figures.sent, ended[tier] * part, busy.get(tier, 0.0))
        for tier, figures in tier_figures.items()
    ]
    beyond = outside(result, engine_measured=run.engine_measured, stock_engine=run.stock_engine)
    costs, unallocated = economics(uses, promises.reserved_percent, capacity)
    return PolicyRun(
        policy=result.policy,
        model_only=bool(beyond),
        outside=beyond,
        engine=engine,
        total=groups.figures_of_all(),
        tiers=tuple(
            SimulatedTier(tier, figures, groups.service_gap(tier), costs[tier])
            for tier, figures in tier_figures.items()
        ),
        tenants=groups.tenant_rows(),
        unallocated_gpu_hours=unallocated,
    )


class _Groups:
    """The records of a run by tier and tenant, and their figures."""

    def __init__(self, result: SimulationResult, promises: Promises, window: Window) -> None:
        self._records = result.records
        self._promises = promises
        self._window = window
        served: dict[_Name, float] = defaultdict(float)
        measured: dict[_Name, list[RequestRecord]] = {
            (tier, tenant): [] for tenant, tier in promises.tiers.items()
        }
        for record in result.records:
            name = record.tier, record.tenant
            served[name] += served_tokens(record, window)
            mine = measured.setdefault(name, [])
            if window.holds(record.arrival):
                mine.append(record)
        self._served = served
        self._everything = sum(served.values())
        self._measured = measured
        self.tiers = list(dict.fromkeys([*result.tiers, *(tier for tier, _ in measured)]))

    def figures_of_tier(self, tier: str) -> SimulatedFigures:
        names = [name for name in self._measured if name[0] == tier]
        return self._figures(names, self._objectives(tier))

    def figures_of_all(self) -> SimulatedFigures:
        return self._figures(list(self._measured), ())

    def tenant_rows(self) -> tuple[SimulatedTenant, ...]:
        order = {tier: place for place, tier in enumerate(self.tiers)}
        names = sorted(self._measured, key=lambda name: (order[name[0]], name[1]))
        return tuple(
            SimulatedTenant(tenant, tier, self._figures([(tier, tenant)], self._objectives(tier)))
            for tier, tenant in names
        )

    def service_gap(self, tier: str) -> ServiceGap:
        """Of the windows that lie within what is measured."""
        requests = (
            _served_request(record, self._window.end)
            for record in self._records
            if record.tier == tier
        )
        gaps = [
            self._weighted_gap(gap.service_by_tenant)
            for gap in window_gaps(requests)
            if self._window.start <= gap.start <= self._window.end - WINDOW_SECONDS
        ]
        if not gaps:
            return ServiceGap(0, None, None)
        return ServiceGap(len(gaps), max(gaps), sum(gaps) / len(gaps))

    def _figures(
        self, names: Sequence[_Name], objectives: Sequence[SloObjective]
    ) -> SimulatedFigures:
        return group_figures(
            [record for name in names for record in self._measured[name]],
            objectives,
            self._window,
            served=sum(self._served[name] for name in names),
            everything=self._everything,
            good=sum(
                meets(record, self._objectives(name[0]))
                for name in names
                for record in self._measured[name]
            ),
        )

    def _weighted_gap(self, service: Mapping[str, float]) -> float:
        weights = self._promises.weights
        shares = [tokens / weights.get(tenant, 1) for tenant, tokens in service.items()]
        return max(shares) - min(shares)

    def _objectives(self, tier: str) -> Sequence[SloObjective]:
        return self._promises.objectives.get(tier, ())


def _served_request(record: RequestRecord, run_end: float) -> ServedRequest:
    """A request that never got a token waited without service, until it was refused or the end."""
    if record.first_token is None:
        until = run_end if record.finished is None else record.finished
        return ServedRequest(record.tenant, 0, 0, record.arrival, until, until)
    end = run_end if record.finished is None else record.finished
    return ServedRequest(
        record.tenant,
        record.prompt_tokens,
        record.output_tokens,
        record.arrival,
        record.first_token,
        max(end, record.first_token),
    )


def _engine_figures(run: Run) -> EngineFigures:
    engines = run.result.engines
    queries = engines.prefix_queries_tokens
    available = run.result.duration_seconds * run.engines
    utilisation = engines.busy_seconds / available if available > 0 else 0.0
    work = sum(added_seconds(record, run.step_time) for record in run.result.records)
    return EngineFigures(
        gpus=run.result.gpus,
        utilisation=utilisation,
        work_utilisation=min(utilisation, work / available) if available > 0 else 0.0,
        steps=engines.steps,
        preemptions=engines.preemptions,
        recomputed_tokens=engines.recomputed_tokens,
        prefix_hit_ratio=engines.prefix_hits_tokens / queries if queries else None,
    )
