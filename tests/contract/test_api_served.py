"""How the API server serves our kinds: what it keeps, seeds, prunes, scales, shows and explains."""

from __future__ import annotations

from typing import Any

import pytest
from support.crd_api import ABSENT, Api, Json, changed, example
from tidegate_operator import api as models
from tidegate_operator.api.crd import KINDS, object_schema
from tidegate_operator.api.schema import Schema, walk

from tidegate.local_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.contract

MODELS = {
    "TenantTier": models.TenantTier,
    "Tenant": models.Tenant,
    "ServingPool": models.ServingPool,
}
NOW = "2026-03-01T10:00:00Z"
READY: Json = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "All is well",
    "lastTransitionTime": NOW,
    "observedGeneration": 1,
}
LOAD: Json = {
    "queued": 414,
    "running": 16,
    "ttft": {"p50Ms": 180, "p99Ms": 742},
    "queueWait": {"p50Ms": 20, "p99Ms": 310},
    "oldestWaitMs": 4100,
    "refused": {"queue_full": 12},
}
SLO_MET: Json = READY | {"type": "SLOMet", "status": "False", "reason": "ObjectiveMissed"}
OBJECTIVE: Json = {
    "metric": "EndToEnd",
    "requests": 80,
    "keptPercent": 95,
    "refused": 1,
    "late": 3,
    "targetMs": 2000,
    "promisedPercent": "99.5",
    "attainedPercent": "98.7",
    "budgetLeftPercent": -160,
    "measured": "Window",
    "pool": "models/chat",
}
TIER: Json = {
    **LOAD,
    "endToEnd": {"p50Ms": 900, "p99Ms": 4100},
    "interToken": {"p50Ms": 20, "p99Ms": 61},
    "sharePercent": 75,
    "busyPercent": 60,
    "pricePer1000Calls": "0.42",
    "kv": {"heldBlocks": 800, "quotaBlocks": 1000, "borrowedBlocks": 12},
    "draftAcceptancePercent": 71,
    "preemptions": 3,
    "vftSkewFlagged": 2,
    "objectives": [OBJECTIVE],
}
STATUS: dict[str, Json] = {
    "TenantTier": {
        "observedGeneration": 1,
        "conditions": [READY, SLO_MET],
        **TIER,
        "tenants": 3,
        "pools": ["models/chat"],
        "worstPool": "models/chat",
    },
    "Tenant": {
        "observedGeneration": 1,
        "conditions": [READY],
        **LOAD,
        "pools": ["models/chat"],
        "sharePercent": 33,
        "refusedSummary": "12 queue_full",
        "lastRefusal": {"reason": "rate_limited", "time": NOW, "limit": "burst"},
        "limits": [
            {
                "name": "burst",
                "per": "Minute",
                "usedPercent": 104,
                "requests": 100,
                "requestsUsed": 104,
                "tokens": 9000,
                "tokensUsed": 800,
            }
        ],
        "limitSummary": "burst 104%",
        "addresses": ["http://chat.models.svc:8000"],
    },
    "ServingPool": {
        "observedGeneration": 1,
        "conditions": [READY, SLO_MET],
        "desiredReplicas": 2,
        "replicas": 2,
        "readyReplicas": 1,
        "selector": "tidegate.io/pool=chat",
        "addresses": ["http://chat.models.svc:8000"],
        "engineGroups": [
            {
                "name": "chat",
                "desired": 2,
                "replicas": 2,
                "readyReplicas": 1,
                "address": "http://chat-chat.models.svc:8000",
            }
        ],
        "scaling": {
            "desired": 2,
            "history": [
                {
                    "time": NOW,
                    "group": "main",
                    "fromReplicas": 1,
                    "toReplicas": 2,
                    "reason": "QueueWait",
                    "message": "tier t0 waits",
                }
            ],
        },
        "policyGeneration": 7,
        "queued": 414,
        "running": 16,
        "tierSummary": "t0 4/12 t3 410/4",
        "tiers": [{"name": "t0", **TIER}],
        "tenants": [
            {
                "name": "customers/acme",
                "tier": "t0",
                "queued": 4,
                "running": 12,
                "ttft": {"p50Ms": 180, "p99Ms": 742},
                "oldestWaitMs": 4100,
                "sharePercent": 75,
            }
        ],
        "refusedTenants": [
            {
                "name": "customers/acme",
                "tier": "t0",
                "refused": 42,
                "why": "40 rate_limited 2 queue_full",
                "limit": "burst",
            }
        ],
    },
}
"""Every status field of each kind; a test holds it to that."""

