"""`tidegate rules` over manifests; tests/contract has it over a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from tidegate.cli.errors import CommandError
from tidegate.cli.rules import rules

TIER = """
apiVersion: tidegate.io/v1alpha1
kind: TenantTier
metadata: {name: t0}
spec:
  allowedNamespaces: {}
  slo: {objectives: [{metric: TimeToFirstToken, target: 500ms, ratio: "99.5"}]}
---
"""
POOL = """
apiVersion: tidegate.io/v1alpha1
kind: ServingPool
metadata: {name: %s, namespace: %s}
spec: {model: {name: m, source: {uri: "s3://b/m"}}, engine: {image: i}%s}
---
"""


def run(folder: Path, text: str, *options: str) -> Result:
    (folder / "manifests.yaml").write_text(text)
    app = typer.Typer()
    app.command()(rules)
    return CliRunner().invoke(app, [str(folder), *options])


def pools(output: str) -> set[tuple[str, str]]:
    """Namespace and name of the pools in a rule file, by its records."""
    groups = yaml.safe_load(output)["groups"]
    return {
        (rule["labels"]["namespace"], rule["labels"]["tidegate_io_pool"])
        for group in groups
        for rule in group["rules"]
        if "record" in rule
    }


def test_all_pools_or_one_of_them(tmp_path: Path) -> None:
    own = ", tiers: [{name: t0, slo: {objectives: [{metric: EndToEnd, target: 9s}]}}]"
    text = TIER + POOL % ("chat", "a", "") + POOL % ("code", "b", own)
    result = run(tmp_path, text)
    assert result.exit_code == 0, result.output
    assert pools(result.stdout) == {("a", "chat"), ("b", "code")}
    assert "code-t0-EndToEnd" in result.stdout
    assert "code-t0-TimeToFirstToken" not in result.stdout, "the pool's own promise replaces it"
    for name in ("chat", "a/chat"):
        assert pools(run(tmp_path, text, "--pool", name).stdout) == {("a", "chat")}


def test_runbooks_of_ones_own(tmp_path: Path) -> None:
    result = run(tmp_path, TIER + POOL % ("chat", "a", ""), "--runbooks", "https://wiki/")
    assert "runbook_url: https://wiki/error-budget-burn.md" in result.stdout


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    promised = TIER + POOL % ("chat", "a", "")
    free = promised.replace("  slo:", "  #")
    for text, options, said in (
        (free, (), "no pool promises anything"),
        (promised, ("--pool", "x"), "no ServingPool is called 'x'"),
        (TIER, (), "no pool promises anything"),
    ):
        result = run(tmp_path, text, *options)
        assert isinstance(result.exception, CommandError)
        assert said in str(result.exception)


def test_a_pool_that_cannot_be_compiled_is_named_and_the_others_are_printed(tmp_path: Path) -> None:
    text = TIER + POOL % ("chat", "a", "") + POOL % ("code", "b", ", tiers: [{name: gone}]")
    result = run(tmp_path, text)
    assert pools(result.stdout) == {("a", "chat")}
    assert "b/code: spec.tiers[gone]: there is no such TenantTier" in result.stderr


def test_one_object_of_a_cluster_that_cannot_be_read_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the cluster's version is newer than this one."""
    text = TIER + POOL % ("chat", "a", ", later: 1") + POOL % ("code", "b", ", replicas: many")
    objects: dict[str, list[tuple[Path, object]]] = {}
    for obj in filter(None, yaml.safe_load_all(text)):
        obj["metadata"]["generation"] = 1
        objects.setdefault(obj["kind"], []).append((Path("cluster"), obj))
    monkeypatch.setattr("tidegate.cli.rules._objects", lambda name, kubeconfig: objects)
    app = typer.Typer()
    app.command()(rules)
    result = CliRunner().invoke(app, [])
    assert pools(result.stdout) == {("a", "chat")}
    assert "ServingPool b/code: spec.replicas" in result.stderr
