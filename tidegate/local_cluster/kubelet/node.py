"""The node object: registered once, then left alone.

Nothing runs that would expect a heartbeat (the node-lifecycle controller is off), so a quiet
cluster sees no write by the kubelet. The taint that admission gives a new node is removed here,
since the controller that would do it is off too.
"""

import asyncio
import logging
import os
import time

from tidegate.local_cluster.kubelet.api import STRATEGIC_PATCH, Api, ApiError, Object, Unreachable
from tidegate.local_cluster.kubelet.node_context import KubeletSettings
from tidegate.local_cluster.kubelet.pods import timestamp

log = logging.getLogger(__name__)

RESOURCES: Object = {
    "cpu": "64",
    "memory": "512Gi",
    "ephemeral-storage": "1Ti",
    "pods": "500",
}
"""What the scheduler may hand out, but for GPUs. Nothing is enforced: pods share the machine as it
is."""


async def register(api: Api, settings: KubeletSettings) -> None:
    """Creates the node or brings it up to date; tries until the API server takes it."""
    while True:
        try:
            await _register(api, settings)
            return
        except (ApiError, Unreachable) as error:
            log.warning("registering the node: %s; trying again", error)
            await asyncio.sleep(0.5)


async def _register(api: Api, settings: KubeletSettings) -> None:
    name = settings.node_name
    path = f"/api/v1/nodes/{name}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, ""),
        "nvidia.com/gpu.present": "true",
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    try:
        await api.create("/api/v1/nodes", node)
    except ApiError as error:
        if error.status != 409:
            raise
    await api.patch(f"{path}/status", {"status": _status(settings)}, STRATEGIC_PATCH)
    await api.patch(path, {"spec": {"taints": None}})


def _status(settings: KubeletSettings) -> Object:
    now = timestamp(time.time())
    machine = os.uname()
    resources = {**RESOURCES, "nvidia.com/gpu": str(settings.gpus)}
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "pods run as processes of this machine",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    return {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [condition],
        "addresses": [
            {"type": "InternalIP", "address": settings.node_ip},
            {"type": "Hostname", "address": settings.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": settings.port}},
        "nodeInfo": {
            "architecture": machine.machine,
            "bootID": "",
            "containerRuntimeVersion": "process://1",
            "kernelVersion": machine.release,
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.3-process",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "this machine",
            "systemUUID": "",
        },
    }