SHOWN = {
    "TenantTier": {
        "Ready": "True",
        "SLO-Met": "False",
        "Priority": 1000,
        "Reserved-%": 60,
        "Tenants": 3,
        "Queued": 414,
        "Running": 16,
        "TTFT-P99-ms": 742,
    },
    "Tenant": {
        "Ready": "True",
        "Tier": "t0",
        "Weight": 3,
        "Share-%": 33,
        "Queued": 414,
        "Running": 16,
        "TTFT-P99-ms": 742,
        "Refused-So-Far": "12 queue_full",
    },
    "ServingPool": {
        "Ready": "True",
        "SLO-Met": "False",
        "Desired": 2,
        "Serving": 1,
        "Model": "qwen3-8b",
        "Queued": 414,
        "Running": 16,
        "Queued/Running": "t0 4/12 t3 410/4",
    },
}

each_kind = pytest.mark.parametrize("kind", KINDS)


def leaves(value: object, path: str = "") -> set[str]:
    """Paths of all fields of an object, lists as their entries."""
    if isinstance(value, dict):
        return {path} | {
            leaf
            for key, item in value.items()
            for leaf in leaves(item, f"{path}.{key}" if path else str(key))
        }
    if isinstance(value, list):
        return {path} | {leaf for item in value for leaf in leaves(item, f"{path}[]")}
    return {path}


@each_kind
def test_crd_is_structural_and_established(crds: ControlPlane, kind: str) -> None:
    listed = Api(crds).request(
        "GET",
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{KINDS[kind].plural}.tidegate.io",
    )
    conditions = {c["type"]: c["status"] for c in listed.ok()["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@each_kind
def test_new_object_is_seeded_as_pending(api: Api, namespace: str, kind: str) -> None:
    created = api.create(example(kind, f"seeded-{kind.lower()}", namespace)).ok()
    seeded = [(c["type"], c["status"], c["reason"]) for c in created["status"]["conditions"]]
    assert seeded == [("Accepted", "Unknown", "Pending"), ("Ready", "Unknown", "Pending")]
    assert api.read(created)["status"] == created["status"]
    shown, _ = api.table(created)
    assert (shown["Ready"], shown["Reason"]) == ("Unknown", "Pending")


@each_kind
def test_spec_is_kept_as_applied_and_unknown_fields_are_pruned(
    api: Api, namespace: str, kind: str
) -> None:
    wanted = example(kind, f"pruned-{kind.lower()}", namespace)
    sent = changed(wanted, {"spec.later": {"a": 1}, "status": {"tenants": 7}, "extra": True})
    created = api.create(sent).ok()
    assert created["spec"] == wanted["spec"]
    assert "extra" not in created
    assert "tenants" not in created["status"]
    read = models.parse(MODELS[kind], created)
    assert isinstance(read, MODELS[kind])
    assert read.metadata.generation == 1


def test_replicas_is_the_only_thing_written_into_a_spec(api: Api, namespace: str) -> None:
    for kind in KINDS:
        wanted = example(kind, f"sparse-{kind.lower()}", namespace)
        if kind == "TenantTier":
            wanted["spec"] = {"allowedNamespaces": {}}
        elif kind == "Tenant":
            wanted["spec"] = {"tierRef": {"name": "t0"}}
        else:
            wanted["spec"] = {
                "model": {"name": "m", "source": {"uri": "s3://m"}},
                "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            }
        expected = wanted["spec"] | ({"replicas": 1} if kind == "ServingPool" else {})
        assert api.create(wanted).ok()["spec"] == expected


@each_kind
def test_status_sample_has_every_field(kind: str) -> None:
    schema: Schema = object_schema(KINDS[kind])["properties"]["status"]
    declared = {path.replace(".*", ".queue_full") for path, _ in walk(schema)}
    assert leaves(STATUS[kind]) == declared


@each_kind
def test_o16_every_status_field_survives(api: Api, namespace: str, kind: str) -> None:
    obj = api.create(example(kind, f"status-{kind.lower()}", namespace)).ok()
    written = api.merge(obj, {"status": STATUS[kind]}, subresource="status").ok()
    assert written["status"] == STATUS[kind]
    assert written["metadata"]["generation"] == 1
    read = models.parse(MODELS[kind], api.read(obj))
    assert isinstance(read, MODELS[kind])
    again = read.status.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == STATUS[kind]


@each_kind
def test_status_and_spec_are_written_apart(api: Api, namespace: str, kind: str) -> None:
    obj = api.create(example(kind, f"apart-{kind.lower()}", namespace)).ok()
    spec_by_status = api.merge(obj, {"spec": {"weight": 9, "priority": 9}}, subresource="status")
    assert spec_by_status.ok()["spec"] == obj["spec"]
    status_by_spec = api.merge(obj, {"status": {"observedGeneration": 99}})
    assert status_by_spec.ok()["status"] == obj["status"]
    assert status_by_spec.ok()["metadata"]["generation"] == 1


@each_kind
def test_same_status_again_is_no_write(api: Api, namespace: str, kind: str) -> None:
    obj = api.create(example(kind, f"again-{kind.lower()}", namespace)).ok()
    first = api.merge(obj, {"status": STATUS[kind]}, subresource="status").ok()
    second = api.merge(obj, {"status": STATUS[kind]}, subresource="status").ok()
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conditions": [READY, READY]}, "Duplicate value"),
        ({"conditions": [{**READY, "status": "Maybe"}]}, 'supported values: "True", "False"'),
        ({"conditions": [{**READY, "reason": "not one word"}]}, "reason in body should match"),
        ({"ttft": {"p99Ms": 1.5}}, "p99Ms in body must be of type int"),
        ({"sharePercent": 101}, "less than or equal to 100"),
        ({"queued": -1}, "greater than or equal to 0"),
    ],
)
def test_status_is_validated_too(api: Api, changes: Json, said: str) -> None:
    obj = example("Tenant", "checked-status")
    api.create(obj)
    answer = api.merge(obj, {"status": changes}, subresource="status")
    assert answer.status == 422
    assert said in answer.message


@each_kind
def test_columns_show_what_a_person_on_call_needs(api: Api, namespace: str, kind: str) -> None:
    obj = api.create(example(kind, f"shown-{kind.lower()}", namespace)).ok()
    api.merge(obj, {"status": STATUS[kind]}, subresource="status").ok()
    shown, wide = api.table(obj)
    assert shown.pop("Name") == f"shown-{kind.lower()}"
    assert shown.pop("Age")
    assert shown == SHOWN[kind] | {"Reason": "Ready"}
    assert wide["Message"] == "All is well"
    if kind == "ServingPool":
        assert wide["Address"] == "http://chat.models.svc:8000"


def test_scale(api: Api, crds: ControlPlane, namespace: str) -> None:
    pool = changed(example("ServingPool", "scaled", namespace), {"spec.replicas": ABSENT})
    api.create(pool).ok()
    scale = api.request("GET", api.path(pool, subresource="scale")).ok()
    assert scale["spec"] == {"replicas": 1}
    api.merge(pool, {"status": STATUS["ServingPool"]}, subresource="status").ok()
    resized = crds.kubectl("scale", "spool/scaled", "--replicas=3", "-n", namespace)
    assert resized.returncode == 0, resized.stderr
    scale = api.request("GET", api.path(pool, subresource="scale")).ok()
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "tidegate.io/pool=chat"}
    assert api.read(pool)["spec"]["replicas"] == 3
    to_nothing = api.merge(pool, {"spec": {"replicas": 0}}, subresource="scale").ok()
    assert to_nothing["spec"].get("replicas", 0) == 0
    assert api.read(pool)["spec"]["replicas"] == 0
    beyond = api.merge(pool, {"spec": {"replicas": 2000}}, subresource="scale")
    assert beyond.status == 422


