"""The demonstration: one tenant's burst, another's few requests, through two ways of scheduling.

A sends many requests at once; while they wait, B of the same tier sends a few. First through one
shared queue (first come, first served), then through Tidegate, before the same engines. How the
pool is switched between the two is the caller's (:class:`ModeSwitch`): the demo itself knows an
endpoint only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate.load.report import waited_seconds
from tidegate.load.run import LoadRun
from tidegate.load.sample import Sample, SampleState
from tidegate.scheduling.contracts import (
    SCENARIO_VERSION,
    Arrival,
    ArrivalProcess,
    LengthDistribution,
    LengthShape,
    LoadReport,
    Scenario,
    SchedulingMode,
    TenantLoad,
)
from tidegate.workload import Workload

A, B = "a", "b"
MODES = (SchedulingMode.FIRST_COME_FIRST_SERVED, SchedulingMode.TIDEGATE)
_LONGEST_PHASE_SECONDS = 600.0


class ModeSwitch(Protocol):
    """Changes how the pool schedules, and back."""

    async def set(self, mode: SchedulingMode) -> None:
        """Return once every sidecar of the pool reports the mode."""

    async def restore(self) -> None:
        """Back to what the pool had before the first ``set``; nothing where there was none."""


@dataclass(frozen=True, slots=True)
class DemoSizes:
    """How much A and B send."""

    a_requests: int = 2_000
    b_requests: int = 5
    b_start_seconds: float = 5.0
    """Late enough that A's connections are open: B should wait for scheduling, not for accept."""
    prompt_tokens: int = 128
    output_tokens: int = 32


@dataclass(frozen=True, slots=True)
class DemoPhase:
    """What one mode gave. Times of B's answers are seconds from A's burst."""

    mode: SchedulingMode
    report: LoadReport
    b_answered_seconds: tuple[float, ...]
    b_longest_wait_seconds: float
    a_longest_seconds: float


class DemoInterruptedError(Exception):
    """The user stopped a phase; there is nothing whole to show."""


Measure = Callable[[LoadRun], Awaitable[LoadReport]]


def demo_scenario(model: str, mode: SchedulingMode, sizes: DemoSizes) -> Scenario:
    """A's burst and B's few requests; the same in both modes."""
    prompt = LengthDistribution(LengthShape.CONSTANT, value=sizes.prompt_tokens)
    output = LengthDistribution(LengthShape.CONSTANT, value=sizes.output_tokens)

    def tenant(name: str, requests: int, start_seconds: float, stream: bool) -> TenantLoad:
        return TenantLoad(
            name=name,
            tier="the same",
            arrival=Arrival(ArrivalProcess.BURST),
            start_seconds=start_seconds,
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
            stream=stream,
        )

    return Scenario(
        version=SCENARIO_VERSION,
        name=f"demo, {mode}",
        model=model,
        duration_seconds=_LONGEST_PHASE_SECONDS,
        drain_seconds=0.0,
        # A prompt seen before would be served from the engine's prefix cache in the second phase.
        seed=MODES.index(mode),
        tenants=(
            tenant(A, sizes.a_requests, 0.0, stream=False),
            tenant(B, sizes.b_requests, sizes.b_start_seconds, stream=True),
        ),
    )


async def run_demo(
    endpoint: str,
    model: str,
    keys: Mapping[str, str],
    switch: ModeSwitch,
    measure: Measure,
    *,
    sizes: DemoSizes | None = None,
) -> tuple[DemoPhase, ...]:
    """Both phases, then the pool's own mode again, also after an error or a ^C."""
    sizes = sizes or DemoSizes()
    phases = []
    try:
        for mode in MODES:
            await switch.set(mode)
            scenario = demo_scenario(model, mode, sizes)
            run = LoadRun(Workload(scenario), endpoint, keys)
            report = await measure(run)
            if not report.complete:
                raise DemoInterruptedError
            phases.append(demo_phase(mode, report, run.samples))
    finally:
        await switch.restore()
    return tuple(phases)


def demo_phase(mode: SchedulingMode, report: LoadReport, samples: list[Sample]) -> DemoPhase:
    """The figures of one phase."""
    of_b = [sample for sample in samples if sample.tenant == B]
    of_a = [sample for sample in samples if sample.tenant == A]
    return DemoPhase(
        mode=mode,
        report=report,
        b_answered_seconds=tuple(
            sorted(s.ended for s in of_b if s.state is SampleState.OK and s.ended is not None)
        ),
        b_longest_wait_seconds=max(map(waited_seconds, of_b), default=0.0),
        a_longest_seconds=max(((s.ended or 0.0) - s.began for s in of_a), default=0.0),
    )
