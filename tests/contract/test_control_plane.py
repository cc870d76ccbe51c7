"""The control plane that the other tests stand on: starts, answers, keeps data, audits writes."""

import json
import time
from pathlib import Path

import pytest

from tidegate.local_cluster.binaries import KUBERNETES_VERSION, Binaries
from tidegate.local_cluster.control_plane import API_SERVER_ONLY, APISERVER, ETCD, ControlPlane
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.ports import bindable

pytestmark = pytest.mark.contract


def test_api_server_says_the_version_that_was_asked_for(api_server: ControlPlane) -> None:
    version = json.loads(api_server.kubectl("version", "-o", "json").stdout)
    assert version["serverVersion"]["gitVersion"] == f"v{KUBERNETES_VERSION}"
    assert version["clientVersion"]["gitVersion"] == f"v{KUBERNETES_VERSION}"


def test_data_and_address_survive_a_stop(api_server: ControlPlane) -> None:
    assert api_server.kubectl("create", "namespace", "kept").returncode == 0
    url = api_server.url
    api_server.stop()
    assert not any(state.running for state in api_server.states())
    assert api_server.kubectl("get", "namespace", "kept").returncode != 0
    api_server.start()
    assert api_server.url == url
    assert api_server.kubectl("get", "namespace", "kept").returncode == 0


def test_data_survives_a_kill(api_server: ControlPlane) -> None:
    assert api_server.kubectl("create", "namespace", "kept-after-kill").returncode == 0
    for component in (APISERVER, ETCD):
        api_server.stop_component(component, kill=True)
    api_server.start()
    assert api_server.kubectl("get", "namespace", "kept-after-kill").returncode == 0


def test_audit_log_has_a_line_for_each_write_and_none_for_reads(api_server: ControlPlane) -> None:
    assert api_server.kubectl("create", "namespace", "audited").returncode == 0
    assert api_server.kubectl("get", "namespace", "audited").returncode == 0
    lines = [json.loads(line) for line in api_server.audit_log.read_text().splitlines()]
    of_namespace = [
        (line["verb"], line["user"]["username"])
        for line in lines
        if line["objectRef"].get("resource") == "namespaces"
        and line["objectRef"].get("name") == "audited"
    ]
    assert of_namespace == [("create", "tidegate-admin")]
    assert {line["verb"] for line in lines} <= {"create", "update", "patch", "delete"}


def test_stop_leaves_no_port(control_plane_binaries: Binaries, tmp_path: Path) -> None:
    plane = ControlPlane(
        tmp_path, control_plane_binaries, components=API_SERVER_ONLY, die_with_parent=True
    )
    plane.start()
    port = int(plane.url.rsplit(":", 1)[1])
    assert not bindable("127.0.0.1", port)
    plane.stop()
    assert bindable("127.0.0.1", port)


def test_a_component_that_ends_while_starting_is_named(
    control_plane_binaries: Binaries, tmp_path: Path
) -> None:
    plane = ControlPlane(
        tmp_path,
        control_plane_binaries,
        components=API_SERVER_ONLY,
        service_cidr="not-a-range",
        die_with_parent=True,
    )
    try:
        with pytest.raises(LocalClusterError, match="kube-apiserver ended while starting"):
            plane.start()
    finally:
        plane.stop()


def test_controllers_make_pods_of_a_stateful_set(control_plane: ControlPlane) -> None:
    pods = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}
    pods["spec"]["containers"].append({"name": "web", "image": "example.test/web:1"})
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": pods,
        },
    }
    created = control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(stateful_set))
    assert created.returncode == 0, created.stderr
    deadline = time.monotonic() + 50
    names = ""
    while names != "web-0 web-1" and time.monotonic() < deadline:
        names = control_plane.kubectl(
            "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"
        ).stdout
        time.sleep(0.1)
    assert names == "web-0 web-1"
    assert control_plane.kubectl("delete", "statefulset", "web").returncode == 0
