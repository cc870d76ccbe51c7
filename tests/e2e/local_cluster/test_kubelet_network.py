"""Services on the process kubelet, and what controllers do with its pods."""

import http.client
import json
import socket
import time

import pytest
from support.cluster_objects import Namespace, http_server, pod_spec, shell, until

pytestmark = pytest.mark.e2e

_READY = {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 1}
_LEAVES_UNHURRIED = {"preStop": {"exec": {"command": ["sleep", "1"]}}}
"""The server drops on SIGTERM whom it has just accepted."""
_WRITE_NAME = "echo $HOSTNAME > /srv/web/name"


def _web(space: Namespace, replicas: int) -> None:
    """A StatefulSet whose pods answer /name with their own name, and a Service before them."""
    volumes = [{"name": "files", "emptyDir": {}}]
    mounts = [{"name": "files", "mountPath": "/srv/web"}]
    spec = pod_spec(
        http_server(readinessProbe=_READY, volumeMounts=mounts, lifecycle=_LEAVES_UNHURRIED),
        initContainers=[shell(_WRITE_NAME, "name", volumeMounts=mounts)],
        volumes=volumes,
    )
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    selector = {"matchLabels": {"app": "web"}}
    space.apply(
        "apps/v1",
        "StatefulSet",
        "web",
        spec={
            "serviceName": "web",
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": selector,
            "template": template,
        },
    )
    space.apply(
        "v1",
        "Service",
        "web",
        spec={
            "type": "LoadBalancer",
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 8080, "targetPort": "http"}],
        },
    )
    space.wait_ready(*(f"web-{number}" for number in range(replicas)))


def _address(space: Namespace) -> tuple[str, int]:
    """Where the load balancer's status says that the Service listens."""

    def ingress() -> object:
        service = space.find("service", "web") or {}
        return service.get("status", {}).get("loadBalancer", {}).get("ingress")

    (entry,) = until("an ingress", ingress)  # type: ignore[misc]
    return entry["ip"], entry["ports"][0]["port"]


def _ask(address: tuple[str, int]) -> str:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", "/name")
        return connection.getresponse().read().decode().strip()
    finally:
        connection.close()


def test_a_service_forwards_to_ready_pods_in_turn(space: Namespace) -> None:
    _web(space, 2)
    address = _address(space)
    assert address[0] == "127.0.0.1"
    until("both pods", lambda: {_ask(address), _ask(address)} == {"web-0", "web-1"})
    assert [_ask(address) for _ in range(4)] in (
        ["web-0", "web-1", "web-0", "web-1"],
        ["web-1", "web-0", "web-1", "web-0"],
    )
    service = space.find("service", "web")
    assert service is not None
    assert _ask((service["spec"]["clusterIP"], 8080)) in ("web-0", "web-1")
    by_name = space.cluster.service_ports()
    assert by_name[f"{space.name}/web:8080"] == address[1]


def test_a_pod_that_refuses_is_passed_over_and_one_that_ends_gets_nothing_new(
    space: Namespace,
) -> None:
    _web(space, 2)
    # Ready, but nothing listens on the port: every second connection meets it first.
    deaf = shell("trap 'exit 0' TERM; sleep 1000 & wait", "web")
    deaf["ports"] = [{"name": "http", "containerPort": 8000}]
    space.pod("deaf", pod_spec(deaf), app="web")
    space.wait_ready("deaf")
    address = _address(space)
    assert {_ask(address) for _ in range(6)} == {"web-0", "web-1"}
    space.kubectl("scale", "statefulset", "web", "--replicas=1")
    until("web-1 is gone", lambda: space.find("pod", "web-1") is None)
    assert {_ask(address) for _ in range(6)} == {"web-0"}


def test_names_of_services_resolve_in_pods(space: Namespace) -> None:
    _web(space, 1)
    code = (
        "import sys, time, urllib.request\n"
        "for name in sys.argv[1:]:\n"
        "    print(urllib.request.urlopen(f'http://{name}:8080/name').read().decode().strip())\n"
        "sys.stdout.flush(); time.sleep(1000)\n"
    )
    names = ["web", f"web.{space.name}.svc", f"web.{space.name}.svc.cluster.local"]
    container = shell("") | {"image": "python:3", "args": ["-c", code, *names]}
    space.pod("client", pod_spec(container))
    until("three answers", lambda: space.log_or_nothing("client") == "web-0\n" * 3)


def test_a_rolling_update_keeps_the_service_answering(space: Namespace) -> None:
    _web(space, 2)
    address = _address(space)
    before = {pod: (space.find("pod", pod) or {})["metadata"]["uid"] for pod in ("web-0", "web-1")}
    space.kubectl("rollout", "restart", "statefulset", "web")
    answers = 0
    deadline = time.monotonic() + 90
    done = False
    while not done and time.monotonic() < deadline:
        assert _ask(address) in ("web-0", "web-1")
        answers += 1
        found = {pod: space.find("pod", pod) for pod in before}
        done = all(item and item["metadata"]["uid"] != before[pod] for pod, item in found.items())
    assert done
    assert answers > 2
    space.wait_ready("web-0", "web-1")


def test_a_disruption_budget_holds_the_second_eviction_back(space: Namespace) -> None:
    _web(space, 2)
    space.apply(
        "policy/v1",
        "PodDisruptionBudget",
        "web",
        spec={"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    )
    until(
        "one disruption allowed",
        lambda: ((space.find("pdb", "web") or {}).get("status", {})).get("disruptionsAllowed") == 1,
    )
    answers = [_evict(space, pod) for pod in ("web-0", "web-1")]
    assert answers[0] == ""
    assert "violate the pod's disruption budget" in answers[1]


def _evict(space: Namespace, pod: str) -> str:
    """What the API server objects to an eviction; empty when it was accepted."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction"}
    body["metadata"] = {"name": pod, "namespace": space.name}  # type: ignore[assignment]
    path = f"/api/v1/namespaces/{space.name}/pods/{pod}/eviction"
    done = space.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
    return done.stderr.strip()


def test_gpus_are_scheduled_as_whole_devices(space: Namespace) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "5"}}}
    for name in ("first", "second"):
        space.pod(name, pod_spec(shell("trap 'exit 0' TERM; sleep 1000 & wait", **limits)))
    space.wait_ready("first")
    message = until(
        "the second is refused",
        lambda: [
            item["message"]
            for item in space.status("second").get("conditions", [])
            if item["type"] == "PodScheduled" and item["status"] == "False"
        ],
    )
    assert "Insufficient nvidia.com/gpu" in message[0]


def test_a_service_without_ready_pods_resets(space: Namespace) -> None:
    _web(space, 1)
    address = _address(space)
    space.kubectl("scale", "statefulset", "web", "--replicas=0")
    until("no pod", lambda: space.find("pod", "web-0") is None)
    with pytest.raises(ConnectionResetError):
        _first_byte(address)


def _first_byte(address: tuple[str, int]) -> bytes:
    """Of an answer; a reset may come at any of the three, as soon as the connection stands."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(1)
