"""The plug-in's code and policy, as the engine finds them; tags in a body."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tidegate_sidecar.engine_tags import tagged
from tidegate_sidecar.plugin_files import copy_plugin, write_policy

from tidegate.scheduling.contracts import Policy, TenantPolicy, decode
from tidegate.scheduling.request import Request
from tidegate.vllm_plugin.policy_file import PolicyFile
from tidegate.vllm_plugin.request_tags import read_tags

POLICY = {
    "version": 1,
    "generation": 7,
    "pool": "a/b",
    "model": {"name": "m"},
    "tiers": [{"name": "t0", "draft_tokens": 2}],
    "tenants": [{"name": "shop/acme", "tier": "t0", "weight": 3}],
    "kv_pools": [{"name": "p", "tiers": ["t0"], "percent": 40}],
    "prefill": {"long_prompt_tokens": 4096},
}


def test_the_copy_is_all_that_the_plug_in_needs(tmp_path: Path) -> None:
    """Imported by an interpreter that has nothing but the standard library."""
    for _ in range(2):  # an init container may run twice
        copy_plugin(tmp_path)
    modules = sorted(
        f"tidegate.{path.relative_to(tmp_path / 'tidegate').with_suffix('').as_posix()}".replace(
            "/", "."
        )
        for path in tmp_path.rglob("*.py")
        if path.name not in ("__init__.py", "schedulers.py", "waiting_queue.py")
    )  # those two import vLLM
    assert "tidegate.vllm_plugin.steering" in modules
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    subprocess.run(
        [sys.executable, "-S", "-c", code, *modules],
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        check=True,
        timeout=60,
    )


def test_the_policy_reaches_the_plug_in_without_the_tenants(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policy(path, decode(Policy, POLICY))
    assert "acme" not in path.read_text()
    read = PolicyFile(path).changed(0.0)
    assert read is not None
    assert (read.generation, read.tiers[0].draft_tokens) == (7, 2)
    assert (read.kv_pools[0].percent, read.prefill.long_prompt_tokens) == (40, 4096)
    assert list(tmp_path.iterdir()) == [path]


def test_tags_are_what_the_plug_in_reads() -> None:
    request = Request("r", "shop/acme", 100, 800, sequences=4)
    request.sequence, request.expected_output_tokens = 41, 402
    tenant = TenantPolicy("shop/acme", "t0", weight=3)
    body = json.loads(tagged(b'{"model": "m", "n": 4 }', request, tenant))
    tags = read_tags(body.pop("vllm_xargs"))
    assert body == {"model": "m", "n": 4}
    assert tags is not None
    assert (tags.tier, tags.sequence, tags.weight, tags.expected_output_tokens) == (
        "t0", 41, 3, 101,
    )  # fmt: skip
    assert len(tags.tenant) == 16
    assert "acme" not in tags.tenant
