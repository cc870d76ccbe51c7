"""The CRDs on the real API server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crd_api import Api
from tidegate_operator.api.crd import KINDS

from tidegate.local_cluster.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def crds(api_server: ControlPlane) -> ControlPlane:
    """The API server with our CRDs, applied as a user would."""
    applied = api_server.kubectl("apply", "--server-side", "-k", str(ROOT / "crds"))
    assert applied.returncode == 0, applied.stderr
    names = [f"crd/{kind.plural}.tidegate.io" for kind in KINDS.values()]
    waited = api_server.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    assert waited.returncode == 0, waited.stderr
    return api_server


@pytest.fixture
def api(crds: ControlPlane) -> Api:
    """A client; the API server may have another port than in the test before."""
    return Api(crds)


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"api-{next(_numbers)}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}}).ok()
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")
