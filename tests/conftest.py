"""Fixtures that several test kinds share: a real API server, and a whole control plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.local_cluster.binaries import Binaries, ensure_binaries
from tidegate.local_cluster.control_plane import API_SERVER_ONLY, ControlPlane
from tidegate.local_cluster.paths import cache_directory


@pytest.fixture(scope="session")
def control_plane_binaries() -> Binaries:
    """etcd, kube-apiserver and the others; built on the first run, which takes minutes."""
    return ensure_binaries(cache_directory())


@pytest.fixture(scope="session")
def api_server(
    control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver alone: no controllers, so nothing acts but the test.

    One for the session: use a namespace of your own. A test that stops it starts it again.
    """
    yield from _running(
        ControlPlane(
            tmp_path_factory.mktemp("api-server"),
            control_plane_binaries,
            components=API_SERVER_ONLY,
            die_with_parent=True,
        )
    )


@pytest.fixture(scope="session")
def control_plane(
    control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """All four components: StatefulSets make pods, which stay Pending where there is no node."""
    yield from _running(
        ControlPlane(
            tmp_path_factory.mktemp("control-plane"), control_plane_binaries, die_with_parent=True
        )
    )


@pytest.fixture
def kubeconfig(api_server: ControlPlane) -> Path:
    """The administrator's kubeconfig of `api_server`."""
    return api_server.kubeconfig


def _running(plane: ControlPlane) -> Iterator[ControlPlane]:
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
