"""A container's environment and command line."""

import base64
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.local_cluster.kubelet.api import Object
from tidegate.local_cluster.kubelet.downward import (
    MissingReference,
    PodAddresses,
    field_value,
    resource_value,
)
from tidegate.local_cluster.kubelet.expansion import expand
from tidegate.local_cluster.kubelet.images import Image

Read = Callable[[str, str], Awaitable[Object | None]]
"""(plural kind, name) -> the object of that name in the pod's namespace, or None."""

_FROM_THE_MACHINE = ("LANG", "LC_ALL", "PYTHONPATH", "SSL_CERT_FILE", "TZ", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every container of a pod is told besides its own spec."""

    addresses: PodAddresses
    hostname: str
    api_host: str
    api_port: int
    node_resources: Object = field(default_factory=dict)


async def container_environment(
    pod: Object,
    container: Object,
    image: Image,
    around: Surroundings,
    home: Path,
    programs: Path,
    read: Read,
) -> dict[str, str]:
    """The environment of one container. Raises MissingReference where a reference is dangling.

    `home`: its $HOME; `programs`: the folder of what its image has on the PATH.
    """
    search = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    values = {name: os.environ[name] for name in _FROM_THE_MACHINE if name in os.environ}
    values |= {
        # Before the machine's, so that `python3` is the one that has the project's packages.
        "PATH": f"{programs}:{Path(sys.executable).parent}:{search}",
        "HOME": str(home),
        "HOSTNAME": around.hostname,
        "KUBERNETES_SERVICE_HOST": around.api_host,
        "KUBERNETES_SERVICE_PORT": str(around.api_port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(around.api_port),
        **image.environment,
    }
    for source in container.get("envFrom", []):
        values |= await _all_of(source, read)
    for entry in container.get("env", []):
        if (origin := entry.get("valueFrom")) is None:
            values[entry["name"]] = expand(entry.get("value", ""), values)
        elif (value := await _value_from(origin, pod, container, around, read)) is not None:
            values[entry["name"]] = value
    return values


def command_line(container: Object, image: Image, environment: dict[str, str]) -> list[str]:
    """What the container runs: command or entrypoint, then args, with $(VAR) put in."""
    command, args = (
        [expand(word, environment) for word in container.get(part, [])]
        for part in ("command", "args")
    )
    return image.argv(command, args)


async def _all_of(source: Object, read: Read) -> dict[str, str]:
    secret = "secretRef" in source
    reference = source["secretRef" if secret else "configMapRef"]
    item = await read("secrets" if secret else "configmaps", reference["name"])
    if item is None:
        if reference.get("optional"):
            return {}
        kind = "secret" if secret else "configmap"
        raise MissingReference(f'{kind} "{reference["name"]}" not found')
    prefix = source.get("prefix", "")
    return {prefix + key: _text(item, key, secret) for key in item.get("data", {})}


async def _value_from(
    origin: Object, pod: Object, container: Object, around: Surroundings, read: Read
) -> str | None:
    """One valueFrom; None where it is optional and not there."""
    if (reference := origin.get("fieldRef")) is not None:
        return field_value(pod, reference["fieldPath"], around.addresses)
    if (reference := origin.get("resourceFieldRef")) is not None:
        return resource_value(pod, container, reference, around.node_resources)
    for part, plural, kind in (
        ("configMapKeyRef", "configmaps", "configmap"),
        ("secretKeyRef", "secrets", "secret"),
    ):
        if (reference := origin.get(part)) is None:
            continue
        name, key = reference["name"], reference["key"]
        item = await read(plural, name)
        if item is not None and key in item.get("data", {}):
            return _text(item, key, plural == "secrets")
        if reference.get("optional"):
            return None
        if item is None:
            raise MissingReference(f'{kind} "{name}" not found')
        raise MissingReference(f"couldn't find key {key} in {kind} {name}")
    raise MissingReference(f"valueFrom {', '.join(origin)} is not supported")


def _text(item: Object, key: str, encoded: bool) -> str:
    value = str(item["data"][key])
    return base64.b64decode(value).decode() if encoded else value
