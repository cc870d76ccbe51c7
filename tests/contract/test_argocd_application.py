"""The Argo CD Application of examples/argocd: its waves, and that a sync anew changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.local_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]
WAVE = "argocd.argoproj.io/sync-wave"
MANAGER = "argocd-controller"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def synced(api_server: ControlPlane) -> list[Json]:
    """What the Application's source makes, in the order of its waves."""
    (application,) = yaml.safe_load_all((ROOT / "examples/argocd/application.yaml").read_text())
    spec = application["spec"]
    assert "ServerSideApply=true" in spec["syncPolicy"]["syncOptions"]
    built = api_server.kubectl("kustomize", str(ROOT / spec["source"]["path"]))
    assert built.returncode == 0, built.stderr
    return sorted(yaml.safe_load_all(built.stdout), key=wave_of)


def wave_of(obj: Json) -> int:
    return int((obj["metadata"].get("annotations") or {}).get(WAVE, 0))


def test_every_wave_has_what_it_needs_in_those_before(synced: list[Json]) -> None:
    """Tenants and pools share the last: each waits for the other to be Ready."""
    waves: dict[str, set[int]] = {}
    for obj in synced:
        waves.setdefault(obj["kind"], set()).add(wave_of(obj))
    order = ("CustomResourceDefinition", "Deployment", "TenantTier", "ServingPool")
    places = [waves[kind] for kind in order]
    assert all(len(place) == 1 for place in places)
    assert places == sorted(places, key=min)
    assert len({min(place) for place in places}) == len(order)
    assert waves["Tenant"] == waves["ServingPool"] == {wave_of(synced[-1])}
    rights = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    assert {wave for kind in rights for wave in waves[kind]} == waves["Deployment"]
    namespaces = {o["metadata"]["name"]: wave_of(o) for o in synced if o["kind"] == "Namespace"}
    for obj in synced:
        if (namespace := obj["metadata"].get("namespace")) is not None:
            assert namespaces[namespace] <= wave_of(obj)


def test_a_second_sync_is_a_no_op(api_server: ControlPlane, synced: list[Json]) -> None:
    """What the CRDs seed a status with is read from the first moment and stored by the first write
    after it, which the operator's is; here nobody writes, so that is left out of the comparison."""
    first = apply_in_waves(api_server, synced)
    assert first.keys() == {key(obj) for obj in synced}
    second = apply_in_waves(api_server, synced)
    assert {name: made[1] for name, made in second.items()} == {
        name: made[1] for name, made in first.items()
    }
    seeded = ("TenantTier ", "Tenant ", "ServingPool ")
    touched = {name for name in first if second[name] != first[name]}
    assert all(name.startswith(seeded) for name in touched)
    assert apply_in_waves(api_server, synced) == second


def apply_in_waves(api_server: ControlPlane, objects: list[Json]) -> dict[str, tuple[str, int]]:
    """As Argo CD does; resourceVersion and generation of each object."""
    versions = {}
    for wave in sorted({wave_of(obj) for obj in objects}):
        mine = [obj for obj in objects if wave_of(obj) == wave]
        done = api_server.kubectl(
            "apply",
            "--server-side",
            f"--field-manager={MANAGER}",
            "-o=json",
            "-f=-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": mine}),
        )
        assert done.returncode == 0, done.stderr
        applied = json.loads(done.stdout)
        for obj in applied["items"] if applied["kind"] == "List" else [applied]:
            metadata = obj["metadata"]
            versions[key(obj)] = metadata["resourceVersion"], metadata.get("generation", 0)
        crds = [o["metadata"]["name"] for o in mine if o["kind"] == "CustomResourceDefinition"]
        if crds:
            names = [f"crd/{name}" for name in crds]
            waited = api_server.kubectl("wait", "--for=condition=Established", *names)
            assert waited.returncode == 0, waited.stderr
            # Argo CD begins the next wave once they are Healthy, when their status stands.
            got = api_server.kubectl("get", *names, "-o=json")
            for obj in json.loads(got.stdout)["items"]:
                metadata = obj["metadata"]
                versions[key(obj)] = metadata["resourceVersion"], metadata["generation"]
    return versions


def key(obj: Json) -> str:
    metadata = obj["metadata"]
    return f"{obj['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
