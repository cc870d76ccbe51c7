"""The rendered children of a pool, one golden file for each kind of pool.

After a change that is meant: ``UPDATE_GOLDEN=1 scripts/test unit -k golden``, then read the diff.
"""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from support.custom_resources import Json, pool
from tidegate_operator import api
from tidegate_operator.render import Children, render_children
from tidegate_operator.routing import NO_ROUTE, Route

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
            "args": [
                "--max-num-seqs=64",
                "--note=$(POD_IP)",
                "--allowed-media-domains=a.example",
            ],
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
    "plugin": pool(
        engine={"image": "vllm/vllm-openai:v0.32.0", "plugin": "Enabled"},
        prefill={"longPromptTokens": 4096},
    ),
    "embeddings": pool(model={"name": "m", "task": "Embed", "source": {"uri": "s3://bucket/m"}}),
    "placed": pool(
        model={
            "name": "m",
            "source": {"huggingFace": {"repo": "acme/tiny"}},
            "cache": {"volumeClaimTemplate": {"size": "50Gi", "storageClassName": "fast"}},
        },
        engine={
            "image": "vllm/vllm-openai:v0.32.0",
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                    ]
                },
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "minDomains": 2,
                    "matchLabelKeys": ["controller-revision-hash"],
                },
                {
                    "maxSkew": 2,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"a": "b"}},
                },
            ],
            "priorityClassName": "serving",
            "runtimeClassName": "nvidia",
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "reader",
            "podTemplate": {
                "metadata": {"labels": {"team": "x"}},
                "spec": {
                    "dnsPolicy": "Default",
                    "volumes": [{"name": "shared-memory", "emptyDir": {"sizeLimit": "16Gi"}}],
                    "containers": [
                        {"name": "engine", "livenessProbe": {"periodSeconds": 30}},
                        {"name": "logs", "image": "logs:1"},
                    ],
                },
            },
        },
    ),
    "groups": pool(
        replicas=3,
        engine={
            "image": "vllm/vllm-openai:v0.32.0",
            "parallelism": {"tensor": 2},
            "plugin": "Enabled",
        },
        engineGroups=[
            {
                "name": "chat",
                "tiers": ["t0", "t1"],
                "draft": {"method": "Eagle3", "model": "acme/chat-head", "tokens": 3},
                "share": 2,
            },
            {
                "name": "code",
                "tiers": ["t2", "t3"],
                "draft": {"method": "Ngram", "tokens": 5},
                "noDraftTiers": ["t3"],
            },
        ],
    ),
    "fallback": pool(
        replicas=3,
        engine={
            "image": "vllm/vllm-openai:v0.32.0",
            "parallelism": {"tensor": 2},
            "plugin": "Enabled",
            "nodeSelector": {"gpu": "h100"},
            "args": ["--max-num-seqs=128"],
        },
        router={},
        fallback={
            "tiers": ["t0"],
            "replicas": 2,
            "engine": {
                "image": "vllm/vllm-openai:v0.31.0",
                "parallelism": {"tensor": 1},
                "args": ["--max-num-seqs=16"],
                "plugin": "Disabled",
                "nodeSelector": {},
            },
        },
    ),
    "router": pool(
        router={"replicas": 3, "tls": {"secretRef": {"name": "chat-tls"}}},
        engine={
            "image": "vllm/vllm-openai:v0.32.0",
            "drainTimeout": "60s",
            "imagePullSecrets": [{"name": "registry"}],
        },
        engineGroups=[{"name": "chat", "tiers": ["t0"]}, {"name": "code", "tiers": ["t2"]}],
        replicas=2,
    ),
    "shared-cache": pool(
        model={
            "name": "m",
            "source": {"huggingFace": {"repo": "acme/tiny"}},
            "cache": {"persistentVolumeClaim": {"claimName": "cache"}},
        },
    ),
}


ROUTED = Route(True, "2026-01-01T00:00:00Z", settled=True)


def children(obj: Json, route: Route | None = None) -> Children:
    """As they are in the end: with a router, nobody comes past it."""
    read = api.parse(api.ServingPool, obj)
    assert isinstance(read, api.ServingPool), read
    router = read.spec.router
    final = NO_ROUTE if router is None else replace(ROUTED, tls=router.tls is not None)
    namespaces = ("tidegate-system", "monitoring")
    return render_children(read, "ghcr.io/tidegate/sidecar:0.1.0", namespaces, route=route or final)


def as_yaml(obj: Json) -> str:
    rendered = children(obj)
    made = [
        rendered.service_account,
        rendered.headless_service,
        rendered.service,
        rendered.network_policy,
        *(group.disruption_budget for group in rendered.groups),
        rendered.pod_monitor,
        *(group.service for group in rendered.groups if group.service is not None),
        *(group.stateful_set for group in rendered.groups),
        *(asdict(rendered.router).values() if rendered.router else ()),
    ]
    assert all(group.conflicts == () for group in rendered.groups)
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
    {"betweenTiers": "Weighted"},
    {"kvPools": [{"name": "k", "tiers": ["t0"], "percent": 10}]},
    {"prefill": {"budgetPercent": 20}},
    {"service": {"type": "NodePort"}},
    {"replicas": 5},
]


@pytest.mark.parametrize("change", HOT, ids=lambda change: next(iter(change)))
def test_nothing_hot_is_in_the_pod_template(change: Json) -> None:
    template = children(pool()).groups[0].stateful_set["spec"]["template"]
    assert children(pool(**change)).groups[0].stateful_set["spec"]["template"] == template


