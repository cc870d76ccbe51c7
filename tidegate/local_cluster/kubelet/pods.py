"""What a pod's spec says, read in one place: plain functions on the object."""

from datetime import UTC, datetime

from tidegate.local_cluster.kubelet.api import Object


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def key_of(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def path_of(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_finished(pod: Object) -> bool:
    """Whether the pod's status says that it will never run again."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def grace_seconds(pod: Object) -> float:
    """The grace period in force: that of the deletion, else the spec's."""
    deletion = pod["metadata"].get("deletionGracePeriodSeconds")
    if deletion is not None:
        return float(deletion)
    return float(pod["spec"].get("terminationGracePeriodSeconds", 30))


def is_sidecar(container: Object) -> bool:
    """A native sidecar: an init container that goes on running."""
    return bool(container.get("restartPolicy") == "Always")


def port_number(container: Object, port: int | str) -> int:
    """The number of a port given by number or by name. Raises ValueError for an unknown name."""
    if isinstance(port, int):
        return port
    for entry in container.get("ports", []):
        if entry.get("name") == port:
            return int(entry["containerPort"])
    if port.isdigit():
        return int(port)
    raise ValueError(f"container {container['name']} has no port named {port!r}")


def timestamp(seconds: float) -> str:
    """Unix seconds as Kubernetes writes a time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
