"""The downward API: what a container may learn about its own pod."""

import json
import re
from dataclasses import dataclass

from tidegate.local_cluster.kubelet import quantity
from tidegate.local_cluster.kubelet.api import Object

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


class MissingReference(Exception):
    """Something that a pod refers to is not there, or has not the form it needs."""


@dataclass(frozen=True, slots=True)
class PodAddresses:
    """Where a pod is: its own address and the node's."""

    pod_ip: str
    host_ip: str


def field_value(pod: Object, path: str, addresses: PodAddresses) -> str:
    """The value of a fieldRef. Raises MissingReference for a path that Kubernetes has not."""
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _KEYED.fullmatch(path):
        return str(metadata.get(match[1], {}).get(match[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": addresses.pod_ip,
        "status.podIPs": addresses.pod_ip,
        "status.hostIP": addresses.host_ip,
        "status.hostIPs": addresses.host_ip,
    }
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f"{key}={json.dumps(pairs[key])}" for key in sorted(pairs))
    if path not in values:
        raise MissingReference(f"fieldPath {path} is not supported")
    return str(values[path])


def resource_value(pod: Object, container: Object, reference: Object, node: Object) -> str:
    """The value of a resourceFieldRef; an unset limit is what the node has, as in Kubernetes."""
    name = reference.get("containerName")
    if name is not None:
        named = [item for item in pod["spec"]["containers"] if item["name"] == name]
        if not named:
            raise MissingReference(f"resourceFieldRef names no container {name!r}")
        container = named[0]
    section, _, resource = str(reference["resource"]).partition(".")
    resources = container.get("resources", {})
    value = resources.get(section, {}).get(resource)
    if value is None and section == "limits":
        value = node.get(resource)
    try:
        return str(quantity.divide(str(value or "0"), str(reference.get("divisor", "1"))))
    except ValueError as error:
        raise MissingReference(str(error)) from error
