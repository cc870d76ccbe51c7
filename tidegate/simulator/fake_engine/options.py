"""Command line: ``vllm serve``'s of vLLM 0.32, as far as a deployment uses it, and the fake's own.

Flags that shape scheduling, limits or serving work as in vLLM. Those in ``IGNORED_*`` are accepted
and have no effect: they choose how a real engine loads or computes, while how fast the fake is
comes from its calibration alone. Any other flag is an error that names it, as is one that vLLM
0.32 no longer has. The fake's own flags start with ``--fake-``; each may come from the environment
as ``TIDEGATE_FAKE_<NAME>`` instead (the flag wins).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.simulator.engine_model import CALIBRATIONS, EngineConfig, SchedulingPolicy
from tidegate.simulator.engine_model.engine import NULL_BLOCKS
from tidegate.simulator.fake_engine.text import OutputLengths

IGNORED_WITH_VALUE = (
    "--additional-config", "--attention-backend", "--chat-template",
    "--chat-template-content-format", "--code-revision", "--compilation-config", "--config-format",
    "--convert", "--cpu-offload-gb", "--data-parallel-size",
    "--disable-access-log-for-endpoints", "--distributed-executor-backend", "--download-dir",
    "--dtype", "--generation-config", "--gpu-memory-utilization", "--hf-overrides", "--hf-token",
    "--kv-cache-dtype", "--kv-cache-memory-bytes", "--load-format", "--logprobs-mode",
    "--max-log-len", "--max-logprobs", "--model-impl", "--model-loader-extra-config",
    "--optimization-level", "--otlp-traces-endpoint", "--override-generation-config",
    "--performance-mode", "--pipeline-parallel-size", "--pooler-config",
    "--prefix-caching-hash-algo", "--quantization", "--reasoning-parser", "--revision",
    "--root-path", "--scheduler-cls", "--seed", "--speculative-config", "--tensor-parallel-size",
    "--tokenizer",
    "--tokenizer-mode", "--tokenizer-revision", "--tool-call-parser", "--uvicorn-log-level",
)  # fmt: skip
IGNORED_SWITCHES = (
    "--async-scheduling", "--disable-custom-all-reduce", "--disable-fastapi-docs",
    "--disable-log-stats", "--disable-uvicorn-access-log", "--enable-auto-tool-choice",
    "--enable-chunked-prefill", "--enable-log-requests", "--enable-server-load-tracking",
    "--enforce-eager", "--no-async-scheduling", "--no-enable-log-requests", "--trust-remote-code",
)  # fmt: skip
_SHORT_NAMES = {"--tensor-parallel-size": "-tp", "--quantization": "-q"}
_DEFAULT_MAX_MODEL_LEN = 32_768
_ENVIRONMENT = "TIDEGATE_FAKE_"


@dataclass(frozen=True, slots=True)
class Options:
    """A validated command line. ``uds`` set: host and port are ignored."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    uds: str | None
    embed: bool
    max_model_len: int
    shutdown_timeout_seconds: float
    engine: EngineConfig
    output_lengths: OutputLengths
    always_ignore_eos: bool
    embedding_dimensions: int
    seed: int
    startup_delay_seconds: float
    request_log: Path | None
    log_steps: bool


def _add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model_tag", nargs="?", metavar="MODEL", help="model name or path")
    add("--model", help="the same, as a flag")
    add("--served-model-name", nargs="+", metavar="NAME", help="names that clients may use")
    add("--host", default="0.0.0.0")
    add("--port", type=int, default=8000)
    add("--uds", metavar="PATH", help="Unix socket to listen on; host and port are then ignored")
    add("--max-model-len", type=int, metavar="TOKENS")
    add("--max-num-seqs", type=int, default=256)
    add("--max-num-batched-tokens", type=int, default=8192)
    add("--long-prefill-token-threshold", type=int, default=0)
    switch = argparse.BooleanOptionalAction
    add("--long-prefill-token-threshold-adaptive", action=switch, default=False)
    add("--scheduler-reserve-full-isl", action=switch, default=True)
    add("--watermark", type=float, default=0.0, metavar="FRACTION")
    add("--num-gpu-blocks-override", type=int, metavar="BLOCKS")
    add("--block-size", type=int, default=16)
    add("--scheduling-policy", choices=[p.value for p in SchedulingPolicy], default="fcfs")
    add("--enable-prefix-caching", action=switch, default=True)
    add("--shutdown-timeout", type=int, default=0, metavar="SECONDS")
    add("--runner", choices=["auto", "generate", "pooling"], default="auto")
    ignored = parser.add_argument_group("without effect here")
    for flag in IGNORED_WITH_VALUE:
        names = [flag, _SHORT_NAMES[flag]] if flag in _SHORT_NAMES else [flag]
        ignored.add_argument(*names, help=argparse.SUPPRESS)
    ignored.add_argument("--allowed-media-domains", nargs="+", help=argparse.SUPPRESS)
    for flag in IGNORED_SWITCHES:
        ignored.add_argument(flag, action="store_true", help=argparse.SUPPRESS)