def test_chunks_of_prompts_are_the_engines_own_flag() -> None:
    made = children(pool(prefill={"chunkTokens": 512})).groups[0].stateful_set
    engine, _ = made["spec"]["template"]["spec"]["containers"]
    assert "--long-prefill-token-threshold=512" in engine["args"]


@pytest.mark.parametrize(
    ("pool_of", "args", "folder"),
    [
        ("volume", [], "/model"),
        ("image", [], "/model"),
        ("image", ["--tokenizer=other/repo"], None),
        ("image", ["--tokenizer_mode", "mistral"], None),
        ("hub", [], None),
    ],
)
def test_the_sidecar_counts_by_the_models_tokenizer_where_it_is_the_engines(
    pool_of: str, args: list[str], folder: str | None
) -> None:
    spec = json.loads(json.dumps(POOLS[pool_of]))
    spec["spec"]["engine"]["args"] = args
    pods = children(spec).groups[0].stateful_set["spec"]["template"]["spec"]
    sidecar = next(c for c in pods["containers"] if c["name"] == "sidecar")
    told = {variable["name"]: variable.get("value") for variable in sidecar["env"]}
    assert (told.get("TIDEGATE_MODEL_FOLDER") or "").startswith(folder or "")
    assert ("TIDEGATE_MODEL_FOLDER" in told) == (folder is not None)
    mounts = [mount for mount in sidecar["volumeMounts"] if mount["name"] == "model"]
    wanted = {"name": "model", "mountPath": "/model", "readOnly": True}
    assert mounts == ([wanted] if folder else [])


def test_the_grace_period_covers_pause_drain_and_exit() -> None:
    """R7: preStop + drain < terminationGracePeriodSeconds."""
    spec = children(POOLS["hub"]).groups[0].stateful_set["spec"]["template"]["spec"]
    sidecar = next(c for c in spec["containers"] if c["name"] == "sidecar")
    pause = sidecar["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] == pause + 60 + 30
    engine = next(c for c in spec["containers"] if c["name"] == "engine")
    (shutdown,) = [a for a in engine["args"] if a.startswith("--shutdown-timeout=")]
    assert int(shutdown.partition("=")[2]) < 30


def test_selectors_depend_on_the_name_alone() -> None:
    """O18: but for the cache's claims, nothing a user can change is immutable in a StatefulSet."""
    immutable = ("serviceName", "podManagementPolicy", "selector")
    plain, full = (children(obj).groups[0].stateful_set["spec"] for obj in (pool(), POOLS["hub"]))
    assert [plain[key] for key in immutable] == [full[key] for key in immutable]
    assert "volumeClaimTemplates" not in full


@pytest.mark.parametrize("kept", [None, "Retain", "Delete"])
def test_r9_retention_of_claims_is_always_said(kept: str | None) -> None:
    """R9: so that an option that is taken back is taken back."""
    template = {"size": "1Gi"} | ({"whenDeleted": kept, "whenScaled": kept} if kept else {})
    source = {"huggingFace": {"repo": "acme/tiny"}}
    model = {"name": "m", "source": source, "cache": {"volumeClaimTemplate": template}}
    retention = {"whenDeleted": kept or "Retain", "whenScaled": kept or "Retain"}
    spec = children(pool(model=model)).groups[0].stateful_set["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == retention
    plain = children(pool()).groups[0].stateful_set["spec"]
    retention = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert plain["persistentVolumeClaimRetentionPolicy"] == retention


def test_the_admin_port_is_open_to_named_namespaces_alone() -> None:
    policy = children(pool()).network_policy["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    tenants, admin = policy["ingress"]
    assert "from" not in tenants
    assert admin["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == [
        "monitoring",
        "tidegate-system",
    ]
    read = api.parse(api.ServingPool, pool())
    assert isinstance(read, api.ServingPool)
    assert render_children(read, "s:1").network_policy["spec"]["ingress"] == [tenants]


def test_ways_past_a_router_are_open_until_nobody_needs_them() -> None:
    joining, led = Route(True, waits_for="x"), Route(True, "2026-01-01T00:00:00Z")
    routers = {"tidegate.io/pool": "chat", "tidegate.io/component": "router"}
    for route, leads, open_to_all in (
        (joining, False, True),
        (led, True, True),
        (None, True, False),
    ):
        made = children(POOLS["router"], route)
        assert (made.service["spec"]["selector"] == routers) == leads
        assert [group.service is not None for group in made.groups] == [open_to_all] * 2
        tenants, admin = made.network_policy["spec"]["ingress"]
        peers = [{"podSelector": {"matchLabels": routers}}]
        assert tenants.get("from") == (None if open_to_all else peers)
        assert admin["from"][1:] == peers  # it asks how much they have to do
        assert made.router is not None
    for route, name in (
        (replace(led, tls=True), "https"),
        (led, "http"),
        (replace(joining, tls=True), "http"),
    ):
        (port,) = children(POOLS["router"], route).service["spec"]["ports"]
        assert (port["name"], port["port"], port["targetPort"]) == (name, 8000, "http")


def test_a_router_of_the_spec_changes_no_pod_of_an_engine() -> None:
    template = children(pool()).groups[0].stateful_set["spec"]["template"]
    assert children(pool(router={})).groups[0].stateful_set["spec"]["template"] == template
