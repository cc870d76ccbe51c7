"""Everything under examples/ is accepted by a real API server, applied as its comments say."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from tidegate.local_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2] / "examples"
KUSTOMIZATIONS = sorted(path.parent for path in ROOT.rglob("kustomization.yaml"))
FOLDERS = [str(folder.relative_to(ROOT)) for folder in KUSTOMIZATIONS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_applied_and_again_unchanged(crds: ControlPlane, folder: str) -> None:
    for _ in range(2):
        applied = crds.kubectl("apply", "--server-side", "-k", str(ROOT / folder))
        assert applied.returncode == 0, applied.stderr
        assert applied.stderr == ""
    different = crds.kubectl("diff", "--server-side", "-k", str(ROOT / folder))
    assert different.returncode == 0, different.stdout + different.stderr


def test_every_file_belongs_to_a_folder_that_is_applied() -> None:
    named = {
        folder / resource
        for folder in KUSTOMIZATIONS
        for resource in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    }
    kustomizations = {folder / "kustomization.yaml" for folder in KUSTOMIZATIONS}
    manifests = {path for path in ROOT.rglob("*.yaml") if "ServingPool" in path.read_text()}
    assert manifests <= named | kustomizations
    assert all(path.exists() for path in named)


def test_demo_keys_in_comments_are_those_of_the_hashes() -> None:
    text = (ROOT / "quickstart" / "tenants.yaml").read_text()
    pairs = re.findall(r"sha256: (\S+) # (\S+)$", text, re.M)
    assert len(pairs) == len(list(yaml.safe_load_all(text)))
    for digest, key in pairs:
        assert key.startswith("demo-")
        assert hashlib.sha256(key.encode()).hexdigest() == digest
