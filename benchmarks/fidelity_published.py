"""The engine model on GPUs nobody here has: beside the throughput that NVIDIA publishes for them.

Llama 3.3 70B in FP8 on 2 H100, requests of one shape queued all at once, output tokens a second
(NVIDIA/TensorRT-LLM, docs/source/performance/perf-overview.md @ 00f3768; by default 2,048 sequences
and 8,192 tokens a step). The model runs the calibration `h100_70b_fp8_tp2`, which was made from
hardware figures and not from this table, under vLLM's rules. So an error is that of the constants
and of two engines' difference together (TensorRT-LLM by default reserves a request's whole output
and never evicts). As many requests as published, or as have 1.5 million output tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from report import Aim, Figure, figure

from tidegate.simulator.engine_model import (
    CALIBRATIONS,
    Calibration,
    Engine,
    EngineConfig,
    EngineRequest,
)

WITHIN = Aim("<=", 25)
CALIBRATION = "h100_70b_fp8_tp2"
_BLOCK_TOKENS = 32
_MOST_OUTPUT_TOKENS = 1_500_000
_SAMPLE_OUTPUT_TOKENS = 300_000

PUBLISHED: dict[tuple[int, int], tuple[int, float]] = {
    (128, 128): (30_000, 6_378),
    (128, 2048): (3_000, 6_651),
    (128, 4096): (1_500, 4_199),
    (500, 2000): (3_000, 5_222),
    (1000, 1000): (3_000, 4_205),
    (1000, 2000): (1_500, 4_146),
    (2048, 128): (3_000, 762),
    (2048, 2048): (1_500, 3_082),
    (5000, 500): (1_500, 898),
    (20000, 2000): (1_000, 437),
}
"""Prompt and output tokens: requests, output tokens a second of both GPUs."""
_SAMPLE = ((128, 2048), (1000, 1000), (2048, 128))


def published_figures() -> list[Figure]:
    """An error a shape; how far each constant moves the throughput stands with the median."""
    calibration = CALIBRATIONS[CALIBRATION]
    figures: list[Figure] = []
    errors: list[float] = []
    for (prompt, output), (requests, published) in PUBLISHED.items():
        count = min(requests, _MOST_OUTPUT_TOKENS // output)
        modelled = tokens_per_second(calibration, prompt, output, count)
        errors.append(100 * abs(modelled / published - 1))
        figures.append(
            figure(
                f"2 H100 in FP8, {prompt}/{output}: error of the throughput", errors[-1], "%",
                WITHIN, f"published {published:,.0f}, model {modelled:,.0f} tokens/s",
            )
        )  # fmt: skip
    why = f"throughput with one constant at 0.8 | 1.2: {_moved(calibration)}"
    figures.append(
        figure("2 H100 in FP8: median error", statistics.median(errors), "%", WITHIN, why)
    )
    return figures


def _moved(calibration: Calibration) -> str:
    plain = _sample(calibration)
    moved: dict[str, list[str]] = {}
    for name, _, varied in calibration.variations():
        change = statistics.median(a / b for a, b in zip(_sample(varied), plain, strict=True)) - 1
        moved.setdefault(name, []).append(f"{100 * change:+.0f}")
    return ", ".join(f"{name} {' | '.join(both)}%" for name, both in moved.items())


def _sample(calibration: Calibration) -> Sequence[float]:
    return [
        tokens_per_second(calibration, prompt, output, _SAMPLE_OUTPUT_TOKENS // output)
        for prompt, output in _SAMPLE
    ]


def tokens_per_second(
    calibration: Calibration, prompt_tokens: int, output_tokens: int, requests: int
) -> float:
    """Output tokens a second of that many requests of one shape, all queued at the start."""
    engine = Engine(
        EngineConfig(
            step_time=calibration.step_time,
            num_gpu_blocks=calibration.kv_capacity_tokens // _BLOCK_TOKENS,
            block_size=_BLOCK_TOKENS,
            max_num_seqs=2048,
            max_num_batched_tokens=8192,
            enable_prefix_caching=False,
        )
    )
    for number in range(requests):
        engine.add(EngineRequest(str(number), prompt_tokens, output_tokens))
    now = 0.0
    while engine.has_work:
        now = engine.step(now).ends_at
    return requests * output_tokens / now
