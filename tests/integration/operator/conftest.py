"""A control plane with the CRDs and the manifests applied, shared by the operator's tests."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from support.operator_cluster import ROOT, OperatorCluster
from tidegate_operator.kube import Kube, load_configuration

from tidegate.local_cluster.control_plane import ControlPlane
from tidegate.local_cluster.deploy import Source, apply_crds

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """`crds/` and `manifests/` applied as a user would."""
    apply_crds(control_plane.kubectl, Source(ROOT))
    done = control_plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests"))
    assert done.returncode == 0, done.stderr
    return control_plane


@pytest.fixture
async def cluster(
    installed: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OperatorCluster]:
    """The control plane with an administrator's client."""
    configuration = await load_configuration(str(installed.kubeconfig))
    async with Kube(configuration) as kube:
        yield OperatorCluster(installed, kube, tmp_path_factory.mktemp("operator"))


@pytest.fixture
def namespace(installed: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, with pod security `restricted`; deleted afterwards."""
    name = f"test-{next(_numbers)}"
    made = installed.kubectl("create", "namespace", name)
    assert made.returncode == 0, made.stderr
    installed.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    # Waited for: what goes away late would be written about in the next test.
    installed.kubectl("delete", "namespace", name, "--timeout=60s", "--ignore-not-found")