def _add_fake_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the fake's own (environment: TIDEGATE_FAKE_<NAME>)")
    add = group.add_argument
    add("--fake-calibration", choices=sorted(CALIBRATIONS), default="test")
    add("--fake-time-scale", type=float, default=1.0, help="multiplies every step's time")
    add("--fake-startup-delay", type=float, default=0.0, metavar="SECONDS")
    add("--fake-output-median", type=float, default=128.0, metavar="TOKENS")
    add("--fake-output-sigma", type=float, default=0.7)
    add("--fake-ignore-eos", action="store_true", help="always generate max_tokens")
    add("--fake-embedding-dimensions", type=int, default=64)
    add("--fake-seed", type=int, default=0)
    add("--fake-request-log", type=Path, metavar="FILE|FOLDER")
    add("--fake-log-steps", action="store_true", help="log each step too")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``serve``."""
    parser = argparse.ArgumentParser(
        prog="fake_engine", description="A fake vLLM engine.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve", help="serve a model that does not exist", allow_abbrev=False
    )
    _add_vllm_flags(serve)
    _add_fake_flags(serve)
    return parser


def _environment_flags(environment: Mapping[str, str]) -> list[str]:
    """``TIDEGATE_FAKE_X_Y=v`` as ``--fake-x-y v``; switches take 1/true and 0/false."""
    flags: list[str] = []
    for name, value in sorted(environment.items()):
        if not name.startswith(_ENVIRONMENT):
            continue
        flag = "--fake-" + name.removeprefix(_ENVIRONMENT).lower().replace("_", "-")
        if flag in ("--fake-ignore-eos", "--fake-log-steps"):
            if value.lower() in ("1", "true"):
                flags.append(flag)
            elif value.lower() not in ("", "0", "false"):
                raise SystemExit(f"{name} must be 1, true, 0 or false, got {value!r}")
        else:
            flags.append(f"{flag}={value}")
    return flags


def _dashed(argument: str) -> str:
    """vLLM takes underscores for dashes in the names of flags."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def parse_options(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Options:
    """Options from ``serve MODEL ...``. SystemExit 2 with a message: bad usage."""
    parser = build_parser()
    extra = _environment_flags(os.environ if environment is None else environment)
    # The environment comes first, so that a flag given twice takes the command line's value.
    merged = [*arguments[:1], *extra, *arguments[1:]] if arguments[:1] == ["serve"] else arguments
    namespace = parser.parse_args([_dashed(argument) for argument in merged])
    try:
        return _options(namespace)
    except ValueError as error:
        parser.error(str(error))


def _options(args: argparse.Namespace) -> Options:
    model = args.model_tag or args.model
    if not model:
        raise ValueError("the model is missing: serve MODEL")
    calibration = CALIBRATIONS[args.fake_calibration]
    blocks = args.num_gpu_blocks_override
    if blocks is None:
        blocks = calibration.kv_capacity_tokens // max(args.block_size, 1) + NULL_BLOCKS
    config = EngineConfig(
        step_time=calibration.step_time.scaled(args.fake_time_scale),
        num_gpu_blocks=blocks,
        block_size=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        scheduling_policy=SchedulingPolicy(args.scheduling_policy),
        enable_prefix_caching=args.enable_prefix_caching,
        long_prefill_token_threshold_adaptive=args.long_prefill_token_threshold_adaptive,
        scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
        watermark=args.watermark,
    )
    max_model_len = args.max_model_len
    if max_model_len is None:
        max_model_len = min(_DEFAULT_MAX_MODEL_LEN, config.kv_capacity_tokens)
    if not 1 <= max_model_len <= config.kv_capacity_tokens:
        raise ValueError(
            f"--max-model-len {max_model_len} must be between 1 and what the KV cache holds, "
            f"{config.kv_capacity_tokens} tokens: decrease it or raise --num-gpu-blocks-override"
        )
    for name in ("shutdown_timeout", "fake_startup_delay"):
        if getattr(args, name) < 0:
            raise ValueError(f"--{name.replace('_', '-')} must not be negative")
    if args.fake_embedding_dimensions < 1:
        raise ValueError("--fake-embedding-dimensions must be at least 1")
    return Options(
        model=model,
        served_names=tuple(args.served_model_name or [model]),
        host=args.host,
        port=args.port,
        uds=args.uds,
        embed=args.runner == "pooling",
        max_model_len=max_model_len,
        shutdown_timeout_seconds=args.shutdown_timeout,
        engine=config,
        output_lengths=OutputLengths(args.fake_output_median, args.fake_output_sigma),
        always_ignore_eos=args.fake_ignore_eos,
        embedding_dimensions=args.fake_embedding_dimensions,
        seed=args.fake_seed,
        startup_delay_seconds=args.fake_startup_delay,
        request_log=args.fake_request_log,
        log_steps=args.fake_log_steps,
    )
