"""`tidegate rules` and `tidegate top` over a cluster: its objects, read with kubectl."""

from __future__ import annotations

import pytest
import typer
import yaml
from support.crd_api import Api, example
from typer.testing import CliRunner

from tidegate.cli.rules import rules
from tidegate.cli.top import top
from tidegate.local_cluster.control_plane import ControlPlane

pytestmark = pytest.mark.contract


def test_the_rules_of_what_is_in_the_cluster(
    api: Api, crds: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(crds.binaries.directory), prepend=":")
    tier = f"rules-{namespace}"
    api.create(example("TenantTier", tier)).ok()
    pool = example("ServingPool", "chat", namespace)
    pool["spec"] = {key: pool["spec"][key] for key in ("model", "engine")}
    pool["spec"]["tiers"] = [{"name": tier}]
    try:
        api.create(pool).ok()
        app = typer.Typer()
        app.command()(rules)
        where = ["--kubeconfig", str(crds.kubeconfig), "--pool", f"{namespace}/chat"]
        result = CliRunner().invoke(app, where)
        assert result.exit_code == 0, result.output
        groups = yaml.safe_load(result.stdout)["groups"]
        labels = groups[0]["rules"][0]["labels"]
        assert (labels["namespace"], labels["tier"]) == (namespace, tier)
        app = typer.Typer()
        app.command()(top)
        where = ["--kubeconfig", str(crds.kubeconfig), "--once", "--namespace", namespace]
        result = CliRunner().invoke(app, where)
        assert result.exit_code == 0, result.output
        assert f"{namespace}/chat  Unknown" in result.stdout
    finally:
        api.request("DELETE", f"/apis/tidegate.io/v1alpha1/tenanttiers/{tier}")
