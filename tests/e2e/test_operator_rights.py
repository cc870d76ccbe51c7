"""Least privilege: the operator runs under the rules of manifests/ and uses each of them.

The API server's authoriser is on, so what the suite shows to work needs no other right; and its
audit log has the operator's reads too, so what no test of the suite made it use is not needed.
Here besides: what the operator does only beside a Prometheus operator, and with a policy of more
than one shard.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tidegate_operator.shards import SHARD_BYTES

from testbed.e2e_cluster import OPERATOR_USER, Cluster, Scene
from tidegate.local_cluster.cluster import LocalCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BASE = Path(__file__).resolve().parents[2] / "manifests/base"
NAMESPACE = "e2e-rights"
TIERS: dict[str, dict[str, Any]] = {
    "gold": {"slo": {"objectives": [{"metric": "TimeToFirstToken", "target": "5s", "ratio": "99"}]}}
}
MONITORING = {"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"}
GROUP_CHILDREN = ("statefulset/pool-gone", "service/pool-gone", "pdb/pool-gone")
KEYS_OF_A_TENANT = 32


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    verb: str


@pytest.fixture
def scene(cluster: Cluster) -> Iterator[Scene]:
    """A pool of two engine groups and a promise, beside the Prometheus operator's kinds."""
    groups = {"engineGroups": [{"name": "kept"}, {"name": "gone"}]}
    tenants = {"a": {"tier": "gold"}}
    scene = Scene(cluster, NAMESPACE, TIERS, tenants, replicas=2, pool_spec=groups)
    cluster.apply(*map(monitoring_kind, MONITORING))
    try:
        scene.up()
        yield scene
    finally:
        scene.down()
        kinds = [f"{plural}.monitoring.coreos.com" for plural in MONITORING]
        cluster.kubectl("delete", "crd", *kinds, "--timeout=60s")


def monitoring_kind(plural: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    kind = MONITORING[plural]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def many_tenants() -> list[dict[str, Any]]:
    """So many keys that they fill more than one shard."""
    name, bytes_of_a_key = "t" * 36, 70 + len(NAMESPACE) + 41
    count = SHARD_BYTES // (KEYS_OF_A_TENANT * bytes_of_a_key) + 2
    return [
        {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "Tenant",
            "metadata": {
                "name": f"{name}-{number:03}",
                "namespace": NAMESPACE,
                "labels": {"many": "yes"},
            },
            "spec": {
                "tierRef": {"name": f"{NAMESPACE}-gold"},
                "apiKeys": [
                    {"name": f"k{key}", "sha256": sha256(f"{number} {key}".encode()).hexdigest()}
                    for key in range(KEYS_OF_A_TENANT)
                ],
            },
        }
        for number in range(count)
    ]


def test_what_was_needed_once_is_taken_away(scene: Scene) -> None:
    """A router and a group that nobody wants any more, a rule without a promise, a shard without
    tenants."""
    cluster = scene.cluster

    def there(what: str) -> bool:
        return cluster.try_kubectl("get", what, "-n", NAMESPACE).returncode == 0

    assert all(map(there, GROUP_CHILDREN))
    cluster.until("a PrometheusRule", lambda: there("prometheusrule/pool"), 90)
    cluster.until("a PodMonitor", lambda: there("podmonitor/pool"), 30)
    scene.pool_spec |= {"observability": {"ruleLabels": {"release": "prometheus"}}}
    cluster.apply(scene.pool())

    def labelled() -> bool:
        return (
            "release" in cluster.get("prometheusrule/pool", "-n", NAMESPACE)["metadata"]["labels"]
        )

    cluster.until("the label", labelled, 30)
    labels = scene.pool_spec
    scene.pool_spec = labels | {"router": {"replicas": 1}}
    cluster.apply(scene.pool())
    cluster.until("the router's PodMonitor", lambda: there("podmonitor/pool-router"), 60)
    scene.pool_spec = labels
    cluster.apply(scene.pool())
    cluster.until("no router", lambda: not there("deployment/pool-router"), 60)
    assert not there("podmonitor/pool-router")
    cluster.apply(*many_tenants())
    cluster.until("a second shard", lambda: there("secret/pool-policy-1"), 60)
    cluster.kubectl("delete", "tenants.tidegate.io", "-n", NAMESPACE, "-l", "many=yes")
    cluster.until("one shard", lambda: not there("secret/pool-policy-1"), 60)
    scene.tiers, scene.replicas = {"gold": {}}, 1
    scene.pool_spec |= {"engineGroups": [{"name": "kept"}]}
    cluster.apply(*scene.objects())
    cluster.until("no PrometheusRule", lambda: not there("prometheusrule/pool"), 60)
    cluster.until("nothing of the group", lambda: not any(map(there, GROUP_CHILDREN)), 120)


def test_no_right_of_the_operator_is_unused(
    local_cluster: LocalCluster, request: pytest.FixtureRequest
) -> None:
    """Runs last, as conftest.py has it: over all that the suite made the operator do."""
    if not dict(request.node.user_properties)["whole_suite"] or request.config.option.keyword:
        pytest.skip("says something of the whole suite only")
    used: set[Right] = set()
    # An API server that was just started refuses what it has not yet read the roles of, so what
    # it said last of a request is its answer.
    last: dict[tuple[Right, str, str], tuple[str, str]] = {}
    for event in audited(local_cluster.control_plane.audit_log):
        decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
        if decision is None:  # the API server was stopped before it had decided
            continue
        ref = event["objectRef"]
        for right in rights_of(event):
            of = (right, ref.get("namespace", ""), ref.get("name", ""))
            last[of] = max(last.get(of, ("", "")), (event["stageTimestamp"], decision))
            if decision == "allow":
                used.add(right)
    refused = {of[0] for of, (_, decision) in last.items() if decision != "allow"}
    assert not refused, listed(refused)
    granted = {right for role in operator_roles() for right in rights_in(role)}
    unused = granted - used
    assert not unused, f"nothing used these, so take them out of manifests/: {listed(unused)}"


def listed(rights: set[Right]) -> str:
    return ", ".join(f"{r.verb} {r.resource}.{r.group}" for r in sorted(rights))


def operator_roles() -> Iterator[dict[str, Any]]:
    """What is bound to the operator's account."""
    roles = yaml.safe_load_all((BASE / "cluster_roles.yaml").read_text())
    return (role for role in roles if role["kind"] in ("ClusterRole", "Role"))


def rights_in(role: dict[str, Any]) -> Iterator[Right]:
    for rule in role["rules"]:
        yield from itertools.starmap(
            Right, itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
        )


def audited(log: Path) -> Iterator[dict[str, Any]]:
    """The operator's requests, of the log and of what was rotated away from it."""
    for file in log.parent.glob("audit*.log"):
        with file.open() as lines:
            for line in lines:
                if line.endswith("\n") and OPERATOR_USER in line:
                    event = json.loads(line)
                    if event["user"]["username"] == OPERATOR_USER and "objectRef" in event:
                        yield event


def rights_of(event: dict[str, Any]) -> Iterator[Right]:
    """What a request needed: a patch that made its object needed to be allowed to create it."""
    ref = event["objectRef"]
    resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
    group = ref.get("apiGroup", "")
    yield Right(group, resource, event["verb"])
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
        yield Right(group, resource, "create")
