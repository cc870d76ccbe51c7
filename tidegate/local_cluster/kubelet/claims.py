"""PersistentVolumeClaims: the kubelet is the cluster's storage as well, a folder for each volume.

There is one StorageClass, `local`, the default. A claim of it gets a volume: a folder in the
kubelet's state and a PersistentVolume that points there, made for this claim alone. The real
controllers do the rest: they bind the two, keep a claim that a pod uses, and release the volume
when the claim is gone, whose folder is then removed. The scheduler waits for claims as everywhere.
Sizes and access modes are written down and not enforced.
"""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

from tidegate.local_cluster.kubelet.api import Api, ApiError, Informer, Object, Unreachable

log = logging.getLogger(__name__)

STORAGE_CLASS = "local"
PROVISIONER = "tidegate.io/process-kubelet"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": STORAGE_CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}
_RETRY_SECONDS = 1.0


class ClaimProvisioner:
    """Makes volumes for claims and removes those released; `run` is its loop."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._changed = asyncio.Event()
        self._claims = Informer(api, "/api/v1/persistentvolumeclaims", self._on_change)
        self._volumes = Informer(api, "/api/v1/persistentvolumes", self._on_change)

    async def run(self) -> None:
        """Until cancelled; what fails is tried again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run())
            group.create_task(self._volumes.run())
            group.create_task(self._follow())

    def _on_change(self, item: Object, deleted: bool) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        await self._claims.synced.wait()
        await self._volumes.synced.wait()
        self._changed.set()
        has_class = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if not has_class:
                    await self._create("/apis/storage.k8s.io/v1/storageclasses", _CLASS)
                    has_class = True
                await self._sync()
            except (ApiError, Unreachable, OSError) as error:
                log.warning("volumes: %s; trying again", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._changed.set()

    async def _sync(self) -> None:
        made = {volume["metadata"]["name"] for volume in self._volumes.objects.values()}
        for claim in list(self._claims.objects.values()):
            spec = claim["spec"]
            ours = spec.get("storageClassName") == STORAGE_CLASS and not spec.get("volumeName")
            if ours and _volume_name(claim) not in made:
                await self._make(claim)
        for volume in list(self._volumes.objects.values()):
            if _is_released(volume):
                await self._remove(volume)

    async def _make(self, claim: Object) -> None:
        metadata, spec, name = claim["metadata"], claim["spec"], _volume_name(claim)
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        volume: Object = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": STORAGE_CLASS,
                "hostPath": {"path": str(folder)},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        await self._create("/api/v1/persistentvolumes", volume)

    async def _remove(self, volume: Object) -> None:
        name = volume["metadata"]["name"]
        shutil.rmtree(self._folder / name, ignore_errors=True)
        with contextlib.suppress(ApiError):  # gone already
            await self._api.delete(f"/api/v1/persistentvolumes/{name}", {})

    async def _create(self, path: str, body: Object) -> None:
        try:
            await self._api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise


def folder_of(volume: Object) -> Path | None:
    """Where a PersistentVolume is on this machine; None where it is none of its folders."""
    spec = volume["spec"]
    source = spec.get("hostPath") or spec.get("local")
    return Path(source["path"]) if source else None


def _volume_name(claim: Object) -> str:
    return f"pvc-{claim['metadata']['uid']}"


def _is_released(volume: Object) -> bool:
    annotations = volume["metadata"].get("annotations", {})
    return (
        annotations.get(_PROVISIONED_BY) == PROVISIONER
        and volume.get("status", {}).get("phase") == "Released"
        and not volume["metadata"].get("deletionTimestamp")
    )
