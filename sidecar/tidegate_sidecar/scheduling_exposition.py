"""What the scheduling core did, as Prometheus metrics (design section 12).

Every series of the policy in force is there from the start, at zero. Limits are labels by name, at
most :data:`MAX_LIMIT_SERIES`, the rest together as ``other``. Beside a plug-in the engine's own
figures of blocks and preemptions take the place of those counted here, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from tidegate.scheduling.contracts import OnExceed, PreemptionCause
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.shared_state.exposition import shared_state_metrics
from tidegate_sidecar.tally import SKEW_BOUNDS, Tally

OTHER = "other"
MAX_LIMIT_SERIES = 256

_SHADOW_OUTCOMES = (
    Outcome.PROMPT_TOO_LONG,
    Outcome.THROTTLED,
    Outcome.RATE_LIMITED,
    Outcome.REQUEST_EXCEEDS_LIMIT,
)
"""What only Shadow would have refused."""


def scheduling_metrics(runtime: Runtime, tenant_labels: Mapping[str, str]) -> Iterator[Metric]:
    """Of one sidecar; ``tenant_labels``: the label of each tenant."""
    yield from _refusals(runtime.tally)
    yield from _promises(runtime.tally)
    yield from _skew(runtime.tally)
    yield from _engine_time(runtime, tenant_labels)
    yield from _shadow(runtime)
    if runtime.plugin is None:
        yield from _places(runtime)
    yield from shared_state_metrics(runtime.shared_state)
    store = runtime.dispatcher.limit_store
    yield CounterMetricFamily(
        "tidegate_limit_state_failures",
        "Writes of the rate limits' counters that failed.",
        value=0 if store is None else store.failures,
    )


def _refusals(tally: Tally) -> Iterator[Metric]:
    throttled = CounterMetricFamily(
        "tidegate_throttled", "Requests refused because they would be too late.", labels=("tier",)
    )
    prompts = CounterMetricFamily(
        "tidegate_prompt_limited",
        "Prompts above the limit, by what became of them.",
        labels=("tier", "action"),
    )
    for name, tier in tally.tiers.items():
        throttled.add_metric((name,), tier.outcomes.get(Outcome.THROTTLED, 0))
        actions = {
            OnExceed.REJECT: tier.outcomes.get(Outcome.PROMPT_TOO_LONG, 0),
            OnExceed.TRUNCATE: tier.truncated,
            OnExceed.BEST_EFFORT: tier.best_effort,
        }
        for action, count in actions.items():
            prompts.add_metric((name, action.value), count)
    limited = CounterMetricFamily(
        "tidegate_rate_limited", "Requests that a rate limit refused.", labels=("limit",)
    )
    counts: dict[str, int] = {}
    for place, name in enumerate(sorted(tally.rate_limited)):
        label = name if place < MAX_LIMIT_SERIES else OTHER
        counts[label] = counts.get(label, 0) + tally.rate_limited[name]
    for label, count in counts.items():
        limited.add_metric((label,), count)
    yield from (throttled, prompts, limited)


def _promises(tally: Tally) -> Iterator[Metric]:
    labels = ("tier", "objective")
    requests = CounterMetricFamily(
        "tidegate_slo_requests", "Requests that count for an objective.", labels=labels
    )
    good = CounterMetricFamily(
        "tidegate_slo_good", "Of them, those within its target.", labels=labels
    )
    refused = CounterMetricFamily(
        "tidegate_slo_refused",
        "Of them, those that were refused or failed before anything could be measured; the rest "
        "were late.",
        labels=labels,
    )
    target = GaugeMetricFamily(
        "tidegate_slo_target_seconds", "What an objective promises.", labels=labels
    )
    for name, tier in tally.tiers.items():
        for metric, count in tier.slo.counts.items():
            requests.add_metric((name, metric.value), count.requests)
            good.add_metric((name, metric.value), count.good)
            refused.add_metric((name, metric.value), count.refused)
            target.add_metric((name, metric.value), count.target_seconds)
    yield from (requests, good, refused, target)


def _skew(tally: Tally) -> Iterator[Metric]:
    skew = HistogramMetricFamily(
        "tidegate_vft_skew_ratio",
        "How much later (negative: earlier) than estimated at its dispatch a request ended, as a "
        "ratio of the estimate.",
        labels=("tier",),
    )
    flagged = CounterMetricFamily(
        "tidegate_vft_skew_flagged",
        "Requests that ended more than 0.30 later than estimated, by the cause.",
        labels=("tier", "cause"),
    )
    for name, tier in tally.tiers.items():
        buckets, total = [], 0
        for bound, count in zip((*SKEW_BOUNDS, "+Inf"), tier.skew.counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        skew.add_metric((name,), buckets, tier.skew.sum)
        for cause, count in tier.skew_flagged.items():
            flagged.add_metric((name, cause.value), count)
    yield from (skew, flagged)


def _engine_time(runtime: Runtime, tenant_labels: Mapping[str, str]) -> Iterator[Metric]:
    used = CounterMetricFamily(
        "tidegate_engine_time_ms",
        "Milliseconds of the engine's busy time, by who was charged.",
        labels=("tier", "tenant"),
    )
    gaps = GaugeMetricFamily(
        "tidegate_max_service_gap",
        "Largest difference, by weight, of what two tenants of the tier that waited throughout the "
        "last 30 s were given, in its fairness unit.",
        labels=("tier",),
    )
    scheduler = runtime.dispatcher.scheduler
    if scheduler is not None:
        totals: dict[tuple[str, str], float] = {}
        for tenant in scheduler.tenant_snapshots(runtime.dispatcher.loop.time()):
            key = (tenant.tier, tenant_labels.get(tenant.name, OTHER))
            totals[key] = totals.get(key, 0.0) + tenant.engine_ms_total
        for key, total in totals.items():
            used.add_metric(key, total)
    for name in runtime.tally.tiers:
        gaps.add_metric((name,), runtime.service_gap.by_tier.get(name, 0.0))
    yield from (used, gaps)


def _shadow(runtime: Runtime) -> Iterator[Metric]:
    scheduler = runtime.dispatcher.scheduler
    figures = None if scheduler is None else scheduler.shadow
    yield CounterMetricFamily(
        "tidegate_shadow_dispatches",
        "Requests dispatched in mode Shadow.",
        value=0 if figures is None else figures.dispatches,
    )
    yield CounterMetricFamily(
        "tidegate_shadow_other_tenant",
        "Of them, those where Tidegate would have served another tenant.",
        value=0 if figures is None else figures.other_tenant,
    )
    refused = CounterMetricFamily(
        "tidegate_shadow_refused",
        "Requests served in mode Shadow that Tidegate would have refused.",
        labels=("outcome",),
    )
    for outcome in _SHADOW_OUTCOMES:
        count = 0 if figures is None else figures.refused[outcome]
        refused.add_metric((outcome.value,), count)
    yield refused


def _places(runtime: Runtime) -> Iterator[Metric]:
    tiers = runtime.tally.tiers.values()
    preempted = CounterMetricFamily(
        "tidegate_preemptions", "Requests that gave up their place.", labels=("cause",)
    )
    for cause in PreemptionCause:
        # From here requests are preempted for one that waits and for nothing else.
        count = sum(tier.preemptions for tier in tiers) if cause is PreemptionCause.ADMISSION else 0
        preempted.add_metric((cause.value,), count)
    yield preempted
    yield CounterMetricFamily(
        "tidegate_recomputed_tokens",
        "Computed again after a preemption.",
        value=sum(tier.recomputed_tokens for tier in tiers),
    )
    blocks = GaugeMetricFamily(
        "tidegate_kv_blocks",
        "KV blocks: a pool's own, and as estimated those held by its requests, and of those the "
        "ones above its own.",
        labels=("kv_pool", "state"),
    )
    for pool in runtime.dispatcher.in_flight.places.pools():
        blocks.add_metric((pool.name, "nominal"), pool.nominal)
        blocks.add_metric((pool.name, "held"), pool.held)
        blocks.add_metric((pool.name, "borrowed"), pool.borrowed)
    yield blocks
