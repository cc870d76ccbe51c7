"""Objects for tests on the local cluster, and waiting until something is true of them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tidegate.local_cluster.cluster import LocalCluster

Result = TypeVar("Result")
Object = dict[str, Any]

_RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_NO_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_numbers = itertools.count(1)


def until(what: str, probe: Callable[[], Result | None], seconds: float = 60.0) -> Result:
    """The first true answer of `probe`; fails the test, naming `what`, when none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not in {seconds:g} s: {what}")


def shell(script: str, name: str = "main", **fields: Any) -> Object:
    """A container that runs a shell script, allowed under pod-security `restricted`."""
    return {
        "name": name,
        "image": "busybox:1",
        "args": ["-c", script],
        "securityContext": _NO_RIGHTS,
        **fields,
    }


def http_server(name: str = "web", **fields: Any) -> Object:
    """A container that serves the files of /srv/web on $(POD_IP):8000."""
    return {
        "name": name,
        "image": "python:3",
        "args": ["-u", "-m", "http.server", "8000", "--bind", "$(POD_IP)", "-d", "/srv/web"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "securityContext": _NO_RIGHTS,
        **fields,
    }


def pod_spec(*containers: Object, **fields: Any) -> Object:
    return {
        "securityContext": _RESTRICTED,
        "terminationGracePeriodSeconds": 5,
        "containers": list(containers),
        **fields,
    }


class Namespace:
    """A namespace of a test's own, with pod-security `restricted` enforced."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.name = f"test-{next(_numbers)}"
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.name, "labels": label}
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        until("the default account", lambda: self.find("serviceaccount", "default"))

    def apply(self, api_version: str, kind: str, name: str, **content: Any) -> None:
        metadata = {"name": name, "namespace": self.name, "labels": content.pop("labels", {})}
        item = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
        self._apply(item)

    def pod(self, name: str, spec: Object, **labels: str) -> None:
        self.apply("v1", "Pod", name, labels=labels, spec=spec)

    def kubectl(self, *arguments: str) -> str:
        done = self.cluster.kubectl(f"--namespace={self.name}", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def find(self, kind: str, name: str) -> Object | None:
        done = self.cluster.kubectl(f"--namespace={self.name}", "get", kind, name, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def status(self, pod: str) -> Object:
        found = self.find("pod", pod)
        return found.get("status", {}) if found else {}

    def container(self, pod: str, name: str = "main") -> Object:
        """The status of one container; empty while there is none."""
        status = self.status(pod)
        for part in ("containerStatuses", "initContainerStatuses"):
            for item in status.get(part, []):
                if item["name"] == name:
                    return dict(item)
        return {}

    def is_ready(self, pod: str) -> bool:
        conditions = self.status(pod).get("conditions", [])
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    def wait_ready(self, *pods: str) -> None:
        for pod in pods:
            until(f"{pod} ready", lambda pod=pod: self.is_ready(pod))  # type: ignore[misc]

    def log(self, pod: str, container: str = "main", *flags: str) -> str:
        return self.kubectl("logs", pod, f"--container={container}", *flags)

    def log_or_nothing(self, pod: str) -> str:
        """The log so far; empty while the container has none."""
        done = self.cluster.kubectl(f"--namespace={self.name}", "logs", pod)
        return done.stdout if done.returncode == 0 else ""

    def delete(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def _apply(self, item: Object) -> None:
        done = self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(item))
        assert done.returncode == 0, done.stderr
