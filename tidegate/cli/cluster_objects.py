"""Objects of a cluster, read with kubectl: of a local cluster, or of any by its kubeconfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.existing_cluster import answering_cluster, existing_cluster, told
from tidegate.cli.pool_mode import find_kubectl
from tidegate.cli.sidecars import Kubectl
from tidegate.local_cluster.binaries import find_binaries
from tidegate.local_cluster.paths import cache_directory

Json = dict[str, Any]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Of this cluster, instead of a local one."),
]


def kubectl_of(name: str, kubeconfig: Path | None) -> Kubectl:
    """kubectl with this kubeconfig, else with the local cluster of that name."""
    with told():
        if kubeconfig is None:
            cluster = existing_cluster(name)
            return Kubectl(find_kubectl(cluster.binaries.directory), cluster.kubeconfig)
        built = find_binaries(cache_directory())
        return Kubectl(find_kubectl(*([built.directory] if built else [])), kubeconfig)


class ClusterObjects:
    """A way to read objects; finding the cluster, and kubectl, is done once."""

    def __init__(self, name: str, kubeconfig: Path | None) -> None:
        """Of this kubeconfig, else of the local cluster of that name."""
        self._local = name if kubeconfig is None else None
        self._kubectl = kubectl_of(name, kubeconfig)

    def read(self, *resources: str) -> list[Json]:
        """All objects of these resources in all namespaces; CommandError where they can't be."""
        with told():
            if self._local is not None:
                answering_cluster(self._local)
            answer = self._kubectl.json("get", ",".join(resources), "--all-namespaces")
        items: list[Json] = answer["items"]
        return items
