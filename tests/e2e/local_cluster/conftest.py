"""The process kubelet, on a bare cluster of its own: nothing of Tidegate runs there."""

from collections.abc import Iterator

import pytest
from support.cluster_objects import Namespace

from tidegate.local_cluster.binaries import Binaries
from tidegate.local_cluster.cluster import KubeletOptions, LocalCluster


@pytest.fixture(scope="package")
def kubelet_cluster(
    control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Volumes are refreshed every 0.5 s and a crashing container waits 1 s: tests are quick."""
    cluster = LocalCluster(
        "kubelet", control_plane_binaries, tmp_path_factory.mktemp("cache"), die_with_parent=True
    )
    try:
        cluster.start(KubeletOptions(volume_refresh_seconds=0.5, restart_backoff_seconds=1.0))
        yield cluster
    finally:
        cluster.purge()


@pytest.fixture
def space(kubelet_cluster: LocalCluster) -> Iterator[Namespace]:
    """A namespace of the test's own; gone afterwards."""
    space = Namespace(kubelet_cluster)
    yield space
    space.delete()
