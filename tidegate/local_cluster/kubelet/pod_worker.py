"""One pod's life on this node, from binding to deletion.

    volumes -> init containers in order -> main containers -> (deleted) -> all end -> object deleted

Everything a restart of the kubelet needs is in the pod's folder and in the pod's own status; a
worker for a pod that runs already goes through the same steps and finds each one done. The status
is written by one task, only when it differs from what was written last.
"""

import asyncio
import contextlib
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidegate.local_cluster.files import read_json, write_json
from tidegate.local_cluster.kubelet import pods
from tidegate.local_cluster.kubelet.api import STRATEGIC_PATCH, ApiError, Object, Unreachable
from tidegate.local_cluster.kubelet.container_worker import ContainerHost, ContainerWorker
from tidegate.local_cluster.kubelet.downward import MissingReference, PodAddresses
from tidegate.local_cluster.kubelet.environment import (
    Surroundings,
    command_line,
    container_environment,
)
from tidegate.local_cluster.kubelet.images import Image
from tidegate.local_cluster.kubelet.node_context import NodeContext
from tidegate.local_cluster.kubelet.pod_status import (
    Placement,
    pod_status,
    terminal_status,
)
from tidegate.local_cluster.kubelet.runtime import kill_containers
from tidegate.local_cluster.kubelet.volumes import MEMORY_ROOT, PodVolumes

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class PodWorker:
    """Runs one pod. The manager calls `update` with each newer version of the object."""

    def __init__(self, pod: Object, node: NodeContext) -> None:
        self.pod = pod
        self._node = node
        self.folder = node.settings.pods_folder / pods.uid_of(pod)
        self._deleted = asyncio.Event()
        self._gone = False
        self._dirty = asyncio.Event()
        self._waiting_for = ""
        self._written: Object = {}
        known = read_json(self.folder / "pod.json") or {}
        self._placement = self._place(known)
        self._volumes = PodVolumes(
            pod,
            self.folder / "volumes",
            MEMORY_ROOT / f"tidegate-{pods.uid_of(pod)}",
            node.api,
            self._read,
        )
        host = self._container_host()
        spec = pod["spec"]
        self._inits = [
            ContainerWorker(item, self._container_folder(item), host, init=True)
            for item in spec.get("initContainers", [])
        ]
        self._mains = [
            ContainerWorker(item, self._container_folder(item), host) for item in spec["containers"]
        ]
        self._take_over()
        if pods.is_terminating(pod):
            self._deleted.set()

    def update(self, pod: Object) -> None:
        self.pod = pod
        self._dirty.set()
        if pods.is_terminating(pod):
            self._deleted.set()

    def object_is_gone(self) -> None:
        """The object was deleted without grace: end everything now."""
        self._gone = True
        self._deleted.set()
        for worker in [*self._mains, *self._inits]:
            worker.kill()

    async def run(self) -> None:
        """Until the pod is deleted and nothing of it is left. Cancelled: leaves all running."""
        self._remember()
        writer = asyncio.create_task(self._write_statuses())
        life = asyncio.create_task(self._live())
        deleted = asyncio.create_task(self._deleted.wait())
        tasks = [writer, life, deleted]
        try:
            await asyncio.wait([life, deleted], return_when=asyncio.FIRST_COMPLETED)
            if not self._deleted.is_set():
                life.result()
                await deleted
            await self._end_all(self._deadline())
            # Every container has ended; its worker needs a moment to see it.
            await asyncio.wait([life], timeout=5)
            await _cancel([writer])
            await self._delete_object()
            self._clean_up()
        finally:
            await _cancel(tasks)

    async def shut_down(self) -> None:
        """Ends the containers but keeps the pod, as when a node is switched off."""
        await self._end_all(time.monotonic() + min(5.0, pods.grace_seconds(self.pod)))

    def ports_of(self, port: int | str) -> list[int]:
        """The numbers of a port of this pod, by number or by name (any container's)."""
        numbers = []
        for item in self.pod["spec"]["containers"]:
            with contextlib.suppress(ValueError):
                numbers.append(pods.port_number(item, port))
        return numbers

    def write_hosts(self) -> None:
        """Brings the pod's /etc/hosts up to date in place: it is bound into the containers."""
        ip = self._placement.pod_ip
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{ip} {self._full_hostname()}"]
        for alias in self.pod["spec"].get("hostAliases", []):
            lines.append(f"{alias['ip']} {' '.join(alias.get('hostnames', []))}")
        lines += self._node.hosts_lines(self.pod["metadata"]["namespace"])
        content = "\n".join(lines) + "\n"
        file = self.folder / "hosts"
        if not file.exists() or file.read_text() != content:
            # Same inode, one write: a rename would leave the containers with the old file.
            with file.open("r+" if file.exists() else "w") as output:
                output.write(content)
                output.truncate()

    async def _live(self) -> None:
        """The pod's life until all its main containers are over."""
        if pods.is_finished(self.pod):
            return
        if not await self._make_volumes():
            return
        refresher = asyncio.create_task(self._refresh_volumes())
        running: list[asyncio.Task[Any]] = [refresher]
        try:
            for worker in self._inits:
                task = asyncio.create_task(worker.run())
                if worker.sidecar:
                    running.append(task)
                    await worker.ready_or_done.wait()
                    continue
                ended = await task
                if ended is None or ended.code != 0:
                    return
            mains = [asyncio.create_task(worker.run()) for worker in self._mains]
            running += mains
            await asyncio.gather(*mains)
            if not self._deleted.is_set():
                deadline = time.monotonic() + pods.grace_seconds(self.pod)
                await self._end_sidecars(deadline)
        finally:
            await _cancel(running)
            self._dirty.set()

    async def _make_volumes(self) -> bool:
        """Retries until every volume is there; False when the pod is deleted meanwhile."""
        while not self._deleted.is_set():
            try:
                await self._volumes.refresh(self._surroundings())
            except (MissingReference, ApiError, Unreachable) as error:
                self._waiting_for = str(error)
                self._record("Warning", "FailedMount", f"MountVolume failed: {error}")
                self._dirty.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await self._deleted.wait()
                continue
            self._waiting_for = ""
            self.write_hosts()
            return True
        return False

    async def _refresh_volumes(self) -> None:
        while True:
            await asyncio.sleep(self._node.settings.volume_refresh_seconds)
            try:
                await self._volumes.refresh(self._surroundings())
            except (MissingReference, ApiError, Unreachable) as error:
                log.debug("%s: volumes stay as they are: %s", pods.key_of(self.pod), error)

    async def _end_all(self, deadline: float) -> None:
        """Signals every main container at once, then the sidecars, last started first."""
        plain = [worker for worker in self._inits if not worker.sidecar]
        hooks = not self._gone
        await asyncio.gather(
            *(worker.stop(deadline, hooks=hooks) for worker in [*plain, *self._mains])
        )
        await self._end_sidecars(deadline)

    async def _end_sidecars(self, deadline: float) -> None:
        for worker in reversed(self._inits):
            if worker.sidecar:
                await worker.stop(deadline, hooks=not self._gone)

    def _deadline(self) -> float:
        grace = 0.0 if self._gone else pods.grace_seconds(self.pod)
        return time.monotonic() + grace

    async def _write_statuses(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if not self._gone and not await self._write_status(self._status()):
                await asyncio.sleep(_RETRY_SECONDS)
                self._dirty.set()

    def _status(self) -> Object:
        views = {worker.name: worker.view for worker in [*self._inits, *self._mains]}
        return pod_status(
            self.pod, views, self._placement, time.time(), waiting_for=self._waiting_for
        )

    async def _write_status(self, status: Object) -> bool:
        """Writes the status if it says something new; False when it should be tried again."""
        if _same(status, self._written) or pods.is_finished(self.pod):
            return True
        try:
            path = f"{pods.path_of(self.pod)}/status"
            body = {"metadata": {"uid": pods.uid_of(self.pod)}, "status": status}
            await self._node.api.patch(path, body, STRATEGIC_PATCH)
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("status of %s: %s", pods.key_of(self.pod), error)
            return error.status in (404, 409, 422)
        except Unreachable:
            return False
        self._written = status
        return True

    async def _delete_object(self) -> None:
        """The last status, then the deletion that the API server waits for."""
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pods.uid_of(self.pod)},
        }
        while not self._gone:
            try:
                status = self._status()
                if not pods.is_finished(self.pod) and status["phase"] not in (
                    "Succeeded",
                    "Failed",
                ):
                    status = terminal_status(self.pod, status)
                if await self._write_status(status):
                    await self._node.api.delete(pods.path_of(self.pod), body)
                    return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                log.warning("deleting %s: %s", pods.key_of(self.pod), error)
            except Unreachable:
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    def _clean_up(self) -> None:
        kill_containers(self.folder)
        self._volumes.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._node.addresses.release(self._placement.pod_ip)
        self._node.events.forget(self.pod)

    def _place(self, known: Object) -> Placement:
        """The pod's address: the one it had, so that what runs keeps it, or a free one."""
        addresses = self._node.addresses
        for had in (self.pod.get("status", {}).get("podIP"), known.get("pod_ip")):
            if had and addresses.claim(had):
                return Placement(
                    had, self._node.settings.node_ip, known.get("started", time.time())
                )
        started = known.get("started", time.time())
        return Placement(addresses.take(), self._node.settings.node_ip, started)

    def _remember(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = self.pod["metadata"]
        write_json(
            self.folder / "pod.json",
            {
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "pod_ip": self._placement.pod_ip,
                "started": self._placement.started,
            },
        )
        self._dirty.set()

    def _take_over(self) -> None:
        status = self.pod.get("status", {})
        known = {
            item["name"]: item
            for part in ("initContainerStatuses", "containerStatuses")
            for item in status.get(part, [])
        }
        for worker in [*self._inits, *self._mains]:
            worker.take_over(known.get(worker.name, {}))

    def _container_folder(self, item: Object) -> Path:
        return self.folder / "containers" / str(item["name"])

    def _container_host(self) -> ContainerHost:
        return ContainerHost(
            pod_ip=self._placement.pod_ip,
            restart_policy=self.pod["spec"].get("restartPolicy", "Always"),
            grace_seconds=lambda: pods.grace_seconds(self.pod),
            resolve=lambda item: self._node.images.find(item["image"]),
            prepare=self._prepare,
            record=self._record,
            on_change=self._dirty.set,
            backoff=self._node.settings.backoff,
        )

    async def _prepare(self, item: Object, image: Image, folder: Path) -> Object:
        """What the shim has to do for one container."""
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        programs = folder / "programs"
        image.install_programs(programs)
        environment = await container_environment(
            self.pod, item, image, self._surroundings(), home, programs, self._read
        )
        hosts = {"path": "/etc/hosts", "source": str(self.folder / "hosts"), "read_only": False}
        return {
            "argv": command_line(item, image, environment),
            "environment": environment,
            "directory": item.get("workingDir") or "/",
            "hostname": self._hostname(),
            "mounts": [hosts, *self._volumes.mounts(item, environment)],
            "kept": _needed_folders(home, programs),
        }

    def _surroundings(self) -> Surroundings:
        server = urlsplit(self._node.api.server)
        return Surroundings(
            PodAddresses(self._placement.pod_ip, self._placement.host_ip),
            self._hostname(),
            server.hostname or "127.0.0.1",
            server.port or 443,
            self._node.resources,
        )

    def _hostname(self) -> str:
        return str(self.pod["spec"].get("hostname") or self.pod["metadata"]["name"])[:63]

    def _full_hostname(self) -> str:
        subdomain = self.pod["spec"].get("subdomain")
        if not subdomain:
            return self._hostname()
        domain = f"{subdomain}.{self.pod['metadata']['namespace']}.svc.cluster.local"
        return f"{self._hostname()}.{domain} {self._hostname()}"

    async def _read(self, plural: str, name: str) -> Object | None:
        namespace = self.pod["metadata"]["namespace"]
        try:
            return await self._node.api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _record(self, kind: str, reason: str, message: str) -> None:
        self._node.events.record(self.pod, kind, reason, message)


def _needed_folders(*own: Path) -> list[str]:
    """Folders of the machine that a container needs even where a volume covers their parent."""
    roots = {sys.prefix, sys.base_prefix, *map(str, own)}
    roots |= {path for path in sys.path if Path(path).is_dir()}
    return sorted(roots)


def _same(status: Object, written: Object) -> bool:
    """Whether two statuses say the same; times of a condition that did not change do not count."""
    return _without_times(status) == _without_times(written)


def _without_times(status: Object) -> Object:
    conditions = [
        {key: value for key, value in item.items() if key != "lastTransitionTime"}
        for item in status.get("conditions", [])
    ]
    return {**status, "conditions": conditions}


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
