"""One cluster for all end-to-end tests, with Tidegate deployed on it as a user would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import server_binary

from testbed.e2e_cluster import OPERATOR_USER, Cluster, Scene
from tidegate.local_cluster.binaries import Binaries
from tidegate.local_cluster.cluster import KubeletOptions, LocalCluster
from tidegate.local_cluster.deploy import deploy, find_source
from tidegate.local_cluster.paths import cache_directory, cluster_directory

LAST = "test_no_right_of_the_operator_is_unused"
"""Looks back at what all the others made the operator do."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have that one run after all other end-to-end tests, with word whether they all run."""
    here = Path(__file__).parent
    ours = [item for item in items if item.path.is_relative_to(here)]
    for item in ours:
        if item.name == LAST:
            whole = set(here.glob("test_*.py")) <= {one.path for one in ours}
            item.user_properties.append(("whole_suite", whole))
            items.remove(item)
            last = max((place for place, one in enumerate(items) if one in ours), default=-1)
            items.insert(last + 1, item)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the image of examples/ that this project does not make."""
    table = tmp_path_factory.mktemp("images") / "images.toml"
    programs = f"programs = {{ valkey-server = ['{server_binary()}'] }}"
    table.write_text(f"['valkey/valkey']\ncommand = ['valkey-server']\n{programs}\n")
    return table


@pytest.fixture(scope="session")
def local_cluster(control_plane_binaries: Binaries, images: Path) -> Iterator[LocalCluster]:
    """A local cluster of this run's own, beside any other; gone with all its files afterwards."""
    purge_leftovers(control_plane_binaries)
    cluster = LocalCluster(
        f"e2e-{os.getpid()}",
        control_plane_binaries,
        cache_directory(),
        die_with_parent=True,
        audited_readers=[OPERATOR_USER],
    )
    try:
        # As slow with volumes as a real kubelet, so that what acts in seconds was posted; GPUs for
        # the example of eight while the pods of the test before it drain.
        options = KubeletOptions(volume_refresh_seconds=60.0, gpus=16, images=(str(images),))
        cluster.start(options)
        deploy(cluster.kubectl, find_source(), lambda step: None, wait_seconds=180)
        yield cluster
    finally:
        cluster.purge()


def purge_leftovers(binaries: Binaries) -> None:
    """Clusters of runs that were killed before they could take theirs down."""
    for folder in cluster_directory("any", cache_directory()).parent.glob("e2e-*"):
        pid = folder.name.removeprefix("e2e-")
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            LocalCluster(folder.name, binaries, cache_directory()).purge()


@pytest.fixture(scope="session")
def cluster(local_cluster: LocalCluster) -> Cluster:
    kubectl = local_cluster.binaries.path("kubectl")
    return Cluster([kubectl, f"--kubeconfig={local_cluster.kubeconfig}"])


@pytest.fixture
def make_scene(cluster: Cluster) -> Iterator[Callable[..., Scene]]:
    """Brings up a namespace with tiers, tenants and a pool; takes it down after the test."""
    scenes: list[Scene] = []

    def make(namespace: str, **spec: Any) -> Scene:
        scene = Scene(cluster, namespace, **spec)
        scenes.append(scene)
        scene.up()
        return scene

    yield make
    for scene in scenes:
        scene.down(wait=False)
