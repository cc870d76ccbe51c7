"""A local cluster: a control plane and a kubelet as detached processes, with kept state.

    clusters/NAME/cluster.json       what was chosen at the first start: address ranges, settings
    clusters/NAME/programs           folder of its programs, where that is not the cache's
    clusters/NAME/*.kubeconfig, ...  the control plane's files (see control_plane.py)
    clusters/NAME/kubelet/           pods, local ports of Services
    clusters/NAME/logs/              a log for each process

Several clusters run beside each other: each has loopback ranges of its own (cluster 0: pods in
127.77/16, Services in 127.96/16; cluster i: 127.(77+i) and 127.(96+i)), kept for its whole life
since stored objects name addresses in them.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.local_cluster import credentials
from tidegate.local_cluster.binaries import Binaries, remember_binaries
from tidegate.local_cluster.control_plane import ComponentState, ControlPlane
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.files import read_json, remove_tree, write_json
from tidegate.local_cluster.kubelet.runtime import kill_containers
from tidegate.local_cluster.paths import cluster_directory
from tidegate.local_cluster.ports import bindable
from tidegate.local_cluster.processes import ProcessRecord, spawn_detached, tail, uninterrupted

KUBELET = "kubelet"
KUBELET_PORT = 10250
_RANGES = 19
_STOP_GRACE_SECONDS = 15.0
_KILLED_WITHIN_SECONDS = 5.0

_SERVICE_STATUS_ROLE: list[dict[str, Any]] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "local-cluster:service-proxy"},
        "rules": [
            {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch", "update"]},
            {
                "apiGroups": [""],
                "resources": ["persistentvolumeclaims"],
                "verbs": ["get", "list", "watch"],
            },
            {
                "apiGroups": [""],
                "resources": ["persistentvolumes"],
                "verbs": ["get", "list", "watch", "create", "delete"],
            },
            {
                "apiGroups": ["storage.k8s.io"],
                "resources": ["storageclasses"],
                "verbs": ["create"],
            },
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "local-cluster:service-proxy"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "local-cluster:service-proxy",
        },
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "User",
                "name": credentials.USERS[credentials.KUBELET][0],
            }
        ],
    },
]
"""What the kubelet may do beyond a node's rights: it is load balancer and storage too."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """Settings of the kubelet that a test or a user may want otherwise. Seconds."""

    volume_refresh_seconds: float = 2.0
    restart_backoff_seconds: float = 10.0
    gpus: int = 8
    """That the node says to have."""
    images: tuple[str, ...] = ()
    """Further image tables (TOML files), each winning over the ones before."""


