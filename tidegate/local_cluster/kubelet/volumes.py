"""A pod's volumes: made before its containers start, refreshed while they run.

ConfigMap, Secret, projected and downward API volumes are atomic folders (`atomic_volume`), read
again every refresh period as a kubelet does; a file that has vanished from the API since stays as
it was. emptyDirs are plain folders, on the machine's memory file system for `medium: Memory`. A
persistentVolumeClaim is the folder of the volume that it is bound to (`claims`).
"""

import base64
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tidegate.local_cluster.kubelet import atomic_volume
from tidegate.local_cluster.kubelet.api import Api, Object
from tidegate.local_cluster.kubelet.atomic_volume import Payload
from tidegate.local_cluster.kubelet.claims import folder_of
from tidegate.local_cluster.kubelet.downward import MissingReference, field_value, resource_value
from tidegate.local_cluster.kubelet.environment import Read, Surroundings
from tidegate.local_cluster.kubelet.expansion import expand

MEMORY_ROOT = Path("/dev/shm")
_ATOMIC = ("configMap", "secret", "projected", "downwardAPI")


@dataclass(slots=True)
class _Token:
    value: str
    renew_at: float


class PodVolumes:
    """The volumes of one pod, in `folder` (one entry each) and, for memory, in `memory_folder`."""

    def __init__(
        self, pod: Object, folder: Path, memory_folder: Path, api: Api, read: Read
    ) -> None:
        self._pod = pod
        self._folder = folder
        self._memory_folder = memory_folder
        self._api = api
        self._read = read
        self._tokens: dict[tuple[str, int], _Token] = {}
        self._claims: dict[str, Path] = {}
        """Folders of claims, by the name of the pod's volume."""

    async def refresh(self, around: Surroundings) -> None:
        """Makes every volume, or brings it up to date. Raises MissingReference, ApiError."""
        for volume in self._pod["spec"].get("volumes", []):
            kind = next((key for key in volume if key != "name"), "emptyDir")
            if kind == "emptyDir":
                path = self._path(volume)
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
            elif kind == "persistentVolumeClaim":
                if volume["name"] not in self._claims:
                    claim = str(volume[kind]["claimName"])
                    self._claims[str(volume["name"])] = await self._claimed(claim)
            elif kind in _ATOMIC:
                files = await self._files(kind, volume[kind], around)
                atomic_volume.write(self._path(volume), files)
            else:
                raise MissingReference(
                    f"volume {volume['name']!r}: {kind} volumes are not supported here"
                )

    def mounts(self, container: Object, environment: dict[str, str]) -> list[Object]:
        """What the shim puts where for one container."""
        by_name = {volume["name"]: volume for volume in self._pod["spec"].get("volumes", [])}
        result: list[Object] = []
        for mount in container.get("volumeMounts", []):
            volume = by_name[mount["name"]]
            source = self._path(volume)
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr", ""), environment)
            if sub_path:
                source = self._sub_path(source, sub_path, _is_writable(volume))
            read_only = not _is_writable(volume) or bool(mount.get("readOnly"))
            entry = {"path": mount["mountPath"], "source": str(source), "read_only": read_only}
            result.append(entry)
        return result

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._memory_folder, ignore_errors=True)

    async def _claimed(self, name: str) -> Path:
        """The folder behind a claim."""
        claim = await self._read("persistentvolumeclaims", name)
        if claim is None:
            raise MissingReference(f'persistentvolumeclaim "{name}" not found')
        bound = claim["spec"].get("volumeName")
        if not bound:
            raise MissingReference(f'persistentvolumeclaim "{name}" is not bound')
        folder = folder_of(await self._api.get(f"/api/v1/persistentvolumes/{bound}"))
        if folder is None or not folder.is_dir():
            raise MissingReference(f"persistent volume {bound!r} is no folder of this machine")
        return folder

    def _path(self, volume: Object) -> Path:
        if (claimed := self._claims.get(str(volume["name"]))) is not None:
            return claimed
        in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        return (self._memory_folder if in_memory else self._folder) / str(volume["name"])

    @staticmethod
    def _sub_path(volume: Path, sub_path: str, create: bool) -> Path:
        path = (volume / sub_path).resolve()
        if not path.is_relative_to(volume.resolve()):
            raise MissingReference(f"subPath {sub_path!r} leaves its volume")
        if create:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise MissingReference(f"subPath {sub_path!r} is not in its volume")
        return path

    async def _files(self, kind: str, source: Object, around: Surroundings) -> dict[str, Payload]:
        mode = int(source.get("defaultMode", 0o644))
        if kind != "projected":
            return await self._source_files(kind, source, mode, around)
        files: dict[str, Payload] = {}
        for part in source.get("sources", []):
            for part_kind, detail in part.items():
                files |= await self._source_files(part_kind, detail, mode, around)
        return files

    async def _source_files(
        self, kind: str, source: Object, mode: int, around: Surroundings
    ) -> dict[str, Payload]:
        if kind == "serviceAccountToken":
            token = await self._token(
                source.get("audience", ""), int(source.get("expirationSeconds", 3600))
            )
            return {source["path"]: Payload(token.encode(), mode)}
        if kind == "downwardAPI":
            return {
                item["path"]: Payload(
                    self._downward(item, around).encode(), int(item.get("mode", mode))
                )
                for item in source.get("items", [])
            }
        if kind in ("configMap", "secret"):
            return await self._object_files(kind, source, mode)
        raise MissingReference(f"projected source {kind} is not supported here")

    async def _object_files(self, kind: str, source: Object, mode: int) -> dict[str, Payload]:
        name = source.get("secretName") or source.get("name")
        item = await self._read("secrets" if kind == "secret" else "configmaps", str(name))
        if item is None:
            if source.get("optional"):
                return {}
            raise MissingReference(f'{kind.lower()} "{name}" not found')
        data = _decoded(kind, item)
        if "items" not in source:
            return {key: Payload(value, mode) for key, value in data.items()}
        files: dict[str, Payload] = {}
        for entry in source["items"]:
            if entry["key"] in data:
                payload = Payload(data[entry["key"]], int(entry.get("mode", mode)))
                files[entry["path"]] = payload
            elif not source.get("optional"):
                raise MissingReference(f'{kind.lower()} "{name}" has no key {entry["key"]!r}')
        return files

    def _downward(self, item: Object, around: Surroundings) -> str:
        if (reference := item.get("fieldRef")) is not None:
            return field_value(self._pod, reference["fieldPath"], around.addresses)
        reference = item["resourceFieldRef"]
        return resource_value(self._pod, {}, reference, around.node_resources)

    async def _token(self, audience: str, expiration_seconds: int) -> str:
        """A token bound to this pod; renewed when four fifths of its life are over."""
        kept = self._tokens.get((audience, expiration_seconds))
        if kept is not None and time.time() < kept.renew_at:
            return kept.value
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"]}
        request: Object = {
            "expirationSeconds": max(600, expiration_seconds),
            "boundObjectRef": bound | {"uid": metadata["uid"]},
        }
        if audience:
            request["audiences"] = [audience]
        account = spec.get("serviceAccountName", "default")
        answer = await self._api.create(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": request},
        )
        value = str(answer["status"]["token"])
        self._tokens[audience, expiration_seconds] = _Token(
            value, time.time() + 0.8 * request["expirationSeconds"]
        )
        return value


def _is_writable(volume: Object) -> bool:
    claim = volume.get("persistentVolumeClaim")
    return "emptyDir" in volume or (claim is not None and not claim.get("readOnly"))


def _decoded(kind: str, item: Object) -> dict[str, bytes]:
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in item.get("data", {}).items()}
    text = {key: value.encode() for key, value in item.get("data", {}).items()}
    binary = {key: base64.b64decode(value) for key, value in item.get("binaryData", {}).items()}
    return text | binary
