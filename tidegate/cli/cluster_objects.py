"""Objects of a cluster, read with kubectl: of a local cluster, or of any by its kubeconfig."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.errors import CommandError
from tidegate.cli.existing_cluster import existing_cluster, told
from tidegate.cli.pool_mode import find_kubectl
from tidegate.local_cluster.binaries import find_binaries
from tidegate.local_cluster.paths import cache_directory

Json = dict[str, Any]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Of this cluster, instead of a local one."),
]
TIMEOUT_SECONDS = 30.0


class ClusterObjects:
    """A way to read objects; finding the cluster, and kubectl, is done once."""

    def __init__(self, name: str, kubeconfig: Path | None) -> None:
        """Of this kubeconfig, else of the local cluster of that name."""
        with told():
            found = kubeconfig or existing_cluster(name).kubeconfig
        own = find_binaries(cache_directory())
        folders = [own.directory] if own else []
        self._command = [find_kubectl(*folders), f"--kubeconfig={found}"]

    def read(self, *resources: str) -> list[Json]:
        """All objects of these resources in all namespaces; CommandError where they can't be."""
        arguments = ["get", ",".join(resources), "--all-namespaces", "--output=json"]
        with told():
            ran = subprocess.run(
                [*self._command, *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        if ran.returncode != 0:
            reason = ran.stderr.strip().splitlines()
            raise CommandError(f"kubectl get: {reason[-1] if reason else 'failed'}")
        items: list[Json] = json.loads(ran.stdout)["items"]
        return items