def test_category_and_short_names(api: Api, crds: ControlPlane, namespace: str) -> None:
    for kind in KINDS:
        api.create(example(kind, f"named-{namespace}", namespace)).ok()
    listed = crds.kubectl("get", "tidegate", "-n", namespace, "-o", "name")
    assert listed.returncode == 0, listed.stderr
    for kind in KINDS.values():
        full = f"{kind.name.lower()}.tidegate.io/named-{namespace}"
        assert full in listed.stdout.splitlines()
        short = crds.kubectl("get", kind.short_name, f"named-{namespace}", "-n", namespace)
        assert short.returncode == 0, short.stderr


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("ttier", "class of customers"),
        ("ttier.spec.reservedPercent", "Zero: nothing is reserved"),
        ("ttier.spec.allowedNamespaces", "Empty: ({}) all namespaces"),
        ("tgt.spec.apiKeys.sha256", "tidegate keys new"),
        ("spool.spec.model.source", "exactly one of its fields"),
        ("spool.spec.tiers", "Unset: those that Tenants of the namespaces served"),
        ("spool.spec.engine.drainTimeout", "Unset: 2m"),
        ("spool.status.tiers.queueWait", "Arrival to dispatch"),
    ],
)
def test_kubectl_explain_says_what_unset_zero_and_empty_mean(
    crds: ControlPlane, field: str, said: str
) -> None:
    explained = crds.kubectl("explain", field)
    assert explained.returncode == 0, explained.stderr
    assert said in " ".join(explained.stdout.split())


@each_kind
def test_kubectl_explain_knows_every_field(crds: ControlPlane, kind: str) -> None:
    explained = crds.kubectl("explain", KINDS[kind].short_name, "--recursive")
    assert explained.returncode == 0, explained.stderr
    words = set(explained.stdout.split())
    schema: dict[str, Any] = object_schema(KINDS[kind])
    for _, node in walk(schema):
        assert set(node.get("properties", {})) <= words
