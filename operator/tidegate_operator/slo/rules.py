"""Recording rules and alerts of one pool.

Theory of operation. For each objective of each tier, three groups as sloth would generate them,
with its record names and labels, so that what reads sloth's rules reads these:

* the share of requests that broke the promise, over each window. A window without a request counts
  as 0: nobody was let down, and a NaN would spoil every average that it is part of. A window
  without *data* has no value, which nobody may take for good news: autoscaling holds then;
* the objective, its budget, how fast the budget burns and what is left of it. Over the objective's
  own window the ratio is the mean of those of five minutes, as sloth has it: weighted by time, not
  by requests, at a hundredth of the cost of reading a month of counters;
* the alerts, of the four pairs of windows in :mod:`tidegate_operator.slo.windows`.

And for the pool one alert on what the sidecars compare themselves: a tier's p99 of the time to
first token at over :data:`BASELINE_FACTOR` times its own baseline for :data:`BASELINE_FOR`. It is a
ticket: a spike that keeps the promise wakes nobody, and one that breaks it burns the budget.

**Labels.** Sources are selected by ``namespace`` and ``tidegate_io_pool``, as the pool's PodMonitor
attaches them; what is recorded carries them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidegate.scheduling.contracts import SloMetric, SloObjective, TierPolicy
from tidegate_operator.api.serving_pool import PoolIdentity
from tidegate_operator.render.owner import child_metadata
from tidegate_operator.slo.windows import (
    BURN_WINDOWS,
    RATIO_WINDOWS,
    BurnWindow,
    Severity,
    promql_duration,
)

Json = dict[str, Any]

REQUESTS = "tidegate_slo_requests_total"
GOOD = "tidegate_slo_good_total"
OVER_BASELINE = "tidegate_ttft_p99_over_baseline"
POOL = "tidegate_io_pool"
"""The label that Prometheus makes of the pods' label tidegate.io/pool."""

BUDGET_ALERT = "TidegateErrorBudgetBurn"
BASELINE_ALERT = "TidegateLatencyOverBaseline"
BASELINE_FACTOR = 3
BASELINE_FOR = "30s"
BASELINE_INTERVAL = "10s"

_RATIO = "slo:sli_error:ratio_rate"
_PROMISED = {
    SloMetric.TIME_TO_FIRST_TOKEN: "their first token within",
    SloMetric.END_TO_END: "their whole answer within",
    SloMetric.INTER_TOKEN_LATENCY: "a mean gap between tokens of at most",
}


def prometheus_rule(
    pool: PoolIdentity,
    tiers: Sequence[TierPolicy],
    labels: Mapping[str, str],
    runbooks: str,
) -> Json | None:
    """The pool's PrometheusRule; ``labels`` are those by which a Prometheus selects rules,
    ``runbooks`` is where docs/runbooks/ is read.

    None: no tier is promised anything.
    """
    groups = rule_groups(pool.metadata.namespace, pool.metadata.name, tiers, runbooks)
    if not groups:
        return None
    metadata = child_metadata(pool, pool.metadata.name)
    metadata["labels"] = {**labels, **metadata["labels"]}
    return {"metadata": metadata, "spec": {"groups": groups}}


def rule_groups(
    namespace: str, pool: str, tiers: Sequence[TierPolicy], runbooks: str
) -> list[Json]:
    """The ``groups`` of a rule file for Prometheus; none where no tier is promised anything."""
    promised = [tier for tier in tiers if tier.slo_objectives]
    runbooks = runbooks.rstrip("/")
    slos = [
        _Slo(namespace, pool, tier.name, objective, runbooks)
        for tier in promised
        for objective in tier.slo_objectives
    ]
    groups = [group for slo in slos for group in slo.groups()]
    if promised:
        groups.append(_baseline_group(namespace, pool, [t.name for t in promised], runbooks))
    return groups


