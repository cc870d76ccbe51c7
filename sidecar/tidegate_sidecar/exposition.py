"""``GET /metrics``: the sidecar's figures as Prometheus text (design: prefix ``tidegate_``).

Every series exists at zero from the start, since an alert on a rate needs the zero before the first
event. Tenants are labels only where the policy in force names them, at most
:data:`MAX_TENANT_SERIES`, the rest together as ``other``; a tenant that leaves the policy takes its
series along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidegate.scheduling.contracts import LATENCY_BOUNDS_SECONDS
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.plugin_exposition import plugin_metrics, step_metrics
from tidegate_sidecar.plugin_steps import StepFigures
from tidegate_sidecar.runtime import Runtime
from tidegate_sidecar.scheduling_exposition import OTHER, scheduling_metrics
from tidegate_sidecar.tally import UNKNOWN, LatencyCounter

MAX_TENANT_SERIES = 1_000
DISPATCHED = "dispatched"
"""In the place of the outcome with which others leave the queue."""


def exposition(runtime: Runtime) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SidecarCollector(runtime))
    return generate_latest(registry)


class _SidecarCollector(Collector):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._runtime)
        yield from _service(self._runtime)
        yield from _latencies(self._runtime)
        yield from _state(self._runtime)
        yield from scheduling_metrics(self._runtime, _tenant_labels(self._runtime))
        plugin, in_force = self._runtime.plugin, self._runtime.in_force
        policy = in_force.policy if in_force else None
        yield from step_metrics(plugin.steps.figures if plugin else StepFigures(), policy)
        if plugin is not None:
            yield from plugin_metrics(plugin.steps, policy)
        yield from _reports(self._runtime)


def _tenant_labels(runtime: Runtime) -> dict[str, str]:
    """The label of each tenant: its name, or ``other`` beyond the bound."""
    names = sorted(runtime.tally.tenants)
    return {name: name if place < MAX_TENANT_SERIES else OTHER for place, name in enumerate(names)}


def _requests(runtime: Runtime) -> Iterator[Metric]:
    labels = _tenant_labels(runtime)
    counts: dict[tuple[str, str, Outcome], int] = {
        (UNKNOWN, UNKNOWN, outcome): 0 for outcome in Outcome
    }
    for outcome, count in runtime.tally.unknown.items():
        counts[UNKNOWN, UNKNOWN, outcome] = count
    for name, row in runtime.tally.tenants.items():
        for outcome in Outcome:
            key = (row.tier, labels[name], outcome)
            counts[key] = counts.get(key, 0) + row.outcomes.get(outcome, 0)
    family = CounterMetricFamily(
        "tidegate_requests",
        "Ended requests by outcome; without tier and tenant those whose key was not known.",
        labels=("tier", "tenant", "outcome"),
    )
    for (tier, tenant, outcome), count in counts.items():
        family.add_metric((tier, tenant, outcome.value), count)
    yield family


def _service(runtime: Runtime) -> Iterator[Metric]:
    queue = GaugeMetricFamily("tidegate_queue_size", "Requests waiting.", labels=("tier",))
    size = GaugeMetricFamily(
        "tidegate_queue_bytes", "Bytes of request bodies waiting.", labels=("tier",)
    )
    running = GaugeMetricFamily(
        "tidegate_requests_running", "Requests in the engine.", labels=("tier",)
    )
    tokens = CounterMetricFamily(
        "tidegate_service_tokens",
        "Prompt and output tokens served.",
        labels=("tier", "tenant"),
    )
    oldest = GaugeMetricFamily(
        "tidegate_queue_oldest_seconds",
        "How long the oldest request that waits now has waited; 0: none waits.",
        labels=("tier", "tenant"),
    )
    scheduler = runtime.dispatcher.scheduler
    if scheduler is not None:
        tenants = scheduler.tenant_snapshots(runtime.dispatcher.loop.time())
        queued_bytes = {tier.name: 0 for tier in scheduler.tier_snapshots()}
        labels = _tenant_labels(runtime)
        served: dict[tuple[str, str], int] = {}
        waited: dict[tuple[str, str], float] = {}
        for tenant in tenants:
            queued_bytes[tenant.tier] = queued_bytes.get(tenant.tier, 0) + tenant.queued_bytes
            key = (tenant.tier, labels.get(tenant.name, OTHER))
            served[key] = served.get(key, 0) + tenant.service_tokens_total
            waited[key] = max(waited.get(key, 0.0), tenant.longest_wait_seconds)
        for tier in scheduler.tier_snapshots():
            queue.add_metric((tier.name,), tier.queued)
            running.add_metric((tier.name,), tier.running)
            size.add_metric((tier.name,), queued_bytes[tier.name])
        for key, count in served.items():
            tokens.add_metric(key, count)
        for key, seconds in waited.items():
            oldest.add_metric(key, seconds)
    yield from (queue, size, running, oldest, tokens)


def _queue_durations(runtime: Runtime) -> Metric:
    family = HistogramMetricFamily(
        "tidegate_queue_duration_seconds",
        "Arrival to leaving the queue: for the engine (dispatched), or with what outcome.",
        labels=("tier", "outcome"),
    )
    for tier, row in runtime.tally.tiers.items():
        family.add_metric((tier, DISPATCHED), _buckets(row.queue), row.queue.sum)
        for outcome, counter in row.waits_ended.items():
            label = OTHER if outcome is None else outcome.value
            family.add_metric((tier, label), _buckets(counter), counter.sum)
    return family


def _latencies(runtime: Runtime) -> Iterator[Metric]:
    yield _queue_durations(runtime)
    kinds = (
        ("tidegate_request_ttft_seconds", "Arrival to first token.", "ttft"),
        ("tidegate_request_itl_seconds", "Mean gap between a request's tokens.", "inter_token"),
        ("tidegate_request_duration_seconds", "Arrival to end, of completed ones.", "duration"),
    )
    for name, text, attribute in kinds:
        family = HistogramMetricFamily(name, text, labels=("tier",))
        for tier, row in runtime.tally.tiers.items():
            counter: LatencyCounter = getattr(row, attribute)
            family.add_metric((tier,), _buckets(counter), counter.sum)
        yield family
    yield _tenants_first_tokens(runtime)


def _tenants_first_tokens(runtime: Runtime) -> Metric:
    """Who is slow; without buckets, which a thousand tenants would have fifteen times."""
    labels = _tenant_labels(runtime)
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for name, row in runtime.tally.tenants.items():
        key = row.tier, labels[name]
        count, total = sums.get(key, (0, 0.0))
        if row.ttft is not None:
            count, total = count + sum(row.ttft.counts), total + row.ttft.sum
        sums[key] = count, total
    family = SummaryMetricFamily(
        "tidegate_tenant_ttft_seconds", "Arrival to first token.", labels=("tier", "tenant")
    )
    for key, (count, total) in sums.items():
        family.add_metric(key, count, total)
    return family


def _buckets(counter: LatencyCounter) -> list[tuple[str, float]]:
    bounds = [*map(str, LATENCY_BOUNDS_SECONDS), "+Inf"]
    buckets = []
    total = 0
    for bound, count in zip(bounds, counter.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _state(runtime: Runtime) -> Iterator[Metric]:
    dispatcher = runtime.dispatcher
    gate = dispatcher.in_flight.gate
    policy = runtime.in_force
    gauges = (
        (
            "tidegate_gate_window",
            "Engine sequences that may be dispatched and not started.",
            gate.window if gate else 0,
        ),
        (
            "tidegate_gate_not_started",
            "Engine sequences dispatched and not started.",
            gate.not_started if gate else 0,
        ),
        ("tidegate_engine_ready", "The engine answers.", int(dispatcher.engine_ready)),
        ("tidegate_draining", "No new request is taken.", int(dispatcher.departure.over)),
        (
            "tidegate_policy_generation",
            "Generation of the policy in force; 0: none.",
            policy.policy.generation if policy else 0,
        ),
        (
            "tidegate_event_loop_tasks",
            "Tasks of the sidecar's event loop; what grows while no more is in hand is a leak.",
            len(asyncio.all_tasks()),
        ),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(name, text, value=value)
    yield CounterMetricFamily(
        "tidegate_policy_reload_failures",
        "Policies that were not applied.",
        value=runtime.policy_reload_failures,
    )


def _reports(runtime: Runtime) -> Iterator[Metric]:
    reports = runtime.reports
    usage = reports.usage
    yield CounterMetricFamily(
        "tidegate_usage_records",
        "Usage records written.",
        value=0 if usage is None else usage.written,
    )
    yield CounterMetricFamily(
        "tidegate_usage_records_dropped",
        "Usage records lost: the queue was full, or they could not be written.",
        value=0 if usage is None else usage.dropped_total,
    )
    ratio = GaugeMetricFamily(
        "tidegate_ttft_p99_over_baseline",
        "P99 of the time to first token over the last minute, by the median of its P99s of the "
        "last hour; 0: not known.",
        labels=("tier",),
    )
    samples = CounterMetricFamily(
        "tidegate_profile_samples",
        "Samples of the traffic taken because the tier's first tokens were slow.",
        labels=("tier",),
    )
    for tier in runtime.tally.tiers:
        ratio.add_metric((tier,), reports.baseline.ratio(tier))
        samples.add_metric((tier,), reports.profile.samples_total.get(tier, 0))
    yield from (ratio, samples)
