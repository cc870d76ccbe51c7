"""The kubelet as the cluster's storage: what it makes for a claim, and what it removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.local_cluster.kubelet.api import ApiError
from tidegate.local_cluster.kubelet.claims import ClaimProvisioner, folder_of

Object = dict[str, Any]


class Recorder:
    """Takes what is created and deleted."""

    def __init__(self) -> None:
        self.created: list[Object] = []
        self.deleted: list[str] = []

    async def create(self, path: str, body: Object) -> Object:
        if any(made["metadata"]["name"] == body["metadata"]["name"] for made in self.created):
            raise ApiError(409, "AlreadyExists", "")
        self.created.append(body)
        return body

    async def delete(self, path: str, body: Object) -> Object:
        self.deleted.append(path)
        return {}


def is_folder(path: Path) -> bool:
    return path.is_dir()


def claim(uid: str, **spec: Any) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"namespace": "n", "name": "c", "uid": uid},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "resources": resources,
            **spec,
        },
    }


async def sync(provisioner: ClaimProvisioner, claims: list[Object], volumes: list[Object]) -> None:
    provisioner._claims.objects = {str(n): item for n, item in enumerate(claims)}
    provisioner._volumes.objects = {str(n): item for n, item in enumerate(volumes)}
    await provisioner._sync()


async def test_a_claim_gets_one_folder_that_goes_when_it_is_released(tmp_path: Path) -> None:
    api = Recorder()
    provisioner = ClaimProvisioner(api, tmp_path)  # type: ignore[arg-type]
    await sync(provisioner, [claim("u")], [])
    await sync(provisioner, [claim("u")], [])
    (volume,) = api.created
    assert volume["spec"]["claimRef"]["uid"] == "u"
    folder = folder_of(volume)
    assert folder is not None
    assert is_folder(folder)
    await sync(provisioner, [claim("u", volumeName="pvc-u")], [volume])
    assert api.deleted == []
    await sync(provisioner, [], [volume | {"status": {"phase": "Released"}}])
    assert api.deleted == ["/api/v1/persistentvolumes/pvc-u"]
    assert not is_folder(folder)


async def test_other_storage_is_left_alone(tmp_path: Path) -> None:
    api = Recorder()
    provisioner = ClaimProvisioner(api, tmp_path)  # type: ignore[arg-type]
    foreign = {
        "metadata": {"name": "pv"},
        "spec": {"hostPath": {"path": str(tmp_path)}},
        "status": {"phase": "Released"},
    }
    await sync(provisioner, [claim("u", storageClassName="other")], [foreign])
    assert (api.created, api.deleted) == ([], [])
    assert is_folder(tmp_path)
