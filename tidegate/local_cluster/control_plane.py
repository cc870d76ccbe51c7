"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes on loopback.

Start order is dependency order, stop order its reverse: an API server does not end while a client
holds a watch open, so whoever watches is stopped first, and each is killed after a grace. etcd's
data, keys, tokens and ports are kept in the state folder, so a start after a stop (or after SIGKILL
of everything) goes on where it was.

The endpoint and node-lifecycle controllers are left out: pod IPs of the process kubelet are
loopback addresses, which EndpointSlices refuse, and its node needs no heartbeat, which keeps a
quiet cluster's audit log empty.
"""

import http.client
import json
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.local_cluster import credentials
from tidegate.local_cluster.binaries import Binaries
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.files import read_json, write_atomically, write_json
from tidegate.local_cluster.ports import bindable, free_ports
from tidegate.local_cluster.processes import ProcessRecord, spawn_detached, tail, uninterrupted

ETCD, APISERVER = "etcd", "kube-apiserver"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
COMPONENTS = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER)
API_SERVER_ONLY = (ETCD, APISERVER)

CONTROLLERS = tuple(
    f"{name}-controller"
    for name in (
        "statefulset",
        "deployment",
        "replicaset",
        "job",
        "garbage-collector",
        "namespace",
        "disruption",
        "horizontal-pod-autoscaler",
        "serviceaccount",
        "root-ca-certificate-publisher",
        "clusterrole-aggregation",
        "pod-garbage-collector",
        "ttl-after-finished",
        "persistentvolume-binder",
        "persistentvolume-protection",
        "persistentvolumeclaim-protection",
    )
)
_WRITES = ["create", "update", "patch", "delete", "deletecollection"]
_READS = ["get", "list", "watch"]


def audit_policy(readers: Sequence[str] = ()) -> dict[str, Any]:
    """One line per write, none per read but those of `readers`: `who changes what` stays
    answerable."""
    rules: list[dict[str, Any]] = [{"level": "Metadata", "verbs": _WRITES}]
    if readers:
        rules.append({"level": "Metadata", "verbs": _READS, "users": list(readers)})
    rules.append({"level": "None"})
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }


_PORT_NAMES = ("etcd", "etcd-peer", "apiserver", "controller-manager", "scheduler")
_STOP_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ComponentState:
    """What is known of one component: running, stopped, or dead (started but gone by itself)."""

    name: str
    pid: int | None
    running: bool
    log: Path


class ControlPlane:
    """A control plane whose files lie in `state`; may be made anew for the same folder.

    `components` is what `start` starts, in order; `service_cidr` must stay the same as long as the
    data. With `die_with_parent` the processes end with the one that started them (for tests).
    `audited_readers` are users whose reads are audited too.
    """

    def __init__(
        self,
        state: Path,
        binaries: Binaries,
        *,
        components: Sequence[str] = COMPONENTS,
        service_cidr: str = "127.96.0.0/16",
        name: str = "tidegate",
        die_with_parent: bool = False,
        audited_readers: Sequence[str] = (),
    ) -> None:
        self.state = state
        self.binaries = binaries
        self.components = tuple(components)
        self.service_cidr = service_cidr
        self.name = name
        self._die_with_parent = die_with_parent
        self._audit_policy = audit_policy(audited_readers)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._records_file = state / "control-plane.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (system:masters)."""
        return self.kubeconfig_of(credentials.ADMIN)

    def kubeconfig_of(self, client: str) -> Path:
        """The kubeconfig of one of `credentials.USERS`."""
        return self.state / f"{client}.kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports()['apiserver']}"

    @property
    def ca_file(self) -> Path:
        """The API server's certificate, which is its own trust anchor."""
        return self.state / "certs" / "apiserver.crt"

    def log_of(self, component: str) -> Path:
        return self.state / "logs" / f"{component}.log"

    def kubectl(
        self, *arguments: str, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs kubectl as the administrator and returns what it said, whatever the exit status."""
        return subprocess.run(
            [self.binaries.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(self, timeout_seconds: float = 60.0) -> None:
        """Starts what does not run yet and waits until each is healthy.

        Raises LocalClusterError with a component's last log lines when one does not come up; what
        was started until then goes on running, for the caller to look at or `stop`.
        """
        deadline = time.monotonic() + timeout_seconds
        self.prepare()
        for component in self.components:
            self.start_component(component, deadline - time.monotonic())

    def start_component(self, component: str, timeout_seconds: float = 60.0) -> None:
        """Starts one component, if it does not run, and waits until it is healthy."""
        if not self._alive(component):
            if component in (CONTROLLER_MANAGER, SCHEDULER):
                self._write_kubeconfigs()
            command = [self.binaries.path(component), *self._flags(component)]
            with uninterrupted():
                record, process = spawn_detached(
                    command, self.log_of(component), die_with_parent=self._die_with_parent
                )
                self._children[component] = process
                self._save_record(component, record)
        self._wait_healthy(component, time.monotonic() + timeout_seconds)
        if component == APISERVER:
            self._write_kubeconfigs()

    def stop(self) -> None:
        """Stops all components, last started first. Clients should have been stopped before."""
        for component in reversed(COMPONENTS):
            self._end(component, _STOP_GRACE_SECONDS)
        # Not rewritten one by one: a full disk would keep the rest running.
        self._records_file.unlink(missing_ok=True)

    def stop_component(self, component: str, *, kill: bool = False) -> None:
        """Stops one component (SIGTERM, SIGKILL after 5 s; at once with `kill`). Data is kept."""
        self._end(component, 0.0 if kill else _STOP_GRACE_SECONDS)
        self._save_record(component, None)

    def _end(self, component: str, grace_seconds: float) -> None:
        if (record := self._records().get(component)) is not None:
            record.stop(grace_seconds)
        if (child := self._children.pop(component, None)) is not None:
            child.wait()

    def states(self) -> list[ComponentState]:
        """Each component that this control plane has, and whether it runs."""
        records = self._records()
        return [
            ComponentState(
                name,
                records[name].pid if name in records else None,
                name in records and records[name].alive(),
                self.log_of(name),
            )
            for name in self.components
        ]

    def prepare(self) -> None:
        """Makes keys, tokens and ports, or keeps those there are; `start` does it too."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)
        credentials.ensure_service_account_key(self.state / "sa.key", self.state / "sa.pub")
        credentials.ensure_tokens(self.state / "tokens.json", self.state / "tokens.csv")
        write_json(self.state / "audit-policy.json", self._audit_policy)
        ports = self._saved_ports()
        running = any(self._alive(component) for component in COMPONENTS)
        if running or (ports and all(bindable("127.0.0.1", port) for port in ports.values())):
            return
        fresh = free_ports(len(_PORT_NAMES))
        write_json(self.state / "ports.json", dict(zip(_PORT_NAMES, fresh, strict=True)))

    def _saved_ports(self) -> dict[str, int]:
        return read_json(self.state / "ports.json") or {}

    def _ports(self) -> dict[str, int]:
        ports = self._saved_ports()
        if not ports:
            raise LocalClusterError(f"no control plane was ever started in {self.state}")
        return ports

    def _write_kubeconfigs(self) -> None:
        tokens: dict[str, str] = read_json(self.state / "tokens.json")
        for client, token in tokens.items():
            credentials.write_kubeconfig(
                self.kubeconfig_of(client),
                server=self.url,
                ca=self.ca_file.read_bytes(),
                token=token,
                cluster=self.name,
            )

    def _flags(self, component: str) -> list[str]:
        ports = self._ports()
        make: dict[str, Callable[[dict[str, int]], list[str]]] = {
            ETCD: self._etcd_flags,
            APISERVER: self._apiserver_flags,
            CONTROLLER_MANAGER: self._controller_manager_flags,
            SCHEDULER: self._scheduler_flags,
        }
        return make[component](ports)

    def _etcd_flags(self, ports: dict[str, int]) -> list[str]:
        client, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "etcd-peer"))
        return [
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # Survives a killed process, not a power cut: right for a cluster one throws away.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _apiserver_flags(self, ports: dict[str, int]) -> list[str]:
        policy = self.state / "audit-policy.json"
        write_atomically(policy, json.dumps(self._audit_policy))
        return [
            f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports['apiserver']}",
            # Without an address given it looks for a default route, which not every machine has.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.state / 'certs'}",
            f"--token-auth-file={self.state / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.state / 'sa.pub'}",
            f"--service-account-signing-key-file={self.state / 'sa.key'}",
            f"--service-cluster-ip-range={self.service_cidr}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            "--profiling=false",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-format=json",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=2",
        ]

    def _controller_manager_flags(self, ports: dict[str, int]) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig_of(credentials.CONTROLLER_MANAGER)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports['controller-manager']}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.state / 'sa.key'}",
            f"--root-ca-file={self.ca_file}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--horizontal-pod-autoscaler-sync-period=5s",
            "--profiling=false",
        ]

    def _scheduler_flags(self, ports: dict[str, int]) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig_of(credentials.SCHEDULER)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports['scheduler']}",
            "--profiling=false",
        ]

    def _wait_healthy(self, component: str, deadline: float) -> None:
        while not self._healthy(component):
            if not self._alive(component):
                self._fail(component, "ended while starting")
            if time.monotonic() > deadline:
                self._fail(component, "did not become healthy in time")
            time.sleep(0.05)

    def _fail(self, component: str, what: str) -> None:
        lines = tail(self.log_of(component), 5)
        raise LocalClusterError(f"{component} {what}; {self.log_of(component)} ends with:\n{lines}")

    def _healthy(self, component: str) -> bool:
        """One health request, over the wire as a load balancer would make it."""
        ports = self._ports()
        headers: dict[str, str] = {}
        connection: http.client.HTTPConnection
        if component == ETCD:
            path = "/health"
            connection = http.client.HTTPConnection("127.0.0.1", ports["etcd"], timeout=2)
        elif component == APISERVER:
            if not self.ca_file.exists():
                return False
            path = "/readyz"
            token = read_json(self.state / "tokens.json")[credentials.ADMIN]
            headers = {"Authorization": f"Bearer {token}"}
            context = ssl.create_default_context(cafile=str(self.ca_file))
            connection = http.client.HTTPSConnection(
                "127.0.0.1", ports["apiserver"], timeout=2, context=context
            )
        else:
            path = "/healthz"
            # Self-signed, in the component's memory only: there is nothing to verify it against.
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            port = ports[component.removeprefix("kube-")]
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=context)
        try:
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _records(self) -> dict[str, ProcessRecord]:
        saved: dict[str, list[int]] = read_json(self._records_file) or {}
        return {name: ProcessRecord(pid, ticks) for name, (pid, ticks) in saved.items()}

    def _save_record(self, component: str, record: ProcessRecord | None) -> None:
        saved: dict[str, list[int]] = read_json(self._records_file) or {}
        saved.pop(component, None)
        if record is not None:
            saved[component] = [record.pid, record.started_ticks]
        write_json(self._records_file, saved)

    def _alive(self, component: str) -> bool:
        record = self._records().get(component)
        return record is not None and record.alive()
