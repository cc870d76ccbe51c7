"""What a cluster does, for a person and, as JSON, for a program."""

import json
from typing import Any

from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.control_plane import APISERVER, ComponentState
from tidegate.local_cluster.processes import tail

_TAIL_LINES = 10


def cluster_status(cluster: LocalCluster) -> dict[str, Any]:
    """Processes, pods, where Services listen, and for whatever failed the end of its log.

    Raises LocalClusterError when there is no such cluster.
    """
    states = cluster.states()
    components = [
        {"name": state.name, "running": state.running, "pid": state.pid, "log": str(state.log)}
        for state in states
    ]
    # All gone is a cluster that is down; some gone is one that is broken.
    down = not any(state.running for state in states)
    failed: list[dict[str, Any]] = []
    pods: list[dict[str, Any]] = []
    services: list[dict[str, Any]] = []
    if not down:
        failed = [_failed_process(state) for state in states if not state.running]
        try:
            pods, services = _list(cluster, "pods"), _services(cluster)
        except _NoAnswerError as error:
            if server := [state for state in states if state.name == APISERVER and state.running]:
                failed.append(_failed_process(server[0], f"gives no answer: {error}"))
        failed += [entry for pod in pods for entry in _failures(cluster, pod)]
    return {
        "name": cluster.name,
        "state": "down" if down else ("failed" if failed else "up"),
        "kubeconfig": str(cluster.kubeconfig),
        "components": components,
        "pods": [_pod_row(pod) for pod in pods],
        "services": services,
        "failed": failed,
    }


def not_ready(cluster: LocalCluster) -> list[str]:
    """Each container that is not ready, why, and the last that it said; pods without containers
    too. Nothing where the API server gives no answer."""
    try:
        pods = _list(cluster, "pods")
    except _NoAnswerError:
        return []
    lines = []
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"] or _is_ready(pod):
            continue
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        containers = [c for c in _container_statuses(pod) if not c["ready"] and not _is_done(c)]
        if not containers:
            lines.append(f"{name}: {_why_unscheduled(pod['status']) or 'not ready'}")
        for item in containers:
            said = _said(cluster, pod, item["name"], 1)
            why = _why(item) or "not ready"
            lines.append(f"{name}/{item['name']}: {why}" + (f": {said}" if said else ""))
    return lines


class _NoAnswerError(Exception):
    """The last line of what kubectl said."""


def _failed_process(state: ComponentState, why: str = "") -> dict[str, Any]:
    why = why or ("was not started" if state.pid is None else "ended by itself")
    return {"what": state.name, "why": why, "log": tail(state.log, _TAIL_LINES)}


def _list(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    answer = cluster.kubectl("get", kind, "-A", "-o", "json", "--request-timeout=5s")
    if answer.returncode != 0:
        raise _NoAnswerError((answer.stderr.strip().splitlines() or ["kubectl failed"])[-1])
    items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
    return items


def _services(cluster: LocalCluster) -> list[dict[str, Any]]:
    ports = cluster.service_ports()
    rows = []
    for service in _list(cluster, "services"):
        metadata = service["metadata"]
        for port in service["spec"].get("ports", []):
            local = ports.get(f"{metadata['namespace']}/{metadata['name']}:{port['port']}")
            if local is not None:
                rows.append(
                    {
                        "namespace": metadata["namespace"],
                        "name": metadata["name"],
                        "type": service["spec"].get("type", "ClusterIP"),
                        "port": port["port"],
                        "portName": port.get("name", ""),
                        "address": f"127.0.0.1:{local}",
                    }
                )
    return rows


def _pod_row(pod: dict[str, Any]) -> dict[str, Any]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    return {
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "phase": status.get("phase", "Pending"),
        "ready": f"{sum(item['ready'] for item in containers)}/{len(pod['spec']['containers'])}",
        "restarts": sum(item["restartCount"] for item in containers),
        "reason": "; ".join(sorted({reason for item in containers if (reason := _why(item))}))
        or _why_unscheduled(status),
    }


def _why_unscheduled(status: dict[str, Any]) -> str:
    conditions = status.get("conditions", [])
    unmet = (c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False")
    return next((str(condition.get("reason", "")) for condition in unmet), "")


def _why(container: dict[str, Any]) -> str:
    waiting = container["state"].get("waiting", {})
    return "" if waiting.get("reason") == "ContainerCreating" else waiting.get("reason", "")


def _failures(cluster: LocalCluster, pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Containers that wait after an error, or ended with one."""
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        return []  # it ends because it was told to
    entries = []
    for item in _container_statuses(pod):
        ended = item["state"].get("terminated", {})
        waiting = item["state"].get("waiting", {})
        if waiting.get("reason") in (
            None,
            "ContainerCreating",
            "PodInitializing",
        ) and not ended.get("exitCode"):
            continue
        why = waiting.get("message") or waiting.get("reason") or f"exit code {ended['exitCode']}"
        what = f"{metadata['namespace']}/{metadata['name']}/{item['name']}"
        log = _said(cluster, pod, item["name"], _TAIL_LINES)
        entries.append({"what": what, "why": why, "log": log})
    return entries


def _container_statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _is_done(container: dict[str, Any]) -> bool:
    """An init container, or one of a job, that did what it was there for."""
    return bool(container["state"].get("terminated", {}).get("exitCode") == 0)


def _said(cluster: LocalCluster, pod: dict[str, Any], container: str, lines: int) -> str:
    """The end of a container's log; empty where there is none."""
    said = cluster.kubectl(
        "logs",
        f"--namespace={pod['metadata']['namespace']}",
        f"--container={container}",
        f"--tail={lines}",
        pod["metadata"]["name"],
    )
    return said.stdout.strip() if said.returncode == 0 else ""
