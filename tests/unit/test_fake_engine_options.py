"""The fake engine's command line: vLLM's flags, its own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.simulator.engine_model import CALIBRATIONS, SchedulingPolicy
from tidegate.simulator.fake_engine import parse_options
from tidegate.simulator.fake_engine.options import IGNORED_SWITCHES, IGNORED_WITH_VALUE


def test_a_deployment_s_command_line() -> None:
    options = parse_options(
        [
            "serve", "meta-llama/Llama-3.1-70B", "--served-model-name", "chat", "chat-alias",
            "--uds", "/run/tidegate/engine.sock", "--max-model-len", "16384",
            "--tensor-parallel-size", "8", "--gpu-memory-utilization=0.92",
            "--max-num-seqs", "64", "--max_num_batched_tokens", "4096",
            "--num-gpu-blocks-override", "2048", "--block-size", "32",
            "--scheduling-policy", "priority", "--no-enable-prefix-caching",
            "--shutdown-timeout", "90", "--enable-log-requests", "--dtype", "bfloat16",
            "--long-prefill-token-threshold", "512", "--long-prefill-token-threshold-adaptive",
            "--watermark", "0.05", "--no-scheduler-reserve-full-isl",
        ],
        {},
    )  # fmt: skip
    assert options.model == "meta-llama/Llama-3.1-70B"
    assert options.served_names == ("chat", "chat-alias")
    assert options.uds == "/run/tidegate/engine.sock"
    assert options.max_model_len == 16_384
    assert options.shutdown_timeout_seconds == 90
    assert not options.embed
    engine = options.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (64, 4096)
    assert (engine.num_gpu_blocks, engine.block_size) == (2048, 32)
    assert engine.scheduling_policy is SchedulingPolicy.PRIORITY
    assert engine.long_prefill_token_threshold == 512
    assert engine.long_prefill_token_threshold_adaptive
    assert engine.watermark_blocks == 102
    assert not engine.scheduler_reserve_full_isl
    assert not engine.enable_prefix_caching


def test_defaults_are_vllm_s() -> None:
    options = parse_options(["serve", "m"], {})
    assert options.served_names == ("m",)
    assert (options.port, options.uds) == (8000, None)
    assert options.shutdown_timeout_seconds == 0
    assert options.engine.scheduling_policy is SchedulingPolicy.FCFS
    assert options.engine.enable_prefix_caching
    assert options.engine.step_time == CALIBRATIONS["test"].step_time


def test_a_pooling_model() -> None:
    assert parse_options(["serve", "m", "--runner=pooling"], {}).embed


@pytest.mark.parametrize("flag", IGNORED_WITH_VALUE)
def test_ignored_flags_take_their_value(flag: str) -> None:
    assert parse_options(["serve", "m", flag, "x"], {}).model == "m"


@pytest.mark.parametrize("flag", IGNORED_SWITCHES)
def test_ignored_switches_take_none(flag: str) -> None:
    assert parse_options(["serve", flag, "m"], {}).model == "m"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "m", "--no-such-flag"], "--no-such-flag"),
        (["serve", "m", "--max-num"], "--max-num"),
        (["serve", "m", "--task", "embed"], "--task"),  # vLLM 0.32 has it no more
        (["serve", "m", "--no-enable-chunked-prefill"], "--no-enable-chunked-prefill"),
        (["serve", "m", "--shutdown-timeout", "0.5"], "invalid int value"),
        (["serve"], "model is missing"),
        ([], "command"),
        (["serve", "m", "--max-model-len", "99999999"], "what the KV cache holds, 262144 tokens"),
        (["serve", "m", "--max-num-seqs", "0"], "max_num_seqs must be at least 1"),
        (["serve", "m", "--max-num-batched-tokens", "8"], "must be at least max_num_seqs"),
        (["serve", "m", "--scheduling-policy", "lifo"], "lifo"),
        (["serve", "m", "--fake-time-scale", "0"], "time scale must be positive"),
        (["serve", "m", "--fake-output-median", "0"], "median_tokens"),
        (["serve", "m", "--shutdown-timeout", "-1"], "--shutdown-timeout must not be negative"),
        (["serve", "m", "--block-size", "0"], "block_size must be at least 1"),
    ],
)
def test_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        parse_options(arguments, {})
    assert refusal.value.code == 2
    assert said in capsys.readouterr().err


def test_the_environment_gives_the_fake_s_own_flags_and_the_command_line_wins() -> None:
    environment = {
        "TIDEGATE_FAKE_TIME_SCALE": "0.5",
        "TIDEGATE_FAKE_SEED": "7",
        "TIDEGATE_FAKE_REQUEST_LOG": "/tmp/log.jsonl",
        "TIDEGATE_FAKE_LOG_STEPS": "true",
        "TIDEGATE_FAKE_IGNORE_EOS": "0",
        "PATH": "/bin",
    }
    options = parse_options(["serve", "m", "--fake-seed", "9"], environment)
    assert options.engine.step_time == CALIBRATIONS["test"].step_time.scaled(0.5)
    assert options.seed == 9
    assert options.request_log == Path("/tmp/log.jsonl")
    assert options.log_steps
    assert not options.always_ignore_eos


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIDEGATE_FAKE_NONSENSE", "1"), ("TIDEGATE_FAKE_LOG_STEPS", "maybe")],
)
def test_a_bad_environment_is_refused(name: str, value: str) -> None:
    with pytest.raises(SystemExit):
        parse_options(["serve", "m"], {name: value})
