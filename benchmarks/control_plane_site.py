"""The cluster of `scripts/bench control-plane`, its objects, and one operator as a process.

A local cluster with its kubelet, CRDs and rights as a user gets them. The operator runs beside it
by the rights of its own ServiceAccount, with the settings it has by default but for two: one
namespace has a pool that may serve all tenants, and the Lease lasts longer, as this machine does
all else too.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from tidegate_operator.kinds import NAMESPACE, SERVING_POOL, TENANT, TENANT_TIER, Kind
from tidegate_operator.kube import Json, Kube

from tidegate.local_cluster.binaries import ensure_binaries
from tidegate.local_cluster.cluster import KubeletOptions, LocalCluster
from tidegate.local_cluster.deploy import apply_crds, find_source
from tidegate.local_cluster.paths import cache_directory

OPERATOR_USER = "system:serviceaccount:tidegate-system:tidegate-operator"
POOLS_IN_NAMESPACE = 10
TENANTS_OF_POOL = 10
"""On average; each pool serves those of its namespace."""
TIERS = 20
REAL_PODS = 5
CREATED_AT_ONCE = 20
API = "tidegate.io/v1alpha1"


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is."""

    pools: int

    @property
    def namespaces(self) -> list[str]:
        return [f"bench-{number:02}" for number in range(self.pools // POOLS_IN_NAMESPACE)]

    @property
    def tenants(self) -> int:
        return self.pools * TENANTS_OF_POOL

    def objects(self) -> Iterator[tuple[Kind, Json]]:
        """All of them; the first pool of the first namespace serves every tenant, the next few have
        real pods."""
        for name in self.namespaces:
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            yield NAMESPACE, {"metadata": {"name": name, "labels": labels}}
        for number in range(TIERS):
            yield TENANT_TIER, tier(number)
        for namespace in self.namespaces:
            for number in range(self.tenants // len(self.namespaces)):
                yield TENANT, tenant(namespace, number)
        for place, namespace in enumerate(self.namespaces):
            for number in range(POOLS_IN_NAMESPACE):
                is_first = place == number == 0
                is_real = place == 0 and 0 < number <= REAL_PODS
                yield SERVING_POOL, pool(namespace, number, is_first=is_first, is_real=is_real)


def tier(number: int, priority: int | None = None) -> Json:
    """One of the tiers; an edit changes its priority."""
    spec = {
        "priority": number if priority is None else priority,
        "allowedNamespaces": {},
        "reservedPercent": 2,
        "tenantOverrides": {"maxWeight": 1000},
        "slo": {"objectives": [{"metric": "TimeToFirstToken", "target": "2s", "ratio": "99"}]},
        "rateLimits": [{"name": "per-minute", "requests": 600, "per": "Minute"}],
    }
    return {"metadata": {"name": f"tier-{number:02}"}, "spec": spec}


def tenant(namespace: str, number: int, weight: int = 1) -> Json:
    """One tenant; an edit changes its weight."""
    name = f"tenant-{number:03}"
    key = sha256(f"{namespace}/{name}".encode()).hexdigest()
    spec = {
        "tierRef": {"name": f"tier-{number % TIERS:02}"},
        "apiKeys": [{"name": "main", "sha256": key}],
        "weight": weight,
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pool(namespace: str, number: int, *, is_first: bool, is_real: bool) -> Json:
    """One pool of one pod. No node takes those of the pools that are not real."""
    engine: Json = {"image": "vllm/vllm-openai:v0.32.0"}
    if not is_real:
        engine["nodeSelector"] = {"tidegate.io/bench": "none"}
    spec: Json = {
        "model": {"name": "tiny", "source": {"huggingFace": {"repo": "acme/tiny"}}},
        "engine": engine,
        "replicas": 1,
    }
    if is_first:
        spec["tenants"] = {"namespaceSelector": {}}
    return {"metadata": {"name": f"pool-{number}", "namespace": namespace}, "spec": spec}


@contextmanager
def cluster_of(name: str) -> Iterator[LocalCluster]:
    """A local cluster with Tidegate's CRDs and rights; gone with all its files afterwards."""
    binaries = ensure_binaries(cache_directory(), lambda _: None)
    cluster = LocalCluster(
        f"bench-{name}-{os.getpid()}", binaries, cache_directory(), die_with_parent=True
    )
    try:
        cluster.start(KubeletOptions())
        source = find_source()
        apply_crds(cluster.kubectl, source)
        kubectl(cluster, "apply", "--server-side", "-k", str(source.manifests))
        # The operator of the manifests rests: the one that is measured runs beside it.
        kubectl(
            cluster, "scale", "deployment/tidegate-operator", "-n", "tidegate-system",
            "--replicas=0",
        )  # fmt: skip
        yield cluster
    finally:
        cluster.purge()


def kubectl(cluster: LocalCluster, *arguments: str) -> str:
    """What kubectl says; RuntimeError where it fails."""
    done = cluster.kubectl(*arguments)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


async def create_all(kube: Kube, size: Size) -> None:
    """Create every object, several at a time, each kind after the one before."""
    by_kind: dict[Kind, list[Json]] = {}
    for kind, body in size.objects():
        identity = {"apiVersion": kind.api_version, "kind": kind.name}
        by_kind.setdefault(kind, []).append(identity | body)
    for kind, bodies in by_kind.items():
        waiting = iter(bodies)

        async def some(kind: Kind = kind, waiting: Iterator[Json] = waiting) -> None:
            for body in waiting:
                await kube.create(kind, body)

        await asyncio.gather(*(some() for _ in range(CREATED_AT_ONCE)))


class Operator:
    """The operator's process."""

    def __init__(self, cluster: LocalCluster, folder: Path, profile: Path | None) -> None:
        token = kubectl(
            cluster, "create", "token", "tidegate-operator", "-n", "tidegate-system",
            "--duration=24h",
        )  # fmt: skip
        content = yaml.safe_load(cluster.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": token}
        kubeconfig = folder / "operator.kubeconfig"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(yaml.safe_dump(content))
        self.log = folder / "operator.log"
        profiled = ["-m", "cProfile", "-o", str(profile)] if profile else []
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, *profiled, "-m", "tidegate_operator",
                    f"--kubeconfig={kubeconfig}", "--shared-pool-namespaces=bench-00",
                    "--http-host=127.0.0.1", "--http-port=0", "--log-level=WARNING",
                    "--lease-duration-seconds=600", "--lease-renew-deadline-seconds=500",
                ],
                stderr=log,
            )  # fmt: skip

    def check(self) -> None:
        """RuntimeError with its last words where it ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the operator ended with {code}: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._process.terminate()
        self._process.wait(30)

    def memory_mb(self) -> tuple[float, float]:
        """What it has resident now, and the most that it had."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        now, most = (int(values[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        return now, most

    def processor_seconds(self) -> float:
        """That it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Audit:
    """The operator's writes since this was made, from the API server's audit log."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._path = cluster.control_plane.audit_log
        self._offset = self._path.stat().st_size

    def writes(self) -> list[dict[str, Any]]:
        """Each with `requestReceivedTimestamp` and `objectRef`; no Leases."""
        with self._path.open() as file:
            file.seek(self._offset)
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [
            line
            for line in lines
            if line["user"]["username"] == OPERATOR_USER
            and line["objectRef"]["resource"] != "leases"
            and "dryRun" not in line.get("requestURI", "")
        ]
