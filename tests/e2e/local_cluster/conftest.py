"""The process kubelet, on a cluster of the test run's own."""

from collections.abc import Iterator

import pytest
from support.cluster_objects import Namespace

from tidegate.local_cluster.cluster import LocalCluster


@pytest.fixture
def space(local_cluster: LocalCluster) -> Iterator[Namespace]:
    """A namespace of the test's own; gone afterwards."""
    space = Namespace(local_cluster)
    yield space
    space.delete()
