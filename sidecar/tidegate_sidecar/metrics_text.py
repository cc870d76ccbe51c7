"""What a vLLM engine tells of itself at ``/metrics``: Prometheus text into figures.

Names changed between vLLM versions; the aliases known are read, in order. A missing, non-finite or
foreign series (another model's) is None and never zero: a reader that takes "unknown" for "idle"
floods the engine. What is not told for :data:`UNTOLD_SECONDS` is worth a person's look
(:class:`Untold`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
CACHE_CONFIG = ("vllm:cache_config_info",)
_WANTED = frozenset(RUNNING + WAITING + KV_USED + CACHE_CONFIG)
UNTOLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One scrape; None: not told."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    kv_blocks: int | None = None
    kv_block_tokens: int | None = None

    @property
    def untold(self) -> list[str]:
        """The series that the gate goes by and that are not told, by their present names."""
        told = {RUNNING[0]: self.running, WAITING[0]: self.waiting, KV_USED[0]: self.kv_used_ratio}
        return [name for name, value in told.items() if value is None]


class Untold:
    """What the engine's metrics do not tell, and whether that lasts. Times are given."""

    def __init__(self) -> None:
        self.what: str | None = None
        """Of the last reading; unset: it told all, or there is none."""
        self._since = 0.0

    def reading(self, what: str | None, now: float) -> None:
        """A reading did not tell this; None: it told all, or there is no engine to ask."""
        if self.what is None:
            self._since = now
        self.what = what

    def lasting(self, now: float) -> str | None:
        """What was not told for :data:`UNTOLD_SECONDS`, in the words of the last reading."""
        return self.what if now - self._since >= UNTOLD_SECONDS else None


def read_engine_metrics(text: str, model: str) -> EngineFigures:
    """The figures of the engine(s) that serve ``model``."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _samples(text):
        if labels.get("model_name", model) == model and math.isfinite(value) and value >= 0:
            samples.setdefault(name, []).append((labels, value))

    def first(names: tuple[str, ...]) -> list[tuple[dict[str, str], float]]:
        return next((samples[name] for name in names if name in samples), [])

    running, waiting, kv = first(RUNNING), first(WAITING), first(KV_USED)
    config = first(CACHE_CONFIG)[-1][0] if first(CACHE_CONFIG) else {}
    return EngineFigures(
        running=int(sum(value for _, value in running)) if running else None,
        waiting=int(sum(value for _, value in waiting)) if waiting else None,
        kv_used_ratio=max(value for _, value in kv) if kv else None,
        kv_blocks=_positive(config.get("num_gpu_blocks")),
        kv_block_tokens=_positive(config.get("block_size")),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    # only the lines wanted are parsed: an engine exports hundreds of histogram buckets
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in _WANTED:
            continue
        try:
            families = list(text_string_to_metric_families(line + "\n"))
        except ValueError:
            continue
        for family in families:
            for sample in family.samples:
                yield name, sample.labels, sample.value


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None
