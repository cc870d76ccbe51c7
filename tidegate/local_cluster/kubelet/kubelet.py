"""The kubelet: watches the pods of its node and the Services, and keeps a worker for each pod.
It is the cluster's load balancer (`services`) and storage (`claims`) as well.

SIGKILL leaves the containers running for the next kubelet to take over. SIGTERM ends them, as a
node that is switched off does, and keeps the pods: they start again when the kubelet is back.
"""

import asyncio
import contextlib
import logging
import shutil
import signal
from pathlib import Path
from typing import Any

from aiohttp import web

from tidegate.local_cluster.kubelet import log_server, node, pods
from tidegate.local_cluster.kubelet.api import Api, Informer, Object
from tidegate.local_cluster.kubelet.claims import ClaimProvisioner
from tidegate.local_cluster.kubelet.events import EventRecorder
from tidegate.local_cluster.kubelet.images import ImageTable
from tidegate.local_cluster.kubelet.node_context import (
    KubeletSettings,
    NodeContext,
    PodAddressPool,
)
from tidegate.local_cluster.kubelet.pod_worker import PodWorker
from tidegate.local_cluster.kubelet.runtime import kill_containers
from tidegate.local_cluster.kubelet.services import ServiceProxies, hosts_lines

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Kubelet:
    """One node's kubelet. `run` returns after SIGTERM or SIGINT."""

    def __init__(self, settings: KubeletSettings, api: Api) -> None:
        self._settings = settings
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._network_changed = asyncio.Event()
        self._pods = Informer(
            api,
            "/api/v1/pods",
            self._on_pod,
            {"fieldSelector": f"spec.nodeName={settings.node_name}"},
        )
        self._services = Informer(api, "/api/v1/services", self._on_service)
        self._proxies = ServiceProxies(api, settings.state / "service-ports.json", self._list_pods)
        self._claims = ClaimProvisioner(api, settings.state / "volumes")
        self._events = EventRecorder(api, settings.node_name)
        self._api = api
        self._node = NodeContext(
            settings=settings,
            api=api,
            images=ImageTable(settings.image_files),
            events=self._events,
            addresses=PodAddressPool(settings.pod_range),
            hosts_lines=self._hosts_lines,
            resources=node.RESOURCES,
        )

    async def run(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        runner = await self._serve_logs()
        background: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._pods.run()),
            asyncio.create_task(self._services.run()),
            asyncio.create_task(self._events.run()),
            asyncio.create_task(self._follow_network()),
            asyncio.create_task(self._claims.run()),
            asyncio.create_task(self._start()),
        ]
        stop = asyncio.create_task(stopping.wait())
        done, _ = await asyncio.wait([*background[:5], stop], return_when=asyncio.FIRST_COMPLETED)
        log.info("ending %d pods", len(self._workers))
        await asyncio.gather(*(worker.shut_down() for worker in self._workers.values()))
        await self._proxies.close()
        tasks = [*self._tasks.values(), *background, stop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        for task in done - {stop}:
            task.result()

    async def _start(self) -> None:
        """Registers the node once the pods that run already were taken over."""
        await self._pods.synced.wait()
        self._remove_orphans()
        await self._services.synced.wait()
        await node.register(self._api, self._settings)
        log.info("node %s is ready", self._settings.node_name)

    def _remove_orphans(self) -> None:
        """Ends what is left of pods that were deleted while no kubelet ran."""
        for folder in self._settings.pods_folder.iterdir():
            if folder.name not in self._pods.objects:
                kill_containers(folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _on_pod(self, pod: Object, deleted: bool) -> None:
        uid = pods.uid_of(pod)
        worker = self._workers.get(uid)
        if deleted:
            if worker is not None:
                worker.object_is_gone()
        elif worker is not None:
            worker.update(pod)
        else:
            worker = self._workers[uid] = PodWorker(pod, self._node)
            self._tasks[uid] = asyncio.create_task(self._run_worker(uid, worker))
        self._network_changed.set()

    async def _run_worker(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            # A bug in one pod's worker must not take the others' along.
            log.exception("worker of %s failed", pods.key_of(worker.pod))
            await asyncio.sleep(_RETRY_SECONDS)
        del self._workers[uid], self._tasks[uid]
        if (pod := self._pods.objects.get(uid)) is not None and not pods.is_terminating(pod):
            self._on_pod(pod, False)

    def _on_service(self, service: Object, deleted: bool) -> None:
        self._network_changed.set()

    async def _follow_network(self) -> None:
        """Keeps proxies and hosts files in step with Services and pods."""
        await self._pods.synced.wait()
        await self._services.synced.wait()
        while True:
            await self._network_changed.wait()
            self._network_changed.clear()
            try:
                await self._proxies.sync(list(self._services.objects.values()))
                for worker in self._workers.values():
                    if worker.folder.exists():
                        worker.write_hosts()
            except OSError as error:
                log.warning("services: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._network_changed.set()

    def _list_pods(self) -> list[Object]:
        return list(self._pods.objects.values())

    def _hosts_lines(self, namespace: str) -> list[str]:
        return hosts_lines(list(self._services.objects.values()), self._list_pods(), namespace)

    def _find_folder(self, namespace: str, name: str) -> Path | None:
        for worker in self._workers.values():
            if pods.key_of(worker.pod) == f"{namespace}/{name}":
                return worker.folder
        return None

    async def _serve_logs(self) -> web.AppRunner:
        runner = web.AppRunner(
            log_server.application(self._find_folder), access_log=None, shutdown_timeout=1
        )
        await runner.setup()
        address, port = self._settings.node_ip, self._settings.port
        context = log_server.server_context(address)
        await web.TCPSite(runner, address, port, ssl_context=context).start()
        return runner


async def run_kubelet(settings: KubeletSettings) -> None:
    """Runs a kubelet until it is told to end."""
    settings.pods_folder.mkdir(parents=True, exist_ok=True)
    async with Api.from_kubeconfig(settings.kubeconfig) as api:
        with contextlib.suppress(asyncio.CancelledError):
            await Kubelet(settings, api).run()
