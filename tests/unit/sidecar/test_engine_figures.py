"""R3: an engine's metrics by all their names; what is not told is None and never 0."""

from __future__ import annotations

import pytest
from tidegate_sidecar.metrics_text import UNTOLD_SECONDS, EngineFigures, Untold, read_engine_metrics

LABELS = '{engine="0",model_name="m"}'


def kv(text: str) -> float | None:
    return read_engine_metrics(text, "m").kv_used_ratio


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        (f"vllm:kv_cache_usage_perc{LABELS} 0.5", 0.5),
        (f"vllm:gpu_cache_usage_perc{LABELS} 0.25", 0.25),
        (f"vllm:gpu_cache_usage_perc{LABELS} 0.1\nvllm:kv_cache_usage_perc{LABELS} 0.5", 0.5),
        (f"vllm:kv_cache_usage_perc{LABELS} NaN", None),
        (f"vllm:kv_cache_usage_perc{LABELS} +Inf", None),
        (f"vllm:kv_cache_usage_perc{LABELS} -1", None),
        ('vllm:kv_cache_usage_perc{model_name="other"} 0.5', None),
        ("vllm:kv_cache_usage_perc 0.5", 0.5),
        (f"vllm:kv_cache_usage_perc{LABELS} nonsense", None),
        ("vllm:kv_cache_usage_perc{ 0.5", None),
        ("", None),
        ("<html>", None),
    ],
)
def test_r3_names_and_values(text: str, ratio: float | None) -> None:
    assert kv(text) == ratio


def test_nothing_told_is_nothing_known() -> None:
    assert read_engine_metrics("other_metric 5\n", "m") == EngineFigures()


def test_engines_of_one_server_add_up() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 4\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n'
    )
    figures = read_engine_metrics(text, "m")
    assert (figures.running, figures.waiting) == (7, 0)
    assert (figures.kv_blocks, figures.kv_block_tokens) == (1000, 16)


def test_r3_what_is_not_told_is_named_as_it_is_called_now() -> None:
    text = f"vllm:num_requests_running{LABELS} 0\nvllm:gpu_cache_usage_perc{LABELS} 0.0\n"
    assert read_engine_metrics(text, "m").untold == ["vllm:num_requests_waiting"]
    assert len(read_engine_metrics(text, "other").untold) == 3


def test_r3_only_what_lasts_is_worth_a_look() -> None:
    untold = Untold()
    assert untold.lasting(1e9) is None
    untold.reading("no answer", 10.0)
    untold.reading("status 500", 9.0 + UNTOLD_SECONDS)
    assert untold.lasting(9.9 + UNTOLD_SECONDS) is None
    assert untold.lasting(10.0 + UNTOLD_SECONDS) == "status 500"
    untold.reading(None, 11.0 + UNTOLD_SECONDS)
    untold.reading("no answer", 12.0 + UNTOLD_SECONDS)
    assert untold.lasting(13.0 + UNTOLD_SECONDS) is None