class LocalCluster:
    """The cluster `name`. Cheap to make; `start` and `stop` act, everything else looks."""

    def __init__(
        self,
        name: str,
        binaries: Binaries,
        cache: Path,
        *,
        die_with_parent: bool = False,
        audited_readers: Sequence[str] = (),
    ):
        """`audited_readers`: users whose reads stand in the audit log too."""
        self.name = name
        self.state = cluster_directory(name, cache)
        self._cache = cache
        self.binaries = binaries
        self._die_with_parent = die_with_parent
        self._audited_readers = audited_readers
        self._kubelet_child: subprocess.Popen[bytes] | None = None
        self._plane: ControlPlane | None = None

    @property
    def exists(self) -> bool:
        return (self.state / "cluster.json").exists()

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    @property
    def control_plane(self) -> ControlPlane:
        if self._plane is None:
            self._plane = ControlPlane(
                self.state,
                self.binaries,
                service_cidr=f"127.{96 + self._index}.0.0/16",
                name=self.name if self.name == "tidegate" else f"tidegate-{self.name}",
                die_with_parent=self._die_with_parent,
                audited_readers=self._audited_readers,
            )
        return self._plane

    @property
    def running(self) -> bool:
        """Whether every part of it runs."""
        return self.exists and all(state.running for state in self.states())

    def kubectl(
        self, *arguments: str, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs kubectl as the administrator and returns what it said, whatever the exit status."""
        return self.control_plane.kubectl(*arguments, stdin=stdin)

    def start(
        self,
        options: KubeletOptions | None = None,
        on_step: Callable[[str], None] = lambda step: None,
        timeout_seconds: float = 90.0,
    ) -> None:
        """Starts what does not run yet; returns when the node is Ready. Raises LocalClusterError.

        `options`: None keeps those of the last start.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        remember_binaries(self.state, self.binaries, self._cache)
        with self._chosen_range(options):
            self.control_plane.prepare()
            for component in self.control_plane.components:
                on_step(f"starting {component}")
                self.control_plane.start_component(component, timeout_seconds)
            on_step("starting the kubelet")
            self._grant_service_status()
            self.start_kubelet()
            self._wait_for_node(time.monotonic() + timeout_seconds)

    def stop(self) -> None:
        """Ends every process of the cluster; what it stored is kept for the next start."""
        self.stop_kubelet()
        kill_containers(*self._pods.glob("*"))
        # Also where cluster.json, which says more of it, is missing or damaged.
        (self._plane or ControlPlane(self.state, self.binaries)).stop()

    def purge(self) -> None:
        """Ends the cluster and removes all it stored."""
        self.stop()
        for pod in self._pods.glob("*"):
            shutil.rmtree(Path("/dev/shm") / f"tidegate-{pod.name}", ignore_errors=True)
        if self.state.exists():
            remove_tree(self.state)
        self._lock.unlink(missing_ok=True)

    def start_kubelet(self) -> None:
        """Starts the kubelet, if it does not run. Containers of an earlier one are taken over."""
        record = self._kubelet_record()
        if record is not None and record.alive():
            return
        options = self._options()
        folder = self.state / "kubelet"
        folder.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "tidegate.local_cluster.kubelet",
            f"--kubeconfig={self.control_plane.kubeconfig_of(credentials.KUBELET)}",
            f"--state={folder}",
            f"--node-name={credentials.NODE_NAME}",
            f"--node-ip={self._node_ip}",
            f"--port={KUBELET_PORT}",
            f"--pod-range=127.{77 + self._index}.0.0/16",
            f"--volume-refresh-seconds={options.volume_refresh_seconds}",
            f"--restart-backoff-seconds={options.restart_backoff_seconds}",
            f"--gpus={options.gpus}",
            *(f"--images={table}" for table in options.images),
        ]
        with uninterrupted():
            record, self._kubelet_child = spawn_detached(
                command, self._log_of(KUBELET), die_with_parent=self._die_with_parent
            )
            write_json(self._kubelet_file, [record.pid, record.started_ticks])

    def stop_kubelet(self, *, kill: bool = False) -> None:
        """SIGTERM ends the containers with it; `kill` (SIGKILL) leaves them running."""
        record = self._kubelet_record()
        if record is not None:
            if kill:  # and no SIGTERM before, on which it would begin to end containers
                record.signal(signal.SIGKILL)
                record.wait(_KILLED_WITHIN_SECONDS)
            else:
                record.stop(_STOP_GRACE_SECONDS)
            self._kubelet_file.unlink(missing_ok=True)
        if self._kubelet_child is not None:
            self._kubelet_child.wait()
            self._kubelet_child = None

    def states(self) -> list[ComponentState]:
        """Each process of the cluster and whether it runs."""
        record = self._kubelet_record()
        alive = record is not None and record.alive()
        pid = record.pid if record is not None else None
        kubelet = ComponentState(KUBELET, pid, alive, self._log_of(KUBELET))
        return [*self.control_plane.states(), kubelet]

    def service_ports(self) -> dict[str, int]:
        """The local port of each Service port, by `namespace/name:port`."""
        return read_json(self.state / "kubelet" / "service-ports.json") or {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while the cluster is brought up or down, so that two commands do not mix."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            while True:
                lock = held.enter_context(self._lock.open("w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LocalClusterError(
                        f"another command is bringing cluster {self.name!r} up or down"
                    ) from None
                # A purge removes the file: one opened before that locks nobody else out.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock.fileno()), self._lock.stat()):
                        break
            yield

    @property
    def _pods(self) -> Path:
        return self.state / "kubelet" / "pods"

    @property
    def _kubelet_file(self) -> Path:
        return self.state / "kubelet" / "process.json"

    @property
    def _lock(self) -> Path:
        return self.state.parent / f".{self.name}.lock"

    @property
    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] | None = read_json(self.state / "cluster.json")
        if record is None:
            raise LocalClusterError(f"there is no cluster {self.name!r}: `tidegate up` makes one")
        return record

    @property
    def _index(self) -> int:
        return int(self._record["index"])

    @property
    def _node_ip(self) -> str:
        return f"127.{77 + self._index}.0.1"

    def _options(self) -> KubeletOptions:
        saved = self._record["kubelet"]
        return KubeletOptions(**{**saved, "images": tuple(saved["images"])})

    @contextmanager
    def _chosen_range(self, options: KubeletOptions | None) -> Iterator[None]:
        """Keeps the ranges that the cluster has, or picks the first that nobody uses.

        They are claimed until the end of the block, by when the kubelet listens in them.
        """
        with ExitStack() as held:
            if self.exists:
                record = self._record
                if options is not None:
                    record["kubelet"] = asdict(options)
                self._claim_own(int(record["index"]), held)
            else:
                index = self._claim_free(held)
                record = {"index": index, "kubelet": asdict(options or KubeletOptions())}
            write_json(self.state / "cluster.json", record)
            yield

    def _claim_own(self, index: int, held: ExitStack) -> None:
        kubelet = self._kubelet_record()
        if kubelet is not None and kubelet.alive():
            return
        if not _claim(index, held):
            raise LocalClusterError(
                f"the addresses of cluster {self.name!r}, 127.{77 + index}.0.0/16, are in use by "
                "another one, of another user or cache folder: stop that first"
            )

    def _claim_free(self, held: ExitStack) -> int:
        for index in range(_RANGES):
            with ExitStack() as trial:
                # Asked after the claim: who had it before has written its cluster.json by now.
                if _claim(index, trial) and index not in self._taken():
                    held.push(trial.pop_all())
                    return index
        raise LocalClusterError(f"{_RANGES} clusters exist already: purge one")

    def _taken(self) -> set[int]:
        """The ranges of the clusters in this cache, running or not."""
        files = self.state.parent.glob("*/cluster.json")
        return {int(record["index"]) for file in files if (record := read_json(file))}

    def _grant_service_status(self) -> None:
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": _SERVICE_STATUS_ROLE})
        # The roles' endpoint answers a moment after the server says that it is ready.
        for _ in range(20):
            done = self.kubectl("apply", "--server-side", "-f", "-", stdin=content)
            if done.returncode == 0:
                return
            time.sleep(0.25)
        raise LocalClusterError(f"granting the kubelet its rights failed: {done.stderr.strip()}")

    def _wait_for_node(self, deadline: float) -> None:
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        path = f"jsonpath={ready}/{{.spec.taints}}/{{.status.daemonEndpoints}}"
        while True:
            said = self.kubectl("get", "node", credentials.NODE_NAME, "-o", path)
            if said.stdout.startswith("True//") and str(KUBELET_PORT) in said.stdout:
                return
            record = self._kubelet_record()
            if record is None or not record.alive() or time.monotonic() > deadline:
                log = self._log_of(KUBELET)
                raise LocalClusterError(f"the node is not ready; {log} ends with:\n{tail(log, 5)}")
            time.sleep(0.1)

    def _kubelet_record(self) -> ProcessRecord | None:
        saved = read_json(self._kubelet_file)
        return ProcessRecord(*saved) if saved else None

    def _log_of(self, component: str) -> Path:
        return self.state / "logs" / f"{component}.log"


def _claim(index: int, held: ExitStack) -> bool:
    """Takes the ranges `index` while `held` is open, unless another `up` or a kubelet has them.

    An abstract socket's name is the whole machine's and goes with its process, however that ends.
    """
    claim = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        claim.bind(f"\0tidegate-local-cluster-{index}")
    except OSError:
        return False
    return bindable(f"127.{77 + index}.0.1", KUBELET_PORT)