class _Slo:
    """The rules of one objective of one tier."""

    def __init__(
        self, namespace: str, pool: str, tier: str, objective: SloObjective, runbooks: str
    ) -> None:
        self._objective = objective
        self._runbook = f"{runbooks}/error-budget-burn.md"
        self._window = promql_duration(objective.window_seconds)
        self._place = {"namespace": namespace, POOL: pool, "tier": tier}
        service = f"{namespace}/{pool}"
        name = f"{tier}-{objective.metric}"
        self._group = f"{service}/{name}"
        self._labels = self._place | {
            "objective": str(objective.metric),
            "sloth_id": f"{service}-{name}",
            "sloth_service": service,
            "sloth_slo": name,
        }
        # Not by sloth_id, which is the same for tier b-c of pool a and tier c of pool a-b.
        self._recorded = _selector({"sloth_service": service, "sloth_slo": name})

    def groups(self) -> list[Json]:
        return [
            {"name": f"{self._group}-ratios", "rules": list(self._ratios())},
            {"name": f"{self._group}-budget", "rules": list(self._budget())},
            {"name": f"{self._group}-alerts", "rules": list(self._alerts())},
        ]

    def _record(self, name: str, expression: str, **labels: str) -> Json:
        return {"record": name, "expr": expression, "labels": self._labels | labels}

    def _ratios(self) -> Iterator[Json]:
        source = _selector(self._place | {"objective": str(self._objective.metric)})
        for window in RATIO_WINDOWS:
            requests = f"sum(rate({REQUESTS}{source}[{window}]))"
            good = f"sum(rate({GOOD}{source}[{window}]))"
            expression = f"1 - {good} / ({requests} > 0) or {requests} == 0"
            yield self._record(f"{_RATIO}{window}", expression, sloth_window=window)
        if self._window not in RATIO_WINDOWS:
            period = f"avg_over_time({_RATIO}5m{self._recorded}[{self._window}])"
            yield self._record(f"{_RATIO}{self._window}", period, sloth_window=self._window)

    def _budget(self) -> Iterator[Json]:
        percent = Decimal(str(self._objective.ratio_percent))
        days = Decimal(str(self._objective.window_seconds)) / 86_400
        period = f"slo:period_burn_rate:ratio{self._recorded}"
        yield self._record("slo:objective:ratio", f"vector({_plain(percent / 100)})")
        yield self._record("slo:error_budget:ratio", f"vector({self._budget_ratio})")
        yield self._record("slo:time_period:days", f"vector({_plain(days)})")
        for record, window in (("current", "5m"), ("period", self._window)):
            ratio = f"sum without (sloth_window) ({_RATIO}{window}{self._recorded})"
            expression = f"{ratio} / {self._budget_ratio}"
            yield self._record(f"slo:{record}_burn_rate:ratio", expression)
        yield self._record("slo:period_error_budget_remaining:ratio", f"1 - {period}")
        info = {"sloth_mode": "tidegate", "sloth_objective": _plain(percent)}
        yield self._record("sloth_slo_info", "vector(1)", **info)

    def _alerts(self) -> Iterator[Json]:
        for severity in Severity:
            pairs = [window for window in BURN_WINDOWS if window.severity is severity]
            if not pairs:
                continue
            yield {
                "alert": BUDGET_ALERT,
                "expr": "\nor\n".join(f"({self._burns(window)})" for window in pairs),
                "labels": self._labels | {"severity": str(severity)},
                "annotations": {
                    "summary": "Tier {{ $labels.tier }} of pool {{ $labels.namespace }}/"
                    f"{{{{ $labels.{POOL} }}}} breaks its promise too often",
                    "description": f"{self._promise} "
                    "{{ $value | humanizePercentage }} of them did not get it lately.",
                    "runbook_url": self._runbook,
                },
            }

    def _burns(self, window: BurnWindow) -> str:
        limit = f"({window.rate:g} * {self._budget_ratio})"
        short, long = (
            f"max without (sloth_window) ({_RATIO}{length}{self._recorded} > {limit})"
            for length in (window.short, window.long)
        )
        return f"{short}\nand\n{long}"

    @property
    def _budget_ratio(self) -> str:
        return _plain(1 - Decimal(str(self._objective.ratio_percent)) / 100)

    @property
    def _promise(self) -> str:
        objective = self._objective
        ratio = _plain(Decimal(str(objective.ratio_percent)))
        return (
            f"{ratio}% of its requests over {self._window} are promised "
            f"{_PROMISED[objective.metric]} {objective.target_seconds:g} s."
        )


def _baseline_group(namespace: str, pool: str, tiers: Iterable[str], runbooks: str) -> Json:
    rules = [
        {
            "alert": BASELINE_ALERT,
            "expr": f"max by (namespace, {POOL}, tier) ({OVER_BASELINE}"
            f"{_selector({'namespace': namespace, POOL: pool, 'tier': tier})}) > {BASELINE_FACTOR}",
            "for": BASELINE_FOR,
            "labels": {"severity": str(Severity.TICKET)},
            "annotations": {
                "summary": "Tier {{ $labels.tier }} of pool {{ $labels.namespace }}/"
                f"{{{{ $labels.{POOL} }}}} waits far longer than usual for first tokens",
                "description": "The slowest pod's p99 of the time to first token is "
                "{{ $value | humanize }} times its baseline.",
                "runbook_url": f"{runbooks}/latency-over-baseline.md",
            },
        }
        for tier in tiers
    ]
    name = f"{namespace}/{pool}-baseline"
    return {"name": name, "interval": BASELINE_INTERVAL, "rules": rules}


def _selector(labels: Mapping[str, str]) -> str:
    """Names of Kubernetes objects and our own words: nothing in them needs an escape."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _plain(value: Decimal) -> str:
    """Without an exponent or zeros at the end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
