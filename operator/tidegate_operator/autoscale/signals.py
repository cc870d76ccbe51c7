"""What each signal says of one group of engines: pure.

A verdict is one of four: *missing* (nothing is known: no step may rest on it, and no pod may go),
*hot* (more is needed), *calm* (nothing speaks against a pod less), or neither, the band between
that keeps noise from moving anything.

A signal that looks back goes on being hot after its cause is gone: its ``lookback_seconds`` say for
how long it can't tell whether the pods that were added are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate_operator.autoscale.policy import ScalingSignal

WAIT_PART = 0.5
"""Of a promised latency: more of it spent in the queue, and the promise is at risk."""
CALM_PART = 0.5
"""Of what counts as hot: below, a group is calm."""
HOT_BURN_RATE = 1.0
"""At which a budget lasts exactly as long as its window."""
LAG_SECONDS = 60.0
"""From what happens to where Prometheus' rules have seen it: a scrape and an evaluation."""
BURN_LOOKBACK_SECONDS = 300.0 + LAG_SECONDS
"""The shortest window of the burn rates that are read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one signal says; at most one of the texts is set."""

    signal: ScalingSignal
    hot: str | None = None
    """Why more pods are needed."""
    missing: str | None = None
    """Why nothing is known."""
    calm: bool = False
    lookback_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TierWait:
    """How long the requests of one promised tier wait."""

    tier: str
    limit_seconds: float
    """At most, for the tier's promise to be safe."""
    wait_seconds: float | None
    """Their 95th percentile lately, or longer already; None: none waited."""
    refused_ratio: float = 0.0
    """Part of its requests that were sent away lately since they would have waited too long."""
    budget_ratio: float = 0.0
    """Part of its requests for which the promise may be broken."""

    @property
    def short(self) -> bool:
        """Requests wait longer, or are sent away more often, than the promise bears."""
        waits = self.wait_seconds is not None and self.wait_seconds > self.limit_seconds
        return waits or self.refused_ratio > self.budget_ratio

    @property
    def calm(self) -> bool:
        """Far from it."""
        waits = (self.wait_seconds or 0.0) > CALM_PART * self.limit_seconds
        return not waits and self.refused_ratio <= CALM_PART * self.budget_ratio


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast one objective's budget is spent, in times of what it bears."""

    tier: str
    objective: str
    short: float
    """Over five minutes."""
    long: float
    """Over an hour."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert that fires."""

    name: str
    severity: str
    tier: str
    lookback_seconds: float


def queue_wait(waits: Sequence[TierWait] | str) -> Verdict:
    """Hot while a tier waits beyond its limit, or is refused for that; text: why nothing is
    known."""
    signal = ScalingSignal.QUEUE_WAIT
    if isinstance(waits, str):
        return Verdict(signal, missing=waits)
    if over := [_why_short(wait) for wait in waits if wait.short]:
        return Verdict(signal, hot="; ".join(over))
    return Verdict(signal, calm=all(wait.calm for wait in waits))


def _why_short(wait: TierWait) -> str:
    if wait.refused_ratio > wait.budget_ratio:
        return (
            f"{100 * wait.refused_ratio:.2g}% of the requests of tier {wait.tier} are refused "
            "since they would wait too long"
        )
    return (
        f"tier {wait.tier} waits {wait.wait_seconds or 0:.2g} s in the queue, its promise bears "
        f"{wait.limit_seconds:.2g} s"
    )


def burn_rate(burns: Sequence[Burn] | str) -> Verdict:
    """Hot while a budget is spent too fast over both windows; text: why nothing is known."""
    signal = ScalingSignal.BURN_RATE
    if isinstance(burns, str):
        return Verdict(signal, missing=burns)
    over = [
        f"tier {b.tier} spends its budget for {b.objective} {min(b.short, b.long):.2g} times as "
        "fast as it lasts"
        for b in burns
        if min(b.short, b.long) > HOT_BURN_RATE
    ]
    if over:
        return Verdict(signal, hot="; ".join(over), lookback_seconds=BURN_LOOKBACK_SECONDS)
    return Verdict(signal, calm=all(b.short <= CALM_PART * HOT_BURN_RATE for b in burns))


def alerts(firing: Sequence[Alert] | str) -> Verdict:
    """Hot while an alert fires; text: why nothing is known."""
    signal = ScalingSignal.ALERTS
    if isinstance(firing, str):
        return Verdict(signal, missing=firing)
    if not firing:
        return Verdict(signal, calm=True)
    told = sorted({f"{a.name} ({a.severity}) of tier {a.tier}" for a in firing})
    # The alert that forgets first is the first that can ask for more again.
    lookback = min(alert.lookback_seconds for alert in firing)
    return Verdict(signal, hot=f"{'; '.join(told)} fires", lookback_seconds=lookback)
