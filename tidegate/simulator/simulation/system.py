"""What is simulated: groups of GPUs, each one engine with a front, and which tiers go where.

A :class:`System` is a recipe; ``simulate`` builds it afresh for every run, so that runs in several
processes share nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate.scheduling.contracts import Policy
from tidegate.simulator.engine_model import (
    Calibration,
    Engine,
    EngineConfig,
    SchedulingPolicy,
    Speculation,
)
from tidegate.simulator.engine_model.engine import NULL_BLOCKS
from tidegate.simulator.simulation.counters import VtcFront
from tidegate.simulator.simulation.direct_front import DirectFront
from tidegate.simulator.simulation.fair_front import FairFront
from tidegate.simulator.simulation.group import Front, Group
from tidegate.simulator.simulation.plugin import PluginHook, PluginOptions
from tidegate.simulator.simulation.result import SimulationResult
from tidegate.simulator.simulation.run import Progress, Simulation, engine_summary, notes
from tidegate.simulator.simulation.sidecar_front import SidecarFront
from tidegate.simulator.simulation.source_rules import SourceRulesHook
from tidegate.workload.clients.client import Workload

DEFAULT_BLOCK_SIZE = 16
"""vLLM's."""


class Scheduling(StrEnum):
    """What orders the requests of a group."""

    FCFS = "vLLM FCFS"
    PRIORITY = "vLLM priority"
    VTC = "VTC"
    SIDECAR = "sidecar without plug-in"
    TIDEGATE = "Tidegate"
    SOURCE_000 = "source 000"
    TRUE_SFQ = "start-time fair queueing, true costs"


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """One engine. ``policy`` is what its sidecar and plug-in put into force."""

    name: str
    calibration: Calibration
    gpus: int
    policy: Policy
    scheduling: Scheduling
    tiers: frozenset[str] | None = None
    """Whom it serves; None: all."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    block_size: int = DEFAULT_BLOCK_SIZE
    plugin: PluginOptions = field(default_factory=PluginOptions)
    speculation: Speculation | None = None
    drafted_tiers: frozenset[str] | None = None
    """Whose decodes are drafted for, where the engine has a draft; None: all."""

    def build(self) -> Group:
        """A fresh engine with its front."""
        policy = self.policy
        # vLLM's priority is lower first; a tier's is higher first.
        priorities = {tier.name: -tier.priority for tier in policy.tiers}
        by_priority = self.scheduling in (Scheduling.PRIORITY, Scheduling.SIDECAR)
        config = EngineConfig(
            step_time=self.calibration.step_time,
            num_gpu_blocks=self.calibration.kv_capacity_tokens // self.block_size + NULL_BLOCKS,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            # As the operator starts it, whatever schedules.
            long_prefill_token_threshold=policy.prefill.chunk_tokens or 0,
            scheduling_policy=SchedulingPolicy.PRIORITY if by_priority else SchedulingPolicy.FCFS,
            speculation=self.speculation,
        )
        front: Front
        match self.scheduling:
            case Scheduling.FCFS | Scheduling.PRIORITY:
                front = DirectFront(priorities)
                engine = Engine(config)
            case Scheduling.VTC:
                front = VtcFront(policy)
                engine = Engine(config)
            case Scheduling.TRUE_SFQ:
                front = FairFront(policy, self.calibration.step_time, {})
                engine = Engine(config)
            case Scheduling.SIDECAR:
                front = SidecarFront(policy, priorities)
                engine = Engine(config)
            case Scheduling.SOURCE_000:
                rules = SourceRulesHook(policy, self.calibration.step_time)
                front = rules.front()
                engine = Engine(config, rules)
            case Scheduling.TIDEGATE:
                hook = PluginHook(policy, config, self.plugin)
                front = SidecarFront(policy, priorities, hook)
                engine = Engine(config, hook)
        return Group(self.name, engine, front, self.gpus, self.drafted_tiers)


@dataclass(frozen=True, slots=True)
class System:
    """All groups; every tier of a workload is served by exactly one of them."""

    name: str
    groups: tuple[EngineGroup, ...]

    @property
    def gpus(self) -> int:
        return sum(group.gpus for group in self.groups)


def simulate(
    system: System,
    workload: Workload,
    *,
    seed: int,
    duration_seconds: float,
    warmup_seconds: float = 0.0,
    max_output_tokens: int = 1_024,
    progress: Progress | None = None,
) -> SimulationResult:
    """Run a workload (fresh: its clients are used up) on a system, from time 0."""
    groups = [group.build() for group in system.groups]
    routes = _routes(system, groups, workload.tiers)
    simulation = Simulation(groups, routes.__getitem__, workload, max_output_tokens)
    simulation.run(duration_seconds, progress)
    return SimulationResult(
        policy=system.name,
        workload=workload.name,
        seed=seed,
        duration_seconds=duration_seconds,
        warmup_seconds=warmup_seconds,
        tiers=workload.tiers,
        records=[request.record() for request in simulation.records],
        samples=simulation.samples,
        engines=engine_summary(groups),
        gpus=system.gpus,
        model_only=workload.model_only,
        notes=notes(groups),
    )


def _routes(system: System, groups: Sequence[Group], tiers: Sequence[str]) -> Mapping[str, Group]:
    routes: dict[str, Group] = {}
    for tier in tiers:
        serving = [
            group
            for spec, group in zip(system.groups, groups, strict=True)
            if spec.tiers is None or tier in spec.tiers
        ]
        if len(serving) != 1:
            raise ValueError(f"{system.name}: {len(serving)} groups serve the tier {tier!r}")
        routes[tier] = serving[0]
    return routes
