"""What the model said of the held-out runs, what vLLM did, and how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fidelity_engine import RealRun
from fidelity_fit import step_errors_percent
from fidelity_log import Outcome, percentile
from fidelity_model import Frontend, predict, replay
from fidelity_workloads import TIERS, HeldOut
from report import Aim, Figure, figure

from tidegate.simulator.engine_model import Calibration


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe found: constants on the engine's clock, and its share of the wall's.

    `frontend` is the API process, for the wall's clock alone.
    """

    calibration: Calibration
    frontend: Frontend
    core_percent: float
    step_error_percent: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run, read off an outcome; `unit` is how it is printed."""

    name: str
    unit: str
    read: Callable[[Outcome], float]


def _ttft(tier: str, percent: int) -> Callable[[Outcome], float]:
    def read(outcome: Outcome) -> float:
        of_tier = [
            seconds
            for name, seconds in outcome.first_token_seconds.items()
            if name.startswith(f"{tier}-")
        ]
        return 1000 * percentile(of_tier, percent)

    return read


METRICS = (
    *(Metric(f"{t.upper()} TTFT p{p}", "ms", _ttft(t, p)) for t in TIERS for p in (50, 95)),
    Metric("throughput", "tokens/s", lambda outcome: outcome.tokens_per_second),
    Metric("preemptions", "", lambda outcome: outcome.preemptions),
    Metric("recomputed tokens", "", lambda outcome: outcome.recomputed_tokens),
)


def error_percent(predicted: float, measured: float) -> float:
    """Of the measured; a count that should be 0 is off by 100 percent each."""
    return 100 * abs(predicted - measured) / (measured or 1.0)


class Judged:
    """A held-out run's repetitions, measured and predicted, on both clocks."""

    def __init__(self, held_out: HeldOut, probe: Probe, runs: Sequence[RealRun]) -> None:
        self.held_out = held_out
        self._probe = probe
        self._runs = runs
        self._notes = [run.notes.on_engine_clock() for run in runs]
        self.measured = [notes.outcome for notes in self._notes]
        self.predicted = self.predictions(probe.calibration)

    def predictions(self, calibration: Calibration) -> list[Outcome]:
        """One a repetition; the KV cache is as much smaller or larger as the calibration's."""
        factor = calibration.kv_capacity_tokens / self._probe.calibration.kv_capacity_tokens
        flags = self.held_out.flags.with_blocks(factor)
        return [predict(notes.arrivals, flags, calibration.step_time) for notes in self._notes]

    def wall_errors_percent(self) -> list[float]:
        """Of the same figures on the wall's clock, by constants slowed by the probe's share."""
        step_time = self._probe.calibration.step_time.scaled(100 / self._probe.core_percent)
        predicted = [
            predict(run.notes.arrivals, self.held_out.flags, step_time, self._probe.frontend)
            for run in self._runs
        ]
        measured = [run.notes.outcome for run in self._runs]
        return [error_of(metric, predicted, measured) for metric in self.metrics]

    @property
    def metrics(self) -> list[Metric]:
        """All, but for preemptions where there were none and were to be none."""
        outcomes = [*self.measured, *self.predicted]
        return [metric for metric in METRICS if any(metric.read(o) for o in outcomes)]

    @property
    def core_percent(self) -> float:
        """The engine's clock over the wall's while it was busy."""
        wall = sum(run.notes.busy_seconds for run in self._runs)
        return 100 * sum(notes.busy_seconds for notes in self._notes) / wall

    def summary(self) -> str:
        """For the console."""
        requests = "/".join(str(len(notes.arrivals)) for notes in self._notes)
        seconds = "/".join(f"{run.notes.outcome.makespan_seconds:.1f}" for run in self._runs)
        later = [
            1000 * (seconds - run.notes.outcome.first_token_seconds[name])
            for run in self._runs
            for name, seconds in run.client_ttft_seconds.items()
        ]
        before = [
            1000 * (a.reached_at - a.ranked_at) for run in self._runs for a in run.notes.arrivals
        ]
        return (
            f"{requests} requests in {seconds} s, the engine had {self.core_percent:.0f}% of a "
            f"core; the API process took {percentile(before, 50):.1f} ms (p95 "
            f"{percentile(before, 95):.1f}) before it, and the client saw first tokens "
            f"{percentile(later, 50):.1f} ms (p95 {percentile(later, 95):.1f}) after it"
        )

    def rule_figures(self) -> list[Figure]:
        """What needs no clock, and the step times alone."""
        alike = [replay(run.notes, self.held_out.flags) for run in self._runs]
        steps = [step for notes in self._notes for step in notes.steps]
        one, whole = step_errors_percent(self._probe.calibration.step_time, steps)
        name = self.held_out.name
        return [
            figure(
                f"{name}: steps scheduled alike", min(alike), "%", Aim(">=", 99.9),
                f"{len(steps):,} steps",
            ),
            figure(f"{name}: error of one step, median", one, "%"),
            figure(f"{name}: error of all steps together", whole, "%"),
            figure(f"{name}: the engine's share of a core", self.core_percent, "%"),
        ]  # fmt: skip


def error_of(metric: Metric, predicted: Sequence[Outcome], measured: Sequence[Outcome]) -> float:
    """Percent, of all repetitions taken together."""
    return error_percent(metric.read(together(predicted)), metric.read(together(measured)))


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """As if the repetitions were one run: percentiles over all requests, counts and times added."""
    return Outcome(
        first_token_seconds={
            f"{name}/{number}": seconds
            for number, outcome in enumerate(outcomes)
            for name, seconds in outcome.first_token_seconds.items()
        },
        makespan_seconds=sum(outcome.makespan_seconds for outcome in outcomes),
        generated_tokens=sum(outcome.generated_tokens for outcome in outcomes),
        preemptions=sum(outcome.preemptions for outcome in outcomes),
        recomputed_tokens=sum(outcome.recomputed_tokens for outcome in outcomes),
    )
