"""`tidegate rules`: what the Prometheus operator would be given, for a plain Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from tidegate_operator.settings import RUNBOOKS
from tidegate_operator.slo import rule_groups

from tidegate.cli.cluster_objects import ClusterObjects, Kubeconfig
from tidegate.cli.errors import CommandError
from tidegate.cli.existing_cluster import Name
from tidegate.cli.manifests import Found, compiled_pools, unreadable_pools
from tidegate.cli.policy_files import read_manifests
from tidegate.local_cluster.paths import DEFAULT_CLUSTER

_RESOURCES = (
    "tenanttiers.tidegate.io",
    "tenants.tidegate.io",
    "servingpools.tidegate.io",
    "namespaces",
)


def rules(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            exists=True, help="Manifests, or folders of them; without any, those of the cluster."
        ),
    ] = None,
    name: Name = DEFAULT_CLUSTER,
    kubeconfig: Kubeconfig = None,
    pool: Annotated[
        str | None, typer.Option(help="Only this ServingPool, by name or namespace/name.")
    ] = None,
    runbooks: Annotated[str, typer.Option(help="Where alerts find docs/runbooks/.")] = RUNBOOKS,
) -> None:
    """Print the recording rules and alerts of every pool, as a rule file of Prometheus.

    For a Prometheus that the Prometheus operator does not run; docs/operations.md says how it must
    scrape. What its operator loads, Tidegate's applies by itself.
    """
    found = read_manifests(files) if files else _objects(name, kubeconfig)
    compiled = compiled_pools(found, of_cluster=not files)
    for unreadable in unreadable_pools(found):
        typer.echo(f"tidegate: ServingPool {unreadable}", err=True)
    groups: list[dict[str, Any]] = []
    chosen = 0
    for served, result in compiled:
        namespace, short = served.metadata.namespace, served.metadata.name
        if pool not in (None, short, f"{namespace}/{short}"):
            continue
        chosen += 1
        for fault in result.faults:
            typer.echo(f"tidegate: ServingPool {namespace}/{short}: {fault.message}", err=True)
        tiers = result.policy.tiers if result.policy else ()
        groups += rule_groups(namespace, short, tiers, runbooks)
    if pool is not None and not chosen:
        raise CommandError(f"--pool: no ServingPool is called {pool!r}", exit_code=2)
    if not groups:
        raise CommandError(
            "no pool promises anything: set slo.objectives of a TenantTier, or of a pool's tier"
        )
    typer.echo(yaml.safe_dump({"groups": groups}, sort_keys=False, width=100), nl=False)


def _objects(name: str, kubeconfig: Path | None) -> Found:
    found: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for obj in ClusterObjects(name, kubeconfig).read(*_RESOURCES):
        found.setdefault(obj["kind"], []).append((Path("cluster"), obj))
    return found
