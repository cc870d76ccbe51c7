"""The CRDs on the real API server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crd_api import Api

from tidegate.local_cluster.control_plane import ControlPlane
from tidegate.local_cluster.deploy import Source, apply_crds

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def crds(api_server: ControlPlane) -> ControlPlane:
    """The API server with our CRDs, applied as a user would."""
    apply_crds(api_server.kubectl, Source(ROOT))
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
