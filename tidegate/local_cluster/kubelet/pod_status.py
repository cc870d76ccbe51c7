"""A pod's status, computed from what its containers do. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.local_cluster.kubelet.api import Object
from tidegate.local_cluster.kubelet.container_worker import ContainerView, Phase
from tidegate.local_cluster.kubelet.images import repository
from tidegate.local_cluster.kubelet.pods import is_sidecar, timestamp, uid_of
from tidegate.local_cluster.kubelet.runtime import Exit

_OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and since when (Unix seconds) a pod runs."""

    pod_ip: str
    host_ip: str
    started: float


def pod_status(
    pod: Object,
    views: Mapping[str, ContainerView],
    placement: Placement,
    now: float,
    *,
    waiting_for: str = "",
) -> Object:
    """The whole status. `views` by container name; `waiting_for` says why volumes are not there."""
    spec = pod["spec"]
    inits: Sequence[Object] = spec.get("initContainers", [])
    mains: Sequence[Object] = spec["containers"]
    initialized = all(_init_done(item, views[item["name"]]) for item in inits)
    phase = pod_phase(pod, views)
    finished = phase in ("Succeeded", "Failed")
    steady = [*mains, *(item for item in inits if is_sidecar(item))]
    ready = not finished and all(views[item["name"]].ready for item in steady)
    gates = _gates_pass(pod)
    reason = "PodCompleted" if phase == "Succeeded" else ""
    conditions = {
        "PodReadyToStartContainers": (not waiting_for, ""),
        "Initialized": (initialized or phase == "Succeeded", reason),
        "ContainersReady": (ready, reason or ("" if ready else "ContainersNotReady")),
        "Ready": (
            ready and gates,
            reason or ("" if ready and gates else _why_unready(ready)),
        ),
    }
    status: Object = {
        "phase": phase,
        "startTime": timestamp(placement.started),
        "hostIP": placement.host_ip,
        "hostIPs": [{"ip": placement.host_ip}],
        "podIP": placement.pod_ip,
        "podIPs": [{"ip": placement.pod_ip}],
        "qosClass": pod.get("status", {}).get("qosClass", "BestEffort"),
        "conditions": _conditions(pod, conditions, now),
        "containerStatuses": [
            _container_status(pod, item, views[item["name"]], initialized) for item in mains
        ],
    }
    if inits:
        status["initContainerStatuses"] = [
            _container_status(pod, item, views[item["name"]], True) for item in inits
        ]
    if waiting_for:
        status["message"] = waiting_for
    return status


def pod_phase(pod: Object, views: Mapping[str, ContainerView]) -> str:
    """Pending, Running, Succeeded or Failed, by Kubernetes' rules."""
    policy = pod["spec"].get("restartPolicy", "Always")
    inits = [(item, views[item["name"]]) for item in pod["spec"].get("initContainers", [])]
    mains = [views[item["name"]] for item in pod["spec"]["containers"]]
    for item, view in inits:
        if _init_done(item, view):
            continue
        failed = view.phase is Phase.TERMINATED and view.exit is not None and view.exit.code != 0
        return "Failed" if failed and policy == "Never" else "Pending"
    if any(view.phase is Phase.WAITING and view.attempt == 0 for view in mains):
        return "Pending"
    ended = [view.exit for view in mains if view.phase is Phase.TERMINATED]
    if len(ended) < len(mains) or policy == "Always":
        return "Running"
    failures = any(end is not None and end.code != 0 for end in ended)
    if not failures:
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def terminal_status(pod: Object, status: Object) -> Object:
    """The last status of a pod that was deleted: everything has ended, nothing is ready."""
    ended = [item["state"].get("terminated") for item in status["containerStatuses"]]
    clean = all(end is not None and end["exitCode"] == 0 for end in ended)
    return status | {"phase": "Succeeded" if clean else "Failed"}


def _init_done(item: Object, view: ContainerView) -> bool:
    if is_sidecar(item):
        return view.started or view.restarts > 0
    return view.phase is Phase.TERMINATED and view.exit is not None and view.exit.code == 0


def _gates_pass(pod: Object) -> bool:
    known = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions", [])}
    gates = pod["spec"].get("readinessGates", [])
    return all(known.get(gate["conditionType"]) == "True" for gate in gates)


def _why_unready(containers_ready: bool) -> str:
    return "ReadinessGatesNotReady" if containers_ready else "ContainersNotReady"


def _conditions(pod: Object, wanted: Mapping[str, tuple[bool, str]], now: float) -> list[Object]:
    """Ours, in the form of a strategic merge patch: others' conditions are left alone."""
    known = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
    result = []
    for kind in _OURS:
        value, reason = wanted[kind]
        status = "True" if value else "False"
        before = known.get(kind, {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        condition = {
            "type": kind,
            "status": status,
            "reason": reason or None,
            "lastTransitionTime": since or timestamp(now),
            "observedGeneration": pod["metadata"].get("generation"),
        }
        result.append(condition)
    return result


def _container_status(pod: Object, item: Object, view: ContainerView, initialized: bool) -> Object:
    status: Object = {
        "name": item["name"],
        "image": item["image"],
        "imageID": f"process://{repository(item['image'])}" if view.attempt else "",
        "ready": view.ready,
        "started": view.started,
        "restartCount": view.restarts,
        "state": _state(pod, item, view, initialized),
        "lastState": {},
    }
    if view.attempt:
        status["containerID"] = _container_id(pod, item, view.attempt)
    if view.last_exit is not None:
        before = view.attempt if view.phase is not Phase.RUNNING else view.attempt - 1
        status["lastState"] = {"terminated": _terminated(pod, item, view.last_exit, before)}
    return status


def _state(pod: Object, item: Object, view: ContainerView, initialized: bool) -> Object:
    if view.phase is Phase.RUNNING:
        return {"running": {"startedAt": timestamp(view.started_at)}}
    if view.phase is Phase.TERMINATED and view.exit is not None:
        ended = _terminated(pod, item, view.exit, view.attempt)
        ended["reason"] = view.reason
        if view.message:
            ended["message"] = view.message
        return {"terminated": ended}
    reason = view.reason if initialized or view.attempt else "PodInitializing"
    waiting = {"reason": reason}
    if view.message:
        waiting["message"] = view.message
    return {"waiting": waiting}


def _terminated(pod: Object, item: Object, ended: Exit, attempt: int) -> Object:
    state: Object = {
        "exitCode": ended.code,
        "reason": "Completed" if ended.code == 0 else "Error",
        "startedAt": timestamp(ended.started),
        "finishedAt": timestamp(ended.finished),
        "containerID": _container_id(pod, item, attempt),
    }
    if ended.signal:
        state["signal"] = ended.signal
    return state


def _container_id(pod: Object, item: Object, attempt: int) -> str:
    return f"process://{uid_of(pod)}/{item['name']}/{attempt}"
