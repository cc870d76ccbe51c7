"""What the operator renders is what vLLM's own parser reads."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import parse_vllm_arguments
from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.render import render_children

from testbed.real_vllm import ENVIRONMENT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

HUB = {"huggingFace": {"repo": "acme/chat", "revision": "v1"}}
POOLS: dict[str, tuple[Json, dict[str, Any]]] = {
    "hub": (
        pool(
            model={"name": "chat-8b", "source": HUB, "maxModelLen": 32768},
            engine={
                "image": "vllm/vllm-openai:v0.32.0",
                "parallelism": {"tensor": 2},
                "args": ["--max-num-seqs=64", "--max_num_batched_tokens", "8k"],
            },
        ),
        {
            "model_tag": "acme/chat",
            "revision": "v1",
            "served_model_name": ["chat-8b"],
            "max_model_len": 32768,
            "tensor_parallel_size": 2,
            "scheduling_policy": "priority",
            "runner": "auto",
            "max_num_seqs": 64,
            "max_num_batched_tokens": 8000,
        },
    ),
    "plugin": (
        pool(engine={"image": "vllm/vllm-openai:v0.32.0", "plugin": "Enabled"}),
        {
            "scheduler_cls": "tidegate.vllm_plugin.TidegateAsyncScheduler",
            "async_scheduling": True,
            "additional_config": {
                "tidegate": {
                    "policy": "/run/tidegate/policy.json",
                    "statistics": "/run/tidegate/steps.sock",
                }
            },
        },
    ),
    "plugin, one step at a time": (
        pool(
            engine={
                "image": "vllm/vllm-openai:v0.32.0",
                "plugin": "Enabled",
            },
            engineGroups=[{"name": "code", "draft": {"method": "Ngram", "tokens": 3}}],
        ),
        {
            "scheduler_cls": "tidegate.vllm_plugin.TidegateScheduler",
            "async_scheduling": False,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    ),
    "a head that drafts, prompts in chunks": (
        pool(
            engine={"image": "vllm/vllm-openai:v0.32.0", "plugin": "Enabled"},
            prefill={"chunkTokens": 2048},
            engineGroups=[
                {"name": "chat", "draft": {"method": "Eagle3", "model": "a/head", "tokens": 2}}
            ],
        ),
        {
            "scheduler_cls": "tidegate.vllm_plugin.TidegateAsyncScheduler",
            "long_prefill_token_threshold": 2048,
            "speculative_config": {
                "method": "eagle3",
                "model": "a/head",
                "num_speculative_tokens": 2,
            },
        },
    ),
    "embeddings": (
        pool(model={"name": "e", "task": "Embed", "source": {"uri": "s3://bucket/e"}}),
        {
            "model_tag": "s3://bucket/e",
            "served_model_name": ["e"],
            "max_model_len": None,
            "tensor_parallel_size": 1,
            "runner": "pooling",
        },
    ),
}


def engine_arguments(resource: Json) -> list[str]:
    read = api.parse(api.ServingPool, resource)
    assert isinstance(read, api.ServingPool), read
    stateful_set = render_children(read, "registry/sidecar:1").groups[0].stateful_set
    containers = stateful_set["spec"]["template"]["spec"]["containers"]
    arguments: list[str] = next(c for c in containers if c["name"] == "engine")["args"]
    return arguments


@pytest.fixture(scope="module")
def parsed(python: Path) -> dict[str, dict[str, Any]]:
    """vLLM takes seconds to import, so all pools go through in one process."""
    done = subprocess.run(
        [python, parse_vllm_arguments.__file__],
        input=json.dumps([engine_arguments(resource) for resource, _ in POOLS.values()]),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(POOLS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", POOLS)
def test_vllm_reads_what_the_operator_renders(parsed: dict[str, dict[str, Any]], name: str) -> None:
    expected = POOLS[name][1]
    assert {key: parsed[name][key] for key in expected} == expected


@pytest.mark.parametrize("name", POOLS)
def test_the_socket_is_short_enough_and_the_shutdown_bounded(
    parsed: dict[str, dict[str, Any]], name: str
) -> None:
    assert len(parsed[name]["uds"]) < 100
    assert parsed[name]["shutdown_timeout"] > 0
