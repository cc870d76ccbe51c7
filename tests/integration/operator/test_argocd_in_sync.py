"""GitOps: nothing that the operator writes turns what Argo CD synced OutOfSync.

Argo CD with server-side apply compares an object with what a dry run of its apply would make of it,
so that is done here, once the operator has written all that it has to say.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operator_cluster import ROOT, OperatorCluster

pytestmark = pytest.mark.integration

MANAGER = "argocd-controller"
SOURCE = ROOT / "examples/argocd"

Json = dict[str, Any]


async def kubectl(
    cluster: OperatorCluster, *arguments: str, objects: list[Json] | None = None
) -> Any:
    stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}) if objects else None
    done = await asyncio.to_thread(cluster.plane.kubectl, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_was_synced_stays_in_sync(cluster: OperatorCluster) -> None:
    source = await kubectl(cluster, "kustomize", str(Path(SOURCE)))
    ours = [
        obj
        for obj in yaml.safe_load_all(source)
        if obj["kind"] in ("TenantTier", "Tenant", "ServingPool")
        or (obj["kind"], obj["metadata"]["name"]) == ("Namespace", "quickstart")
    ]
    apply = ("apply", "--server-side", f"--field-manager={MANAGER}", "-o=json", "-f=-")
    await kubectl(cluster, *apply, objects=ours)
    pools = [obj["metadata"]["name"] for obj in ours if obj["kind"] == "ServingPool"]
    tenants = [obj["metadata"]["name"] for obj in ours if obj["kind"] == "Tenant"]
    try:
        async with cluster.operator(), cluster.pods("quickstart"):
            for kind, names in (("ServingPool", pools), ("Tenant", tenants)):
                for name in names:
                    await cluster.condition_becomes(kind, name, "quickstart", "Ready", "True")
            await cluster.quiet()
            get = ("get", "-o=json", "--show-managed-fields", "-f=-")
            live = json.loads(await kubectl(cluster, *get, objects=ours))["items"]
            # Without force: a field that the operator had taken over would be a conflict.
            predicted = json.loads(await kubectl(cluster, *apply, "--dry-run=server", objects=ours))
            assert [settled(obj) for obj in predicted["items"]] == [settled(obj) for obj in live]
            again = json.loads(await kubectl(cluster, *apply, objects=ours))["items"]
            assert [version(obj) for obj in again] == [version(obj) for obj in live]
            for obj in live:
                managers = {entry["manager"] for entry in obj["metadata"]["managedFields"]}
                assert MANAGER in managers
    finally:
        await kubectl(cluster, "delete", "--wait", "--timeout=60s", "-f=-", objects=ours)


def version(obj: Json) -> tuple[str, str]:
    return obj["metadata"]["name"], obj["metadata"]["resourceVersion"]


def settled(obj: Json) -> Json:
    """What Argo CD compares: all but who wrote what when."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    return obj | {"metadata": metadata}
