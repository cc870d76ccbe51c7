"""What `tidegate up` applies: the checkout's folders, or those that the wheel brings."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tidegate.local_cluster import deploy
from tidegate.local_cluster.deploy import Source, find_source
from tidegate.local_cluster.errors import LocalClusterError

ROOT = Path(__file__).parents[3]


def _unpacked_wheel(site: Path) -> None:
    """Lays out a wheel's further files as pyproject.toml says."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in included.items():
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, site / target)


def _files(kustomization: Path) -> set[Path]:
    """All files that a kustomization leads to, itself among them."""
    found = {kustomization}
    for name in yaml.safe_load(kustomization.read_text())["resources"]:
        resource = kustomization.parent / name
        found |= _files(resource / "kustomization.yaml") if resource.is_dir() else {resource}
    return found


def test_a_checkout_applies_its_own_folders() -> None:
    assert find_source() == Source(ROOT)


def test_an_installed_package_applies_the_same_as_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deploy, "__file__", str(tmp_path / "tidegate/local_cluster/deploy.py"))
    with pytest.raises(LocalClusterError, match="neither a checkout"):
        find_source()
    _unpacked_wheel(tmp_path)
    installed = find_source()
    for here, there in (
        (Source(ROOT).crds, installed.crds),
        (Source(ROOT).manifests, installed.manifests),
        (Source(ROOT).quickstart, installed.quickstart),
    ):
        files = _files(there / "kustomization.yaml")
        assert {f.relative_to(there) for f in files} == {
            f.relative_to(here) for f in _files(here / "kustomization.yaml")
        }
        assert all(f.read_text() == (here / f.relative_to(there)).read_text() for f in files)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ([], ""),
        (["error: Apply failed with 1 conflict: conflict with \"me\": .spec.weight", "Please"],
         'conflict with "me": .spec.weight'),
        (["error: Apply failed with 1 conflict: conflict with \"me\": .spec.weight",
          "Error from server (Forbidden): no"], None),
        (["error: no such host"], None),
    ],
)  # fmt: skip
def test_what_others_changed_of_the_examples_is_kept_and_said(
    monkeypatch: pytest.MonkeyPatch, said: list[str], kept: str | None
) -> None:
    monkeypatch.setattr(deploy.time, "sleep", lambda seconds: None)

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = 1 if said else 0
        return subprocess.CompletedProcess(["kubectl", "x", *arguments], code, "", "\n".join(said))

    if kept is None:
        with pytest.raises(LocalClusterError):
            deploy._apply_example(kubectl, ROOT)
    else:
        assert deploy._apply_example(kubectl, ROOT) == kept
