"""Case O20: what is applied is what is read back, and applying it again is no change.

Argo CD compares Git with the live object. A default or a canonical spelling written into a spec
would show as OutOfSync for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.crd_api import ABSENT, Api, Json, changed, example
from tidegate_operator.api.crd import KINDS

pytestmark = pytest.mark.contract


def our_objects(file: Path) -> list[Json]:
    """The objects of our kinds in a file."""
    documents = yaml.safe_load_all(file.read_text())
    return [document for document in documents if document.get("kind") in KINDS]


EXAMPLES = [
    file
    for file in sorted((Path(__file__).resolve().parents[2] / "examples").rglob("*.yaml"))
    if our_objects(file)
]

NOT_CANONICAL: dict[str, dict[str, Any]] = {
    "TenantTier": {"spec.queue.maxWait": "60s", "spec.output": {}, "spec.fairness": {}},
    "Tenant": {"spec.apiKeys": [], "spec.stop": "None"},
    "ServingPool": {
        "spec.engine.drainTimeout": "90s",
        "spec.engine.startupTimeout": "1200000ms",
        "spec.engine.resources": {
            "limits": {"nvidia.com/gpu": 2, "cpu": "1000m", "memory": "0.5Gi"},
            "requests": {"cpu": "0.5", "memory": "1024Mi"},
        },
        "spec.engine.env": [{"name": "A", "value": ""}],
        "spec.tenants": {},
        "spec.sidecar": {},
    },
}


def assert_second_apply_changes_nothing(api: Api, obj: Json) -> None:
    first = api.apply(obj, "kubectl").ok()
    assert first["spec"] == obj["spec"]
    taken = api.apply(obj, "argocd").ok()
    assert taken["spec"] == obj["spec"]
    for manager in ("argocd", "kubectl", "argocd"):
        again = api.apply(obj, manager).ok()
        assert again["metadata"]["resourceVersion"] == taken["metadata"]["resourceVersion"]
    assert taken["metadata"]["generation"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_spellings_are_kept(api: Api, namespace: str, kind: str) -> None:
    obj = changed(example(kind, f"kept-{kind.lower()}", namespace), NOT_CANONICAL[kind])
    assert_second_apply_changes_nothing(api, obj)


@pytest.mark.parametrize("file", EXAMPLES, ids=[f"{f.parent.name}/{f.name}" for f in EXAMPLES])
def test_examples_are_kept(api: Api, namespace: str, file: Path) -> None:
    for obj in our_objects(file):
        obj["metadata"]["name"] += "-kept"
        if "namespace" in obj["metadata"]:
            obj["metadata"]["namespace"] = namespace
        assert_second_apply_changes_nothing(api, obj)


def test_replicas_left_out_of_git_is_left_to_the_autoscaler(api: Api, namespace: str) -> None:
    pool = changed(example("ServingPool", "autoscaled", namespace), {"spec.replicas": ABSENT})
    assert api.apply(pool, "argocd").ok()["spec"]["replicas"] == 1
    api.merge(pool, {"spec": {"replicas": 5}}, subresource="scale").ok()
    assert api.apply(pool, "argocd").ok()["spec"]["replicas"] == 5
