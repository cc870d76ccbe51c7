"""vLLM's Prometheus metrics, from the model's counters and a few histograms.

Names, labels (``model_name``, ``engine``) and buckets are vLLM's (vllm/v1/metrics/loggers.py).
Gauges are read when scraped. Histograms are plain arrays, so that observing one value for a whole
batch of decodes costs one call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidegate.simulator.engine_model import Engine, EngineRequest

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts by bucket; ``count`` observes a value several times at once."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name, self.help_text, self._bounds = name, help_text, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def family(self, labels: dict[str, str]) -> Metric:
        """The metric as prometheus_client wants it."""
        family = HistogramMetricFamily(self.name, self.help_text, labels=list(labels))
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class EngineMetrics(Collector):
    """Collector over one engine."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._labels = {"model_name": model_name, "engine": "0"}
        self.ended = dict.fromkeys(_REASONS, 0)
        self.lag_seconds = 0.0
        self.ttft = Histogram("vllm:time_to_first_token_seconds", "Time to first token.", _TTFT)
        self.token_gap = Histogram(
            "vllm:inter_token_latency_seconds", "Time between tokens.", _TOKEN_GAP
        )
        self.queue_time = Histogram(
            "vllm:request_queue_time_seconds", "Time spent in WAITING phase.", _LATENCY
        )
        self.end_to_end = Histogram(
            "vllm:e2e_request_latency_seconds", "End to end request latency.", _LATENCY
        )
        self.step_tokens = Histogram(
            "vllm:iteration_tokens_total", "Tokens per engine step.", _STEP_TOKENS
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe_end(self, request: EngineRequest, reason: str, at: float) -> None:
        """A request ended; ``reason`` stop, length or abort."""
        self.ended[reason] += 1
        if reason == "abort":
            return
        self.end_to_end.observe(at - request.arrived_at)
        if request.first_scheduled_at is not None:
            self.queue_time.observe(request.first_scheduled_at - request.arrived_at)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        engine, totals, config = self._engine, self._engine.totals, self._engine.config
        gauges = {
            "vllm:num_requests_running": float(len(engine.running)),
            "vllm:num_requests_waiting": float(len(engine.waiting)),
            "vllm:kv_cache_usage_perc": engine.kv.held_blocks / engine.kv.total_blocks,
            "tidegate_fake_engine_lag_seconds": self.lag_seconds,
        }
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(name, name, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
        counters = {
            "vllm:prompt_tokens": totals.prompt_tokens,
            "vllm:generation_tokens": totals.generation_tokens,
            "vllm:num_preemptions": totals.preemptions,
            "vllm:prefix_cache_queries": totals.prefix_queries_tokens,
            "vllm:prefix_cache_hits": totals.prefix_hits_tokens,
            "tidegate_fake_engine_steps": totals.steps,
        }
        for name, count in counters.items():
            counter = CounterMetricFamily(name, name, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), float(count))
            yield counter
        success = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in self.ended.items():
            success.add_metric([*self._labels.values(), reason], float(count))
        yield success
        info = {
            "block_size": str(config.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "num_gpu_blocks": str(config.num_gpu_blocks),
            "engine": "0",
        }
        cache = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(info),
        )
        cache.add_metric(list(info.values()), 1.0)
        yield cache
        for histogram in (
            self.ttft, self.token_gap, self.queue_time, self.end_to_end, self.step_tokens,
        ):  # fmt: skip
            yield histogram.family(self._labels)
