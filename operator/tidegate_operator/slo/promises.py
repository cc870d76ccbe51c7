"""How the promises of a pool are kept, and what the condition SLOMet says of it. Pure.

Theory of operation. Each objective of each tier is one :class:`Promise`. What was attained comes
from the pool's Prometheus, over the objective's own window, by the recorded part of the error
budget that is left (:mod:`tidegate_operator.slo.rules`); where the pool names none, from the
sidecars' counters since they started, which is said. A Prometheus that is named and silent leaves
the condition Unknown: what happened since a start is not what was promised.

How promises were broken, refused or late, is known from the sidecars alone, so that is always since
they started, and told as that.

With a budget of 100 - ratio percent of the requests, of which 100 - attained percent broke the
promise, ``1 - (100 - attained) / (100 - ratio)`` of the budget is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.scheduling.contracts import SloObjective, TierPolicy
from tidegate_operator.api.conditions import ConditionStatus, ConditionType, Reason
from tidegate_operator.api.figures import LOWEST_BUDGET_PERCENT, Measured
from tidegate_operator.findings import Finding, joined
from tidegate_operator.slo.recorded import Key, Recorded
from tidegate_operator.slo.windows import promql_duration

_DECIMALS = 3


@dataclass(slots=True)
class Kept:
    """Requests that a promise counts for, and what became of it."""

    requests: int = 0
    good: int = 0
    """In time."""
    refused: int | None = 0
    """Refused, or failed before anything could be measured; None: a sidecar does not tell."""

    def add(self, requests: int, good: int, refused: int | None) -> None:
        self.requests += requests
        self.good += good
        both_tell = self.refused is not None and refused is not None
        self.refused = (self.refused or 0) + (refused or 0) if both_tell else None

    @property
    def percent(self) -> float | None:
        """Of those that count, how many got it; None: there were none."""
        return 100 * self.good / self.requests if self.requests > 0 else None

    @property
    def late(self) -> int | None:
        """The rest of those that broke it."""
        return None if self.refused is None else self.requests - self.good - self.refused


@dataclass(frozen=True, slots=True)
class Promise:
    """One objective of one tier in one pool."""

    pool: str
    """namespace/name."""
    tier: str
    objective: SloObjective
    attained_percent: float | None = None
    """Of the requests that count; None: there were none."""
    measured: Measured = Measured.SIDECAR_START
    silent: str | None = None
    """Why the Prometheus that should tell does not; None: it does, or none is named."""
    refused: int | None = None
    """Of those that broke it since the sidecars started; None: not told."""
    late: int | None = None
    """The others."""

    @property
    def met(self) -> bool | None:
        """None: nobody can say."""
        if self.silent is not None or self.attained_percent is None:
            return None
        return self.attained_percent >= self.objective.ratio_percent

    @property
    def budget_left_percent(self) -> int | None:
        """Rounded down; below 0: overspent."""
        if self.attained_percent is None:
            return None
        broken, budget = 100 - self.attained_percent, 100 - self.objective.ratio_percent
        if broken <= 0:
            return 100
        left = 100 * (1 - broken / budget) if budget > 0 else LOWEST_BUDGET_PERCENT
        return max(LOWEST_BUDGET_PERCENT, int(left // 1))

    @property
    def attained(self) -> str | None:
        """As text, rounded down: what rounds up to a promise has not kept it."""
        if self.attained_percent is None:
            return None
        return _rounded_down(self.attained_percent, _DECIMALS)

    @property
    def _attained_as_promised(self) -> str:
        """For a sentence: with a decimal, or as many as the promise has."""
        decimals = plain_percent(self.objective.ratio_percent).partition(".")[2]
        return _rounded_down(self.attained_percent or 0.0, max(1, len(decimals)))

    def told(self, *, of_pool: bool) -> str:
        """In a sentence; ``of_pool``: with the pool's name instead of the tier's."""
        objective = self.objective
        whose = f"in pool {self.pool}" if of_pool else f"of tier {self.tier}"
        over = "since the sidecars started"
        if self.measured is Measured.WINDOW:
            over = f"over {promql_duration(objective.window_seconds)}"
        return (
            f"{objective.metric} {whose}: {self._attained_as_promised} percent within "
            f"{objective.target_seconds:g} s {over}, {plain_percent(objective.ratio_percent)} are "
            f"promised{self._how_broken}"
        )

    @property
    def _how_broken(self) -> str:
        if not self.refused and not self.late:
            return ""
        since = "since the sidecars started " if self.measured is Measured.WINDOW else ""
        return f" ({since}{self.refused} refused or failed, {self.late} late)"


def promises_of(
    pool: str,
    tiers: Sequence[TierPolicy],
    counts: Mapping[Key, Kept],
    budgets: Recorded | str | None,
) -> tuple[Promise, ...]:
    """Every promise of a pool. ``counts``: since the sidecars started; ``budgets``: what a
    Prometheus has of what is left of each, 1: all of it, or why nothing; None: none is named."""
    found = []
    for tier in tiers:
        for objective in tier.slo_objectives:
            key = tier.name, str(objective.metric)
            left = budgets.of(key) if isinstance(budgets, Recorded) else budgets
            counted = counts.get(key, Kept())
            known = Promise(pool, tier.name, objective, refused=counted.refused, late=counted.late)
            if isinstance(left, tuple):
                broken = (1 - left[0]) * (100 - objective.ratio_percent)
                attained = round(min(100.0, max(0.0, 100 - broken)), 9)
                found.append(replace(known, attained_percent=attained, measured=Measured.WINDOW))
            else:
                found.append(replace(known, attained_percent=counted.percent, silent=left))
    return tuple(found)


def kept(promises: Sequence[Promise] | None) -> frozenset[tuple[str, tuple[bool | None, ...]]]:
    """Of each tier which of its promises are kept; what differs has turned."""
    tiers = {promise.tier for promise in promises or ()}
    return frozenset(
        (tier, tuple(p.met for p in promises or () if p.tier == tier)) for tier in tiers
    )


def worst(promises: Sequence[Promise]) -> Promise:
    """The one with the least budget left; of those that nobody can tell of, the first."""
    return min(
        promises,
        key=lambda p: (p.budget_left_percent is None, p.budget_left_percent or 0),
    )


def slo_finding(promises: Sequence[Promise], runbooks: str, *, of_tier: bool) -> list[Finding]:
    """The condition SLOMet of a pool, or of a tier over its pools; none where nothing is promised.
    ``runbooks`` is where docs/runbooks/ is read."""
    kind = ConditionType.SLO_MET
    if not promises:
        return []
    missed = [promise for promise in promises if promise.met is False]
    if missed:
        runbook = f"{runbooks.rstrip('/')}/error-budget-burn.md"
        look = f"`tidegate explain NAMESPACE/TENANT` says why; {runbook}"
        text = joined([*(promise.told(of_pool=of_tier) for promise in missed), look])
        return [Finding(kind, ConditionStatus.FALSE, Reason.OBJECTIVE_MISSED, text)]
    silent = sorted({f"{p.pool}: {p.silent}" for p in promises if p.silent is not None})
    if silent:
        text = joined(silent)
        return [Finding(kind, ConditionStatus.UNKNOWN, Reason.PROMETHEUS_UNAVAILABLE, text)]
    met = sum(promise.met is True for promise in promises)
    if not met:
        text = "No request that counts for an objective has ended yet"
        return [Finding(kind, ConditionStatus.UNKNOWN, Reason.NO_REQUESTS, text)]
    text = f"{met} of {len(promises)} objectives are kept; no request counts for the others yet"
    if met == len(promises):
        text = f"All objectives are kept: {met}"
    return [Finding(kind, ConditionStatus.TRUE, Reason.OBJECTIVES_MET, text)]


def _rounded_down(percent: float, decimals: int) -> str:
    scale = 10**decimals
    return plain_percent(round(percent * scale, 6) // 1 / scale)


def plain_percent(value: float) -> str:
    """Without an exponent or zeros at the end."""
    text = f"{value:.6f}"
    return text.rstrip("0").rstrip(".")
