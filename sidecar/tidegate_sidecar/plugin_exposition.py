"""What the engine's plug-in told, as Prometheus metrics; without a plug-in there are only those
which dashboards and rules may ask of any sidecar, at zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from tidegate.scheduling.contracts import Policy, StepPool
from tidegate.scheduling.step_policy import kv_pool_names
from tidegate_sidecar.plugin_steps import PREFILL_BOUNDS_TOKENS, PluginSteps, StepFigures


def plugin_metrics(steps: PluginSteps, policy: Policy | None) -> Iterator[Metric]:
    """Of one engine; ``policy``: the one in force, None before there is any."""
    figures = steps.figures
    counters = (
        ("tidegate_engine_steps", "Steps that the plug-in told of.", figures.steps),
        ("tidegate_engine_steps_lost", "Steps of which nothing came.", figures.lost),
        (
            "tidegate_engine_steps_unplanned",
            "Steps told of that were vLLM's own.",
            figures.unplanned,
        ),
        (
            "tidegate_engine_plugin_failures",
            "Hooks of the plug-in that failed; each step of one was vLLM's own.",
            figures.failures,
        ),
        (
            "tidegate_engine_plan_seconds",
            "Time that planning took, in the engine.",
            figures.plan_seconds,
        ),
        (
            "tidegate_recomputed_tokens",
            "Computed again after a preemption.",
            figures.recomputed_tokens,
        ),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value=value)
    preempted = CounterMetricFamily(
        "tidegate_preemptions", "Requests that gave up their place.", labels=("cause",)
    )
    for cause, count in figures.preemptions.items():
        preempted.add_metric((cause.value,), count)
    yield preempted
    yield _blocks(steps.pools(), kv_pool_names(policy) if policy else ())


def step_metrics(figures: StepFigures, policy: Policy | None) -> Iterator[Metric]:
    """What only a plug-in tells; of one engine, whether it has one or not."""
    prefilled = HistogramMetricFamily(
        "tidegate_prefill_tokens_per_step", "Prompt tokens of a step, as the plug-in tells."
    )
    prefilled.add_metric((), _buckets(figures), figures.prefill_tokens)
    yield prefilled
    acceptance = GaugeMetricFamily(
        "tidegate_draft_acceptance_ratio",
        "Part of the recent draft tokens that were accepted, as the plug-in tells; 0 too where "
        "there were none.",
        labels=("tier",),
    )
    for tier in policy.tiers if policy else ():
        acceptance.add_metric((tier.name,), figures.acceptance(tier.name) or 0.0)
    yield acceptance


def _buckets(figures: StepFigures) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*PREFILL_BOUNDS_TOKENS, "+Inf"), figures.prefill_counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    return buckets


def _blocks(told: Sequence[StepPool], names: Sequence[str]) -> Metric:
    """Those of the policy that no step told of yet are there, at zero."""
    family = GaugeMetricFamily(
        "tidegate_kv_blocks",
        "KV blocks: a pool's own, held by running requests, of those above its own, and free with "
        "content of its tiers.",
        labels=("kv_pool", "state"),
    )
    known = {pool.name for pool in told}
    for pool in (*told, *(StepPool(name, 0, 0, 0) for name in names if name not in known)):
        states = {
            "nominal": pool.nominal_blocks,
            "held": pool.held_blocks,
            "borrowed": max(pool.held_blocks - pool.nominal_blocks, 0),
            "cached": pool.cached_blocks,
        }
        for state, blocks in states.items():
            family.add_metric((pool.name, state), blocks)
    return family
