"""The Argo CD component, built by kubectl's kustomize on top of an Argo CD installation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tidegate.local_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]


def test_health_scripts_are_merged_into_argocd_cm(api_server: ControlPlane, tmp_path: Path) -> None:
    installed = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm"},
        "data": {"url": "https://argocd.example.com"},
    }
    (tmp_path / "install.yaml").write_text(yaml.safe_dump(installed))
    kustomization = {
        "namespace": "argocd",
        "resources": ["install.yaml"],
        "components": [os.path.relpath(ROOT / "manifests/argocd", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    built = api_server.kubectl("kustomize", str(tmp_path))
    assert built.returncode == 0, built.stderr
    config = yaml.safe_load(built.stdout)
    assert config["metadata"] == {"name": "argocd-cm", "namespace": "argocd"}
    data = config["data"]
    assert data.pop("url") == "https://argocd.example.com"
    scripts = ROOT / "manifests/argocd/resource_customizations/tidegate.io"
    assert data == {
        f"resource.customizations.health.tidegate.io_{kind}": (
            scripts / kind / "health.lua"
        ).read_text()
        for kind in ("ServingPool", "Tenant", "TenantTier")
    }
