"""Fixtures that several test kinds share: a real API server, and a whole control plane."""

import functools
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tidegate.local_cluster.binaries import Binaries, BuildProgress, ensure_binaries
from tidegate.local_cluster.control_plane import API_SERVER_ONLY, ControlPlane
from tidegate.local_cluster.paths import cache_directory

for _name in ("COLUMNS", "LINES"):
    # Readline leaves its guess to the processes of a parallel run; output is as wide as without.
    os.environ.pop(_name, None)

# A machine that does much else is no defect of what is tested.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before the clock of the test's timeout starts: a build takes minutes, once."""
    if "control_plane_binaries" in getattr(item, "fixturenames", ()):
        _binaries(item.config)
    return (yield)


@functools.cache
def _binaries(config: pytest.Config) -> Binaries:
    in_parallel = hasattr(config, "workerinput")  # then only xdist's controller has a terminal
    steps: set[str] = set()

    def say(progress: BuildProgress) -> None:
        if progress.step not in steps and not in_parallel:
            steps.add(progress.step)
            config.get_terminal_writer().line(f"\ncontrol plane: {progress.step}")

    return ensure_binaries(cache_directory(), say)


@pytest.fixture(scope="session")
def control_plane_binaries(pytestconfig: pytest.Config) -> Binaries:
    """etcd, kube-apiserver and the others; built on the first run, which takes minutes."""
    return _binaries(pytestconfig)


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
