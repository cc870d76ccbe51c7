"""What the engine's plug-in told, as Prometheus metrics; without a plug-in there are none."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from tidegate_sidecar.plugin_steps import PREFILL_BOUNDS_TOKENS, StepFigures


def plugin_metrics(figures: StepFigures, tiers: list[str]) -> Iterator[Metric]:
    """Of one engine; ``tiers``: those of the policy in force."""
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
    prefilled = HistogramMetricFamily(
        "tidegate_prefill_tokens_per_step", "Prompt tokens of a step."
    )
    prefilled.add_metric((), _buckets(figures), figures.prefill_tokens)
    yield prefilled
    yield _blocks(figures)
    acceptance = GaugeMetricFamily(
        "tidegate_draft_acceptance_ratio",
        "Part of the recent draft tokens that were accepted; of tiers that had any.",
        labels=("tier",),
    )
    for tier in tiers:
        if (ratio := figures.acceptance(tier)) is not None:
            acceptance.add_metric((tier,), ratio)
    yield acceptance


def _buckets(figures: StepFigures) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*PREFILL_BOUNDS_TOKENS, "+Inf"), figures.prefill_counts, strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    return buckets


def _blocks(figures: StepFigures) -> Metric:
    family = GaugeMetricFamily(
        "tidegate_kv_blocks",
        "KV blocks: a pool's own, held by running requests, of those above its own, and free with "
        "content of its tiers.",
        labels=("kv_pool", "state"),
    )
    for pool in figures.pools:
        states = {
            "nominal": pool.nominal_blocks,
            "held": pool.held_blocks,
            "borrowed": max(pool.held_blocks - pool.nominal_blocks, 0),
            "cached": pool.cached_blocks,
        }
        for state, blocks in states.items():
            family.add_metric((pool.name, state), blocks)
    return family
