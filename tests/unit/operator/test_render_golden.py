"""The rendered children of a pool, one golden file for each kind of pool.

After a change that is meant: ``UPDATE_GOLDEN=1 scripts/test unit -k golden``, then read the diff.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import yaml
from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.render import Children, render_children

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GPU = {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}}
POOLS = {
    "hub": pool(
        model={
            "name": "qwen3-8b",
            "source": {
                "huggingFace": {
                    "repo": "Qwen/Qwen3-8B",
                    "revision": "main",
                    "tokenSecretRef": {"name": "hf", "key": "token"},
                }
            },
            "maxModelLen": 32768,
        },
        engine={
            "image": "vllm/vllm-openai:v0.32.0",
            "parallelism": {"tensor": 2},
            "resources": GPU,
            "args": ["--max-num-seqs=64", "--note=$(POD_IP)"],
            "env": [
                {"name": "HF_HUB_OFFLINE", "value": "1"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "HOME", "value": "/cache/home"},
            ],
            "startupTimeout": "20m",
            "drainTimeout": "60s",
        },
        replicas=3,
        sidecar={"resources": {"requests": {"cpu": "1000m"}}},
        service={"type": "LoadBalancer", "annotations": {"a/b": "c"}, "loadBalancerClass": "x/y"},
    ),
    "volume": pool(
        model={
            "name": "m",
            "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "qwen/"}},
        },
        engine={"image": "vllm/vllm-openai:v0.32.0", "parallelism": {"tensor": 4}},
    ),
    "image": pool(model={"name": "m", "source": {"image": {"reference": "registry/model:1"}}}),
    "embeddings": pool(model={"name": "m", "task": "Embed", "source": {"uri": "s3://bucket/m"}}),
}


def children(obj: Json) -> Children:
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    return render_children(read, "ghcr.io/tidegate/sidecar:0.1.0")


def as_yaml(obj: Json) -> str:
    made = dataclasses.astuple(children(obj))
    return yaml.safe_dump_all(json.loads(json.dumps(made)), sort_keys=False)


@pytest.mark.parametrize("name", POOLS)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(as_yaml(POOLS[name]))
    assert path.read_text() == as_yaml(POOLS[name])


HOT = [
    {"tiers": [{"name": "t0", "reservedPercent": 10}]},
    {"tenants": {"namespaceSelector": {}}},
    {"schedulingMode": "FirstComeFirstServed"},
    {"betweenTiers": "Strict"},
    {"service": {"type": "NodePort"}},
    {"replicas": 5},
]


@pytest.mark.parametrize("change", HOT, ids=lambda change: next(iter(change)))
def test_nothing_hot_is_in_the_pod_template(change: Json) -> None:
    template = children(pool()).stateful_set["spec"]["template"]
    assert children(pool(**change)).stateful_set["spec"]["template"] == template


def test_the_grace_period_covers_pause_drain_and_exit() -> None:
    """R7: preStop + drain < terminationGracePeriodSeconds."""
    spec = children(POOLS["hub"]).stateful_set["spec"]["template"]["spec"]
    sidecar = next(c for c in spec["containers"] if c["name"] == "sidecar")
    pause = sidecar["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] == pause + 60 + 30
    engine = next(c for c in spec["containers"] if c["name"] == "engine")
    (shutdown,) = [a for a in engine["args"] if a.startswith("--shutdown-timeout=")]
    assert int(shutdown.partition("=")[2]) < 30


def test_selectors_depend_on_the_name_alone() -> None:
    """O18: nothing a user can change reaches an immutable field of the StatefulSet."""
    immutable = ("serviceName", "podManagementPolicy", "selector")
    plain, full = children(pool()).stateful_set["spec"], children(POOLS["hub"]).stateful_set["spec"]
    assert [plain[key] for key in immutable] == [full[key] for key in immutable]
    assert "volumeClaimTemplates" not in full
