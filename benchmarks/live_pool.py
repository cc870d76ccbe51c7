"""A pool on a local cluster with a real Prometheus and Alertmanager on its pods, for benchmarks.

Everything is what a user would have: the operator that `tidegate up` starts, the rules that
`tidegate rules` prints, scrapes with the pool's token and the labels that docs/operations.md asks
for, and days of history brought in by `promtool tsdb create-blocks-from`. Discovery is by file,
since Debian's Prometheus was built without Kubernetes': the same pods, ports and labels, written
anew whenever a pod comes or goes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.e2e_cluster import Cluster, Scene
from testbed.prometheus import (
    Prometheus,
    backfill,
    prometheus_programs,
    running_alertmanager,
    running_prometheus,
)
from tidegate.cli.errors import CommandError
from tidegate.cli.existing_cluster import answering_cluster
from tidegate.local_cluster.binaries import ensure_binaries
from tidegate.local_cluster.cluster import KubeletOptions, LocalCluster
from tidegate.local_cluster.deploy import deploy, find_source
from tidegate.local_cluster.paths import cache_directory

Json = dict[str, Any]

HISTORY_STEP_SECONDS = 30.0
SCRAPE_INTERVAL = "15s"
OPERATOR_NAMESPACE = "tidegate-system"


@dataclass(frozen=True, slots=True)
class History:
    """What a tier's promise looked like before: evenly spread requests, some of them late."""

    days: float
    requests_per_second: float
    broken_ratio: float


@dataclass(slots=True)
class LivePool:
    """The pool, what watches it, and what the watching needs."""

    scene: Scene
    kubeconfig: Path
    prometheus: Prometheus
    _targets: Path
    _known: frozenset[tuple[str, str]] = frozenset()

    def look(self) -> tuple[Json, list[Json]]:
        """The ServingPool and its pods, routers too, as they are; scrapes follow the pods."""
        found = self.scene.cluster.get("servingpools,pods", "-n", self.scene.namespace)["items"]
        (pool,) = [obj for obj in found if obj["kind"] == "ServingPool"]
        pods = [obj for obj in found if obj["kind"] == "Pod"]
        place = {"namespace": self.scene.namespace, "tidegate_io_pool": "pool"}
        addresses = frozenset(
            (pod["metadata"]["name"], pod["status"]["podIP"])
            for pod in pods
            if pod["status"].get("podIP")
        )
        if addresses != self._known:
            self._known = addresses
            targets = [
                {"targets": [f"{address}:8001"], "labels": place | {"pod": name}}
                for name, address in sorted(addresses)
            ]
            _replace(self._targets, json.dumps(targets))
        return pool, pods


@contextlib.contextmanager
def local_cluster(name: str | None) -> Iterator[LocalCluster]:
    """The running local cluster of that name, or exit 2; None: one of its own, gone with its files
    at the end."""
    if name is not None:
        yield _running(name)
        return
    binaries = ensure_binaries(cache_directory(), lambda step: None)
    cluster = LocalCluster(
        f"bench-{os.getpid()}", binaries, cache_directory(), die_with_parent=True
    )
    try:
        cluster.start(KubeletOptions())
        deploy(cluster.kubectl, find_source(), lambda step: None, wait_seconds=180)
        yield cluster
    finally:
        cluster.purge()


def _running(name: str) -> LocalCluster:
    try:
        return answering_cluster(name)
    except CommandError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


@contextlib.asynccontextmanager
async def live_pool(
    cluster: LocalCluster,
    scene: Scene,
    histories: Mapping[str, History],
    webhook: str | None = None,
) -> AsyncIterator[LivePool]:
    """The scene's pool, Ready and watched; ``histories`` by tier. ``webhook``: the URL to which an
    Alertmanager posts; None: there is none."""
    await asyncio.to_thread(scene.up)
    try:
        with tempfile.TemporaryDirectory(prefix="tg-live-") as name:
            folder = Path(name)
            programs = await asyncio.to_thread(prometheus_programs)
            rules = await asyncio.to_thread(_rules, cluster, scene)
            await asyncio.to_thread(_load_history, programs, folder, scene, histories)
            targets = folder / "targets.json"
            _replace(targets, "[]")
            async with contextlib.AsyncExitStack() as stack:
                alertmanager = None
                if webhook is not None:
                    alertmanager = await stack.enter_async_context(
                        running_alertmanager(programs, folder, webhook)
                    )
                prometheus = await stack.enter_async_context(
                    running_prometheus(
                        programs,
                        folder,
                        rules,
                        _scrapes(scene, targets),
                        interval=SCRAPE_INTERVAL,
                        alertmanager=alertmanager,
                    )
                )
                live = LivePool(scene, cluster.kubeconfig, prometheus, targets)
                await asyncio.to_thread(live.look)
                yield live
    finally:
        await asyncio.to_thread(scene.down)


def cluster_of(local: LocalCluster) -> Cluster:
    """For scenes on it."""
    return Cluster([str(local.binaries.path("kubectl")), f"--kubeconfig={local.kubeconfig}"])


def _rules(cluster: LocalCluster, scene: Scene) -> list[Json]:
    """As a user gets them."""
    program = Path(sys.executable).parent / "tidegate"
    done = subprocess.run(
        [
            program,
            "rules",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--pool={scene.namespace}/pool",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    groups: list[Json] = yaml.safe_load(done.stdout)["groups"]
    return groups


def _load_history(
    programs: Path, folder: Path, scene: Scene, histories: Mapping[str, History]
) -> None:
    """Up to now, as counters of a pod that is no more."""
    series: dict[str, list[tuple[float, float]]] = {}
    end = time.time()
    for tier, past in histories.items():
        steps = int(past.days * 86_400 / HISTORY_STEP_SECONDS)
        labels = (
            f'namespace="{scene.namespace}",tidegate_io_pool="pool",pod="pool-before",'
            f'tier="{scene.namespace}-{tier}",objective="TimeToFirstToken"'
        )
        for name, ratio in (("requests", 1.0), ("good", 1.0 - past.broken_ratio)):
            each = past.requests_per_second * HISTORY_STEP_SECONDS * ratio
            series[f"tidegate_slo_{name}_total{{{labels}}}"] = [
                (end - HISTORY_STEP_SECONDS * (steps - number), each * number)
                for number in range(steps + 1)
            ]
    backfill(programs, folder / "data", series)


def _scrapes(scene: Scene, targets: Path) -> list[Json]:
    admin = scene.cluster.get("secret", "pool-admin", "-n", scene.namespace)["data"]["token"]
    operators = scene.cluster.get("pods", "-n", OPERATOR_NAMESPACE)["items"]
    return [
        {
            "job_name": f"tidegate-{scene.namespace}-pool",
            "authorization": {"credentials": base64.b64decode(admin).decode()},
            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1m"}],
        },
        {
            "job_name": "tidegate-operator",
            "static_configs": [
                {
                    "targets": [f"{pod['status']['podIP']}:8080"],
                    "labels": {"pod": pod["metadata"]["name"]},
                }
                for pod in operators
            ],
        },
    ]


def _replace(path: Path, text: str) -> None:
    """So that a reader finds the old text or the new."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
